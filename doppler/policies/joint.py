"""The joint policy of the ablation: one softmax over all (candidate, device) pairs of a step.

`p(v, d) = softmax of score(v) + logit(v, d) over the candidates v and the devices d of v`, with
SEL's scores and PLC's logits of the dual policy. A step looks at every candidate, so an episode
costs as much more as there are candidates; that is what the dual policy saves.

Legend: B episodes, N placed ops, D devices, F device columns, R rows (candidates of all steps).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Bools, Floats, Ints
from doppler.policies.device_columns import set_columns
from doppler.policies.dual import (
    DualPolicy,
    Encoded,
    PolicyInputs,
    head_arrays,
)
from doppler.policies.episodes import REPLAY, SAMPLE, set_logits, uniform
from doppler.policies.place import MASKED
from doppler.policies.place_kernel import compiled_logits
from doppler.policies.placed_means import placed_means
from doppler.policies.sampling import SampleMode
from doppler.policies.tables import Heads, Singles, Tables, make_workspace
from doppler.policies.timeline import place, reset, set_mask, set_times
from simulator.machine_code import cached


class _Rows(NamedTuple):
    """What a replay writes for the teacher-forced pass, one row per candidate of a step."""

    columns: Singles
    masks: Bools
    ops: Ints
    steps: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRollouts:
    """Complete episodes of the joint policy.

    Attributes:
        orders, devices: Op and device per step, B x N.
        log_probs: The sampler's log-probability of each pair, B x N.
        num_rows: Candidates over all steps, B.
        temperature: Divides the logits.
    """

    orders: Ints
    devices: Ints
    log_probs: Floats
    num_rows: Ints
    temperature: float

    @property
    def num_episodes(self) -> int:
        """Episodes in the batch."""
        return len(self.orders)


class JointPolicy(DualPolicy):
    """The dual policy's networks with one joint choice per step."""

    def sample_joint(
        self,
        inputs: PolicyInputs,
        num_episodes: int,
        rng: np.random.Generator,
        *,
        temperature: float = 1.0,
        mode: SampleMode = SampleMode.sample,
    ) -> JointRollouts:
        """Returns a batch of episodes of the policy as it is."""
        seeds = rng.integers(0, 2**63, size=num_episodes, dtype=np.uint64)
        shape = (num_episodes, inputs.assignment.num_ops)
        orders = np.full(shape, -1, dtype=np.int64)
        return self._roll(inputs, mode.value, orders, orders.copy(), seeds, temperature)

    def replay_joint(
        self, inputs: PolicyInputs, orders_BN: Ints, devices_BN: Ints, temperature: float = 1.0
    ) -> JointRollouts:
        """Returns given episodes with the log-probabilities of the policy as it is."""
        seeds = np.zeros(len(orders_BN), dtype=np.uint64)
        return self._roll(inputs, REPLAY, orders_BN, devices_BN, seeds, temperature)

    def _roll(
        self,
        inputs: PolicyInputs,
        mode: int,
        orders: Ints,
        devices: Ints,
        seeds: np.ndarray,  # type: ignore[type-arg]
        temperature: float,
    ) -> JointRollouts:
        with torch.no_grad():
            heads = head_arrays(self.encode(inputs))
        found = JointRollouts(
            orders=orders,
            devices=devices,
            log_probs=np.zeros(orders.shape),
            num_rows=np.zeros(len(orders), dtype=np.int64),
            temperature=temperature,
        )
        rows = _empty_rows(0, inputs.tables, heads)
        _run_joint(inputs.tables, heads, mode, seeds, temperature, *_fields(found), rows)
        return found

    def joint_log_probs(
        self, inputs: PolicyInputs, encoded: Encoded, rollouts: JointRollouts
    ) -> tuple[Tensor, Tensor]:
        """Returns differentiable (log-probabilities, entropies) of all decisions, B x N each."""
        rows = _replay_rows(inputs.tables, head_arrays(encoded), rollouts)
        orders, devices = torch.from_numpy(rollouts.orders), torch.from_numpy(rollouts.devices)
        ops, steps = torch.from_numpy(rows.ops), torch.from_numpy(rows.steps)
        means = placed_means(encoded.head.placed, orders, devices, rows.masks.shape[1])
        means = means.flatten(0, 1).index_select(0, steps)
        columns = torch.from_numpy(rows.columns)
        logits = compiled_logits(encoded.head, ops, columns, means).double()
        logits = (logits + encoded.scores.index_select(0, ops)[:, None]) / rollouts.temperature
        logits = logits.masked_fill(~torch.from_numpy(rows.masks), MASKED)
        count = orders.numel()
        top = logits.new_full((count,), MASKED).scatter_reduce(
            0, steps, logits.detach().amax(dim=1), "amax"
        )
        weights = (logits - top.index_select(0, steps)[:, None]).exp()
        totals = logits.new_zeros(count).index_add(0, steps, weights.sum(dim=1))
        log_totals = totals.log() + top
        chosen_rows = torch.nonzero(ops == orders.flatten().index_select(0, steps))[:, 0]
        chosen = logits[chosen_rows, devices.flatten()]
        shares = weights / totals.index_select(0, steps)[:, None]
        moments = logits.new_zeros(count).index_add(0, steps, (shares * logits).sum(dim=1))
        log_probs = (chosen - log_totals).view(orders.shape)
        return log_probs, (log_totals - moments).view(orders.shape)


