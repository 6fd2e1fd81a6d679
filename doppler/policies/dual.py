"""Both policies together: sampling, log-probabilities in one pass, and their file.

Legend: B episodes, N placed ops (= decisions), D devices, K head width, R decisions with a choice.
"""

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from doppler.core.errors import ConfigError
from doppler.policies.assignment import Assignment, Ints
from doppler.policies.config import Learned, PolicyConfig, PolicyKind
from doppler.policies.features import GraphTensors, graph_tensors
from doppler.policies.place import MASKED, PlaceHead, PlacePolicy
from doppler.policies.place_kernel import compiled_logits
from doppler.policies.placed_means import placed_means
from doppler.policies.sampling import (
    Rollouts,
    SampleMode,
    Temperature,
    replay_episodes,
    sample_episodes,
)
from doppler.policies.select import SelectPolicy
from doppler.policies.sequence_softmax import sequence_softmax
from doppler.policies.tables import Heads, Tables, make_tables
from doppler.policies.weight_stamp import WeightStamp

# How the initial weight of PLC's prior is dealt to finish, lookahead and partners.
PRIOR_SHARES = (0.4, 0.4, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class PolicyInputs:
    """One problem as the policies see it, made once."""

    assignment: Assignment
    graph: GraphTensors
    tables: Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The terms of one update: `scores` of SEL (N, float64) and the head of PLC, with gradients."""

    scores: Tensor
    head: PlaceHead
    learned: Learned


@dataclass(frozen=True, slots=True)
class _LastEncoding:
    """What a policy said last without gradients, of which inputs and by which weights."""

    inputs: "ref[PolicyInputs]"
    stamp: WeightStamp
    encoded: Encoded


_last_encodings: "WeakKeyDictionary[DualPolicy, _LastEncoding]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Differentiable log-probabilities and entropies of every decision, B x N each.

    Attributes:
        select, place: Log-probability of the choice.
        select_entropy, place_entropy: Entropy of its distribution.
        select_totals: log of SEL's normaliser per step.
        place_logs: Log-probability of every device where there was a choice, R x D.
        place_rows: Index (episode * N + step) of those decisions, R.
    """

    select: Tensor
    place: Tensor
    select_entropy: Tensor
    place_entropy: Tensor
    select_totals: Tensor
    place_logs: Tensor
    place_rows: Tensor


def policy_inputs(assignment: Assignment, config: PolicyConfig) -> PolicyInputs:
    """Returns what the policies read of a problem."""
    return PolicyInputs(
        assignment=assignment,
        graph=graph_tensors(assignment, config.kind),
        tables=make_tables(assignment),
    )


class DualPolicy(nn.Module):
    """SEL and PLC, each with its own encoder; nothing depends on the number of ops or devices."""

    def __init__(self, config: PolicyConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            self.select = SelectPolicy(config)
            self.place = PlacePolicy(config)
        initialise(self, seed)

    def encode(self, inputs: PolicyInputs) -> Encoded:
        """Returns the per-update terms; message passing happens here and only here.

        Without gradients, terms of the inputs encoded last are kept until a weight changes.
        """
        if torch.is_grad_enabled():
            return self._encode(inputs)
        stamp = WeightStamp.of_module(self)
        last = _last_encodings.get(self)
        if last is None or last.inputs() is not inputs or not last.stamp.agrees(stamp):
            last = _LastEncoding(ref(inputs), stamp, self._encode(inputs))
            _last_encodings[self] = last
        return last.encoded

    def _encode(self, inputs: PolicyInputs) -> Encoded:
        return Encoded(
            scores=self.select(inputs.graph),
            head=self.place(inputs.graph),
            learned=self.config.learned,
        )

    def sample(
        self,
        inputs: PolicyInputs,
        num_episodes: int,
        rng: np.random.Generator,
        *,
        temperature: Temperature | None = None,
        mode: SampleMode = SampleMode.sample,
        threads: int = 1,
    ) -> Rollouts:
        """Returns a batch of episodes of the policy as it is."""
        with torch.no_grad():
            encoded = self.encode(inputs)
        temperature = temperature or Temperature()
        return self.episodes(
            inputs, encoded, num_episodes, rng, temperature=temperature, mode=mode, threads=threads
        )

    def replay(
        self,
        inputs: PolicyInputs,
        orders_BN: Ints,
        devices_BN: Ints,
        temperature: Temperature | None = None,
    ) -> Rollouts:
        """Returns given episodes with the columns and log-probabilities of the policy as it is."""
        with torch.no_grad():
            encoded = self.encode(inputs)
        return self.replayed(inputs, encoded, orders_BN, devices_BN, temperature or Temperature())

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
        """Returns a batch of episodes of the policy as it was encoded."""
        return sample_episodes(
            inputs.tables,
            head_arrays(encoded),
            num_episodes,
            rng,
            temperature=temperature,
            mode=mode,
            threads=threads,
        )

    def replayed(
        self,
        inputs: PolicyInputs,
        encoded: Encoded,
        orders_BN: Ints,
        devices_BN: Ints,
        temperature: Temperature,
    ) -> Rollouts:
        """Returns given episodes with the columns and log-probabilities of the encoded policy."""
        return replay_episodes(
            inputs.tables, head_arrays(encoded), orders_BN, devices_BN, temperature
        )

    def decide(self, inputs: PolicyInputs, encoded: Encoded, rollouts: Rollouts) -> Decisions:
        """Returns log-probabilities and entropies of all decisions, with gradients."""
        del inputs  # the episodes hold all that the heads need
        return log_probs(encoded, rollouts)

    def teacher_log_prob(
        self, encoded: Encoded, decisions: Decisions, rollouts: Rollouts
    ) -> Tensor:
        """Returns SEL's mean log-probability of the teacher's candidates, a scalar."""
        labels = torch.from_numpy(rollouts.teacher_select)
        score = (labels * encoded.scores).sum() / rollouts.temperature.select
        return (score - decisions.select_totals.sum()) / labels.numel()


def head_arrays(encoded: Encoded) -> Heads:
    """Returns the per-update terms as arrays for the compiled sampler."""
    head = encoded.head

    def single(values: Tensor) -> np.ndarray:  # type: ignore[type-arg]
        return np.ascontiguousarray(values.detach().numpy(), dtype=np.float32)

    return Heads(
        scores=encoded.scores.detach().numpy(),
        own=single(head.own),
        placed=single(head.placed @ head.lift),
        device=single(head.device),
        dynamic=single(head.dynamic),
        output=single(head.output),
        priors=head.priors.detach().numpy().astype(np.float64),
        fixed_select=encoded.learned is Learned.place_only,
        fixed_place=encoded.learned is Learned.select_only,
    )


def log_probs(encoded: Encoded, rollouts: Rollouts) -> Decisions:
    """Returns log-probabilities and entropies of all decisions in one teacher-forced pass.

    Raises:
        ConfigError: If the episodes are not recorded.
    """
    if not rollouts.is_recorded:
        raise ConfigError(
            "log-probabilities are those of recorded episodes, and these are greedy ones without "
            "columns: replay them first"
        )
    temperature = rollouts.temperature
    orders = torch.from_numpy(rollouts.orders)
    totals, select_entropy = sequence_softmax(
        encoded.scores, rollouts.orders, rollouts.arrivals, temperature.select
    )
    scores = encoded.scores.index_select(0, orders.flatten()).view(orders.shape)
    select = scores / temperature.select - totals
    if encoded.learned is Learned.place_only:
        select, select_entropy = torch.zeros_like(select), torch.zeros_like(select)
    rows, logs = _place_logs(encoded.head, rollouts)
    devices = torch.from_numpy(rollouts.devices).flatten()[rows]
    chosen = logs.gather(1, devices[:, None])[:, 0]
    entropy = -(logs.exp() * logs).sum(dim=1)
    empty = torch.zeros(orders.numel())
    return Decisions(
        select=select,
        place=empty.index_put((rows,), chosen).view(orders.shape),
        select_entropy=select_entropy,
        place_entropy=empty.index_put((rows,), entropy).view(orders.shape),
        select_totals=totals,
        place_logs=logs,
        place_rows=rows,
    )


def _place_logs(head: PlaceHead, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Returns (rows with a choice, log-probabilities R x D)."""
    masks = torch.from_numpy(rollouts.masks).flatten(0, 1)
    rows = torch.nonzero(masks.sum(dim=1) > 1)[:, 0]
    orders, devices = torch.from_numpy(rollouts.orders), torch.from_numpy(rollouts.devices)
    means = placed_means(head.placed, orders, devices, masks.shape[1])
    columns, means = torch.from_numpy(rollouts.columns).flatten(0, 1), means.flatten(0, 1)
    if len(rows) < len(columns):
        columns, means = columns.index_select(0, rows), means.index_select(0, rows)
    logits = compiled_logits(head, orders.flatten()[rows], columns, means)
    logits = (logits / rollouts.temperature.place).masked_fill(~masks[rows], MASKED)
    return rows, torch.log_softmax(logits, dim=1)


def initialise(policy: DualPolicy, seed: int) -> None:
    """Orthogonal matrices, zero biases, priors as configured.

    The improved pair begins as its priors, with output layers of zero: what a random network adds
    to them only makes plans worse. The paper's pair has no priors, its output layers start small.
    """
    start = 0.0 if policy.config.kind is PolicyKind.improved else 0.1
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.dim() == 2:
                small = name.endswith(("score.weight", "output.weight"))
                gain = start if small else 1.0
                nn.init.orthogonal_(parameter, gain=gain, generator=generator)
            else:
                parameter.zero_()
        for prior in (policy.select.prior, policy.place.prior):
            prior.slope.zero_()
        policy.select.prior.base.fill_(_inverse_softplus(policy.config.select_prior))
        for index in range(len(policy.place.prior.base)):
            share = policy.config.place_prior * PRIOR_SHARES[index]
            policy.place.prior.base[index] = _inverse_softplus(share)


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))
