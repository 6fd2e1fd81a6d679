"""The joint policy of the ablation: one softmax over all (candidate, device) pairs of a step.

`p(v, d) = softmax of score(v) / T_s + logit(v, d) / T_p over the candidates v and the devices d of
v`, with SEL's scores and PLC's logits of the dual policy. It is kept as `p(v) p(d | v)`: `p(d | v)`
is PLC's softmax, and `p(v)` that of `score(v) / T_s + log of PLC's normaliser of v`. A step looks
at every candidate, so an episode costs as much more as there are candidates; that is what the dual
policy saves.

Legend: B episodes, N placed ops, D devices, F device columns, R rows (candidates of all steps).
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doppler.policies.assignment import Bools, Floats, Ints
from doppler.policies.device_columns import set_columns
from doppler.policies.device_logits import make_tile, set_logits
from doppler.policies.dual import (
    Decisions,
    DualPolicy,
    Encoded,
    PolicyInputs,
    head_arrays,
    log_probs,
)
from doppler.policies.episodes import GREEDY, REPLAY, uniform
from doppler.policies.place import MASKED
from doppler.policies.place_kernel import compiled_logits
from doppler.policies.placed_means import placed_means
from doppler.policies.sampling import Rollouts, SampleMode, Temperature, replay_episodes
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
class SteppedDecisions(Decisions):
    """Decisions of a policy whose scores change from step to step.

    Attributes:
        teacher: Mean log-probability of the candidates of the largest b-level per step, B x N.
    """

    teacher: Tensor


class SteppedPolicy(DualPolicy):
    """A policy whose scores change from step to step."""

    def teacher_log_prob(
        self, encoded: Encoded, decisions: Decisions, rollouts: Rollouts
    ) -> Tensor:
        """Returns SEL's mean log-probability of the teacher's candidates, a scalar."""
        assert isinstance(decisions, SteppedDecisions)
        return decisions.teacher.mean()


class JointPolicy(SteppedPolicy):
    """The dual policy's networks with one joint choice per step."""

    def episodes(
        self,
        inputs: PolicyInputs,
        encoded: Encoded,
        num_episodes: int,
        rng: np.random.Generator,
        *,
        temperature: Temperature,
        mode: SampleMode = SampleMode.sample,
        threads: int = 1,
    ) -> Rollouts:
        """Returns a batch of episodes; `greedy` takes the likeliest pair of every step."""
        del threads  # an ablation: one is enough
        seeds = rng.integers(0, 2**63, size=num_episodes, dtype=np.uint64)
        orders = np.full((num_episodes, inputs.assignment.num_ops), -1, dtype=np.int64)
        return _roll(inputs, encoded, mode.value, orders, orders.copy(), seeds, temperature)

    def replayed(
        self,
        inputs: PolicyInputs,
        encoded: Encoded,
        orders_BN: Ints,
        devices_BN: Ints,
        temperature: Temperature,
    ) -> Rollouts:
        """Returns given episodes with the columns and log-probabilities of the encoded policy."""
        seeds = np.zeros(len(orders_BN), dtype=np.uint64)
        return _roll(inputs, encoded, REPLAY, orders_BN, devices_BN, seeds, temperature)

    def decide(
        self, inputs: PolicyInputs, encoded: Encoded, rollouts: Rollouts
    ) -> SteppedDecisions:
        """Returns log-probabilities and entropies of all decisions: of `p(v)` and of `p(d | v)`."""
        rows = _replay_rows(inputs.tables, head_arrays(encoded), rollouts)
        orders, devices = torch.from_numpy(rollouts.orders), torch.from_numpy(rollouts.devices)
        ops, steps = torch.from_numpy(rows.ops), torch.from_numpy(rows.steps)
        means = placed_means(encoded.head.placed, orders, devices, rows.masks.shape[1])
        means = means.flatten(0, 1).index_select(0, steps)
        logits = compiled_logits(encoded.head, ops, torch.from_numpy(rows.columns), means).double()
        logits = logits / rollouts.temperature.place
        logits = logits.masked_fill(~torch.from_numpy(rows.masks), MASKED)
        values = encoded.scores.index_select(0, ops) / rollouts.temperature.select
        values = values + torch.logsumexp(logits, dim=1)
        totals = _segment_logsumexp(values, steps, orders.numel())
        logs = values - totals.index_select(0, steps)
        chosen = torch.nonzero(ops == orders.flatten().index_select(0, steps))[:, 0]
        moments = logs.new_zeros(orders.numel()).index_add(0, steps, logs.exp() * logs)
        ties = torch.from_numpy(inputs.tables.tie_class).index_select(0, ops)
        dual = log_probs(encoded, rollouts)
        return SteppedDecisions(
            **{entry.name: getattr(dual, entry.name) for entry in fields(Decisions)}
            | {
                "select": logs.index_select(0, chosen).view(orders.shape),
                "select_entropy": -moments.view(orders.shape),
                "select_totals": totals.view(orders.shape),
                "teacher": _tied_means(logs, ties, steps, orders.numel()).view(orders.shape),
            }
        )