def _fields(rollouts: JointRollouts) -> tuple[Ints, Ints, Floats, Ints]:
    return rollouts.orders, rollouts.devices, rollouts.log_probs, rollouts.num_rows


def _empty_rows(count: int, tables: Tables, heads: Heads) -> _Rows:
    num_devices = tables.work.shape[1]
    return _Rows(
        columns=np.zeros((count, num_devices, len(heads.dynamic)), dtype=np.float32),
        masks=np.zeros((count, num_devices), dtype=np.bool_),
        ops=np.zeros(count, dtype=np.int64),
        steps=np.zeros(count, dtype=np.int64),
    )


def _replay_rows(tables: Tables, heads: Heads, rollouts: JointRollouts) -> _Rows:
    rows = _empty_rows(int(rollouts.num_rows.sum()), tables, heads)
    seeds = np.zeros(rollouts.num_episodes, dtype=np.uint64)
    _run_joint(tables, heads, REPLAY, seeds, rollouts.temperature, *_fields(rollouts), rows)
    return rows


@cached()
def _run_joint(
    t: Tables,
    h: Heads,
    mode: int,
    seeds: np.ndarray,  # type: ignore[type-arg]
    temperature: float,
    orders: Ints,
    devices: Ints,
    log_probs: Floats,
    num_rows: Ints,
    rows: _Rows,
) -> None:
    """Runs the episodes; a replay reads `orders` and `devices` and fills `rows`."""
    num_ops, num_devices = t.work.shape
    num_columns = h.dynamic.shape[0]
    s = make_workspace(t, len(h.output), num_columns)
    hidden = np.empty(len(h.output), np.float32)
    candidates = np.empty(num_ops, np.int64)
    logits = np.empty((num_ops, num_devices))
    state = np.zeros(1, np.uint64)
    at = 0
    for row in range(len(orders)):
        reset(t, s)
        state[0] = seeds[row]
        count = 0
        num_rows[row] = 0
        for op in range(num_ops):
            if s.missing[op] == 0:
                candidates[count] = op
                count += 1
        for step in range(num_ops):
            top = -np.inf
            best, best_device = 0, 0
            for index in range(count):
                op = candidates[index]
                set_mask(t, s, op)
                set_columns(t, s, op, step, num_columns)
                set_logits(h, s, op, hidden)
                for device in range(num_devices):
                    logits[index, device] = -np.inf
                    if s.mask[device]:
                        logits[index, device] = (h.scores[op] + s.logits[device]) / temperature
                        if logits[index, device] > top:
                            top, best, best_device = logits[index, device], index, device
                if len(rows.ops):
                    rows.ops[at] = op
                    rows.steps[at] = row * num_ops + step
                    for device in range(num_devices):
                        rows.masks[at, device] = s.mask[device]
                        for column in range(num_columns):
                            rows.columns[at, device, column] = s.columns[device, column]
                    at += 1
            num_rows[row] += count
            total = 0.0
            for index in range(count):
                for device in range(num_devices):
                    total += np.exp(logits[index, device] - top)
            if mode == REPLAY:
                best_device = devices[row, step]
                for index in range(count):
                    if candidates[index] == orders[row, step]:
                        best = index
            elif mode == SAMPLE:
                target = uniform(state) * total
                found = False
                for index in range(count):
                    for device in range(num_devices):
                        weight = np.exp(logits[index, device] - top)
                        if not found and weight > 0.0:
                            best, best_device = index, device
                            target -= weight
                            found = target < 0.0
            op = candidates[best]
            orders[row, step], devices[row, step] = op, best_device
            log_probs[row, step] = logits[best, best_device] - top - np.log(total)
            count -= 1
            candidates[best] = candidates[count]
            set_mask(t, s, op)
            set_times(t, s, op, best_device, best_device + 1)
            place(t, s, op, best_device)
            for k in range(len(h.output)):
                s.sums[best_device, k] += h.placed[op, k]
            for slot in range(t.out_ptr[op], t.out_ptr[op + 1]):
                consumer = t.out_dst[slot]
                s.missing[consumer] -= 1
                if s.missing[consumer] == 0:
                    candidates[count] = consumer
                    count += 1
