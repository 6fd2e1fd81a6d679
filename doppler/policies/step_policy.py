"""Message passing at every step: what the dual policy saves by passing messages once per episode.

Both encoders run again before every step on the graph as it is placed so far (`PartialPlacements`);
SEL scores the candidates with the new embeddings, PLC the devices, and a device's summary is the
mean of the new embeddings of its ops. An episode costs as many encodings as it has steps, and so
does a gradient step: the ablation is slow on purpose.

Source: DOPPLER section 4 (embeddings once per episode), undone.

Legend: B episodes, N placed ops (= steps), D devices, S states, H hidden, F device columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from doppler.policies.assignment import Floats, Ints
from doppler.policies.config import LEAKY_SLOPE, PolicyConfig
from doppler.policies.device_columns import set_columns
from doppler.policies.dual import (
    Encoded,
    PolicyInputs,
    head_arrays,
    initialise,
)
from doppler.policies.encoder import path_sums, z_rows
from doppler.policies.features import GraphTensors
from doppler.policies.joint import SteppedDecisions, SteppedPolicy
from doppler.policies.place import MASKED, PlaceHead, PlacePolicy, place_logits
from doppler.policies.sampling import Rollouts, SampleMode, Temperature, replay_episodes
from doppler.policies.select import SelectPolicy
from doppler.policies.step_encoder import PartialPlacements, StepEncoder, partial_placements
from doppler.policies.tables import Tables, Workspace, make_workspace
from doppler.policies.timeline import place, reset, set_mask, set_times
from simulator.machine_code import cached

BLOCK_NUMBERS = 1 << 21
"""Numbers of one layer's embeddings that the learning pass holds at a time: 8 MiB."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What the heads say of one choice per state.

    Attributes:
        select: Log-probability of the op, S.
        select_total: log of SEL's normaliser, S.
        select_entropy: S.
        teacher: Mean log-probability of the candidates of the largest b-level, S.
        devices: Log-probability of every device for the op, S x D.
    """

    select: Tensor
    select_total: Tensor
    select_entropy: Tensor
    teacher: Tensor
    devices: Tensor


class StepPolicy(SteppedPolicy):
    """SEL and PLC with new embeddings before every step."""

    def __init__(self, config: PolicyConfig, seed: int) -> None:
        super().__init__(config, seed)
        with torch.random.fork_rng(devices=[]):
            self.select.encoder = StepEncoder(config)
            self.place.encoder = StepEncoder(config)
        initialise(self, seed)

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
        """Returns a batch of episodes, all of them one step at a time."""
        del threads  # torch has them already
        with torch.no_grad():
            return self._roll(inputs, encoded, num_episodes, rng, temperature, mode)

    def replayed(
        self,
        inputs: PolicyInputs,
        encoded: Encoded,
        orders_BN: Ints,
        devices_BN: Ints,
        temperature: Temperature,
    ) -> Rollouts:
        """Returns given episodes with the columns and log-probabilities of the policy."""
        heads = head_arrays(encoded)
        found = replay_episodes(inputs.tables, heads, orders_BN, devices_BN, temperature)
        with torch.no_grad():
            decisions = self.decide(inputs, encoded, found)
        return replace(
            found,
            select_log_probs=decisions.select.numpy(),
            place_log_probs=decisions.place.numpy(),
        )

    def decide(
        self, inputs: PolicyInputs, encoded: Encoded, rollouts: Rollouts
    ) -> SteppedDecisions:
        """Returns log-probabilities and entropies of all decisions.

        Activations are worked out again in the backward pass, block by block of states.
        """
        del encoded  # of the empty placement only
        num_columns = rollouts.columns.shape[3]
        choices = (rollouts.orders, rollouts.devices)
        timelines = _timelines(inputs.tables, *choices, num_columns)
        parts = [
            checkpoint(self._judge, inputs, rollouts, timelines, rows, use_reentrant=False)
            for rows in _blocks(rollouts, self.config.hidden)
        ]
        shape = rollouts.orders.shape
        logs = torch.cat([part.devices for part in parts])
        several = torch.from_numpy(rollouts.masks.reshape(-1, logs.shape[1]).sum(axis=1) > 1)
        chosen = logs.gather(1, torch.from_numpy(rollouts.devices).flatten()[:, None])[:, 0]
        rows = torch.nonzero(several)[:, 0]
        entropy = -(logs.exp() * logs).sum(dim=1)
        return SteppedDecisions(
            select=torch.cat([part.select for part in parts]).view(shape),
            place=(chosen * several).view(shape),
            select_entropy=torch.cat([part.select_entropy for part in parts]).view(shape),
            place_entropy=(entropy * several).view(shape),
            select_totals=torch.cat([part.select_total for part in parts]).view(shape),
            place_logs=logs.index_select(0, rows),
            place_rows=rows,
            teacher=torch.cat([part.teacher for part in parts]).view(shape),
        )

    def _roll(
        self,
        inputs: PolicyInputs,
        encoded: Encoded,
        batch: int,
        rng: np.random.Generator,
        temperature: Temperature,
        mode: SampleMode,
    ) -> Rollouts:
        heads, tables = head_arrays(encoded), inputs.tables
        num_ops, num_columns = inputs.assignment.num_ops, len(heads.dynamic)
        spaces = [make_workspace(tables, 1, num_columns) for _ in range(batch)]
        for space in spaces:
            reset(tables, space)
        draws = rng.random((2, num_ops, batch)) if mode is SampleMode.sample else None
        orders = np.zeros((batch, num_ops), dtype=np.int64)
        devices, select, chosen = orders.copy(), np.zeros(orders.shape), np.zeros(orders.shape)
        for step in range(num_ops):
            homes = _stack([space.device for space in spaces])
            starts = _stack([space.start for space in spaces])
            ends = _stack([space.end for space in spaces])
            states = partial_placements(inputs, homes, starts, ends)
            missing = _stack([space.missing for space in spaces])
            scores = self._scores(inputs, states) / temperature.select
            logs = torch.log_softmax(
                scores.masked_fill((missing > 0) | (homes >= 0), -torch.inf), dim=1
            ).numpy()
            ops = _draw(logs, None if draws is None else draws[0, step])
            looks = [
                _look(tables, space, op, step, num_columns)
                for space, op in zip(spaces, ops, strict=True)
            ]
            columns = _stack([look[0] for look in looks]).float()
            masks = _stack([look[1] for look in looks])
            device_logs = (
                self._device_logs(
                    inputs, states, torch.from_numpy(ops), columns, masks, temperature.place
                )
                .double()
                .numpy()
            )
            homes_now = _draw(device_logs, None if draws is None else draws[1, step])
            for space, op, device in zip(spaces, ops, homes_now, strict=True):
                _put(tables, space, op, device)
            rows = np.arange(batch)
            orders[:, step], devices[:, step] = ops, homes_now
            select[:, step], chosen[:, step] = logs[rows, ops], device_logs[rows, homes_now]
        found = replay_episodes(tables, heads, orders, devices, temperature)
        return replace(found, select_log_probs=select, place_log_probs=chosen)

    def _judge(
        self,
        inputs: PolicyInputs,
        rollouts: Rollouts,
        timelines: tuple[Floats, Floats],
        rows: Ints,
    ) -> _Chosen:
        """Works out the choices of steps `rows` (episode * N + step)."""
        num_ops = inputs.assignment.num_ops
        episodes, steps = rows // num_ops, rows % num_ops
        starts, ends = _timelines(
            inputs.tables, rollouts.orders, rollouts.devices, rollouts.columns.shape[3]
        )
        ranks = np.argsort(rollouts.orders, axis=1)
        homes = np.take_along_axis(rollouts.devices, ranks, axis=1)
        before = ranks[episodes] < steps[:, None]
        states = partial_placements(
            inputs,
            torch.from_numpy(np.where(before, homes[episodes], -1)),
            torch.from_numpy(starts[episodes]),
            torch.from_numpy(ends[episodes]),
        )
        candidates = ~before & (rollouts.arrivals[episodes] <= steps[:, None])
        temperature = rollouts.temperature
        scores = self._scores(inputs, states) / temperature.select
        scores = scores.masked_fill(~torch.from_numpy(candidates), MASKED)
        totals = torch.logsumexp(scores, dim=1)
        logs = scores - totals[:, None]
        ties = np.where(candidates, inputs.tables.tie_class, num_ops)
        tied = torch.from_numpy(ties == ties.min(axis=1, keepdims=True))
        ops = torch.from_numpy(rollouts.orders[episodes, steps])
        return _Chosen(
            select=logs.gather(1, ops[:, None])[:, 0],
            select_total=totals,
            select_entropy=-(logs.exp() * logs).sum(dim=1),
            teacher=(logs * tied).sum(dim=1) / tied.sum(dim=1),
            devices=self._device_logs(
                inputs,
                states,
                ops,
                torch.from_numpy(rollouts.columns[episodes, steps]),
                torch.from_numpy(rollouts.masks[episodes, steps]),
                temperature.place,
            ),
        )

    def _scores(self, inputs: PolicyInputs, states: PartialPlacements) -> Tensor:
        """SEL's scores of all ops in every state, S x N, float64; see `SelectPolicy`."""
        sel, graph = self.select, inputs.graph
        embeddings = _embeddings(sel, graph, states)
        down = z_rows(path_sums(embeddings, graph.down_jumps))
        up = z_rows(path_sums(embeddings, graph.up_jumps))
        own = F.leaky_relu(sel.features(graph.nodes), LEAKY_SLOPE)
        own = own[:, None].expand(-1, embeddings.shape[1], -1)
        mixed = sel.mix(torch.cat([own, embeddings, down, up], dim=2))
        learned = sel.score(F.leaky_relu(mixed, LEAKY_SLOPE))[:, :, 0]
        prior = sel.prior(graph).sum() * graph.b_share
        scores: Tensor = learned.double() + prior.double()[:, None]
        return scores.t()

    def _device_logs(
        self,
        inputs: PolicyInputs,
        states: PartialPlacements,
        ops_S: Tensor,
        columns_SDF: Tensor,
        masks_SD: Tensor,
        temperature: float,
    ) -> Tensor:
        """PLC's log-probabilities of the devices for one op per state, S x D."""
        plc, graph = self.place, inputs.graph
        embeddings = _embeddings(plc, graph, states)
        count = torch.arange(len(ops_S))
        head = PlaceHead(
            own=plc.own(torch.cat([graph.nodes[ops_S], embeddings[ops_S, count]], dim=1)),
            placed=plc.placed(embeddings),
            lift=plc.lift.weight.t(),
            device=plc.device(graph.devices),
            dynamic=plc.dynamic.weight.t(),
            output=plc.output.weight[0],
            priors=plc.prior(graph),
        )
        means_SDP = torch.einsum("sdn,nsp->sdp", states.members, head.placed)
        logits = place_logits(head, count, columns_SDF, means_SDP) / temperature
        return torch.log_softmax(logits.masked_fill(~masks_SD, MASKED), dim=1)