def _segment_logsumexp(values_R: Tensor, steps_R: Tensor, count: int) -> Tensor:
    """Returns log of the sum of exp over the rows of each step."""
    top = values_R.new_full((count,), MASKED).scatter_reduce(0, steps_R, values_R.detach(), "amax")
    weights = (values_R - top.index_select(0, steps_R)).exp()
    return values_R.new_zeros(count).index_add(0, steps_R, weights).log() + top


def _tied_means(logs_R: Tensor, ties_R: Tensor, steps_R: Tensor, count: int) -> Tensor:
    """Returns the mean of `logs` over the rows of the smallest tie class of each step."""
    most = torch.iinfo(torch.int64).max
    first = ties_R.new_full((count,), most).scatter_reduce(0, steps_R, ties_R, "amin")
    tied = (ties_R == first.index_select(0, steps_R)).double()
    sums = logs_R.new_zeros(count).index_add(0, steps_R, tied * logs_R)
    return sums / tied.new_zeros(count).index_add(0, steps_R, tied)


def _roll(
    inputs: PolicyInputs,
    encoded: Encoded,
    mode: int,
    orders: Ints,
    devices: Ints,
    seeds: np.ndarray,  # type: ignore[type-arg]
    temperature: Temperature,
) -> Rollouts:
    """Runs the episodes; what does not depend on the choice's form is the dual replay's."""
    heads = head_arrays(encoded)
    orders, devices = orders.copy(), devices.copy()
    select, both = np.zeros(orders.shape), np.zeros(orders.shape)
    rows = _empty_rows(0, inputs.tables, heads)
    t_s, t_p = temperature.select, temperature.place
    _run_joint(inputs.tables, heads, mode, seeds, t_s, t_p, orders, devices, select, both, rows)
    found = replay_episodes(inputs.tables, heads, orders, devices, temperature)
    return replace(found, select_log_probs=select, place_log_probs=both - select)


def _empty_rows(count: int, tables: Tables, heads: Heads) -> _Rows:
    num_devices = tables.work.shape[1]
    return _Rows(
        columns=np.zeros((count, num_devices, len(heads.dynamic)), dtype=np.float32),
        masks=np.zeros((count, num_devices), dtype=np.bool_),
        ops=np.zeros(count, dtype=np.int64),
        steps=np.zeros(count, dtype=np.int64),
    )


def _replay_rows(tables: Tables, heads: Heads, rollouts: Rollouts) -> _Rows:
    """Rows of given episodes: an op is a candidate from its arrival to its selection."""
    batch, num_ops = rollouts.orders.shape
    waits = num_ops * (num_ops + 1) // 2 - rollouts.arrivals.sum(axis=1)
    rows = _empty_rows(int(waits.sum()), tables, heads)
    scratch = np.zeros((2, batch, num_ops))
    seeds = np.zeros(batch, dtype=np.uint64)
    _run_joint(
        tables,
        heads,
        REPLAY,
        seeds,
        rollouts.temperature.select,
        rollouts.temperature.place,
        rollouts.orders,
        rollouts.devices,
        scratch[0],
        scratch[1],
        rows,
    )
    return rows


@cached()
def _run_joint(
    t: Tables,
    h: Heads,
    mode: int,
    seeds: np.ndarray,  # type: ignore[type-arg]
    select_temperature: float,
    place_temperature: float,
    orders: Ints,
    devices: Ints,
    select_log_probs: Floats,
    log_probs: Floats,
    rows: _Rows,
) -> None:
    """Runs the episodes; a replay reads `orders` and `devices` and fills `rows`."""
    num_ops, num_devices = t.work.shape
    num_columns = h.dynamic.shape[0]
    s = make_workspace(t, len(h.output), num_columns)
    tile = make_tile(h)
    candidates = np.empty(num_ops, np.int64)
    logits = np.empty((num_ops, num_devices))
    state = np.zeros(1, np.uint64)
    at = 0
    for row in range(len(orders)):
        reset(t, s)
        state[0] = seeds[row]
        count = 0
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
                set_logits(h, s, op, tile)
                for device in range(num_devices):
                    logits[index, device] = -np.inf
                    if s.mask[device]:
                        logits[index, device] = (
                            h.scores[op] / select_temperature + s.logits[device] / place_temperature
                        )
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
            total = 0.0
            for index in range(count):
                for device in range(num_devices):
                    total += np.exp(logits[index, device] - top)
            if mode == REPLAY:
                best_device = devices[row, step]
                for index in range(count):
                    if candidates[index] == orders[row, step]:
                        best = index
            elif mode != GREEDY:
                target = uniform(state) * total
                found = False
                for index in range(count):
                    for device in range(num_devices):
                        weight = np.exp(logits[index, device] - top)
                        if not found and weight > 0.0:
                            best, best_device = index, device
                            target -= weight
                            found = target < 0.0
            share = 0.0
            for device in range(num_devices):
                share += np.exp(logits[best, device] - top)
            op = candidates[best]
            orders[row, step], devices[row, step] = op, best_device
            select_log_probs[row, step] = np.log(share) - np.log(total)
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