def _embeddings(
    policy: SelectPolicy | PlacePolicy, graph: GraphTensors, states: PartialPlacements
) -> Tensor:
    encoder = policy.encoder
    assert isinstance(encoder, StepEncoder)
    return encoder.at(graph, states)


def _stack(arrays: list[np.ndarray]) -> Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(np.stack(arrays))


def _draw(logs_SK: Floats, uniforms_S: Floats | None) -> Ints:
    """Returns a choice per row by its log-probabilities; the likeliest where nothing is drawn."""
    if uniforms_S is None:
        return np.asarray(logs_SK.argmax(axis=1), dtype=np.int64)
    chances = np.exp(logs_SK)
    reached = np.cumsum(chances, axis=1)
    drawn = (reached <= uniforms_S[:, None] * reached[:, -1:]).sum(axis=1)
    last = logs_SK.shape[1] - 1 - (chances[:, ::-1] > 0.0).argmax(axis=1)
    return np.asarray(np.minimum(drawn, last), dtype=np.int64)


def _blocks(rollouts: Rollouts, hidden: int) -> Iterator[Ints]:
    """Yields the rows of all decisions in blocks that fit the cache of the learning pass."""
    batch, num_ops = rollouts.orders.shape
    size = max(1, BLOCK_NUMBERS // (num_ops * hidden))
    for first in range(0, batch * num_ops, size):
        yield np.arange(first, min(first + size, batch * num_ops))


@cached()
def _look(
    t: Tables, s: Workspace, op: int, step: int, num_columns: int
) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Returns copies of the device columns (D x F) and the mask (D) of `op`."""
    set_mask(t, s, op)
    set_columns(t, s, op, step, num_columns)
    return s.columns[:, :num_columns].copy(), s.mask.copy()


@cached()
def _put(t: Tables, s: Workspace, op: int, device: int) -> None:
    set_times(t, s, op, device, device + 1)
    place(t, s, op, device)
    for slot in range(t.out_ptr[op], t.out_ptr[op + 1]):
        s.missing[t.out_dst[slot]] -= 1


@cached()
def _timelines(t: Tables, orders: Ints, devices: Ints, num_columns: int) -> tuple[Floats, Floats]:
    """Returns start and end of every op, B x N each."""
    s = make_workspace(t, 1, num_columns)
    starts, ends = np.zeros(orders.shape), np.zeros(orders.shape)
    for row in range(len(orders)):
        reset(t, s)
        for step in range(orders.shape[1]):
            op, device = orders[row, step], devices[row, step]
            set_mask(t, s, op)
            set_times(t, s, op, device, device + 1)
            place(t, s, op, device)
        starts[row], ends[row] = s.start, s.end
    return starts, ends
