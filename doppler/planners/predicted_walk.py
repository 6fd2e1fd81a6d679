"""Guides and walks by prediction: what is simulated is the best of many plans that are not.

Many guides are decoded and their makespans predicted (`doppler.planners.calibrated`); the most
promising ones are simulated. Then annealing walks start from the best plans so far, and every step
is judged by the prediction; only where a walk ends is simulated, with its ops in the predicted
order. A walk is short, because a long one ends where the prediction is wrong, and starts again from
plans whose simulated values are known. Every simulation weighs the timelines of the prediction
anew; where walks find nothing better, steps are judged by the simulator.

Sources: Jin 2011 (surrogates in evolutionary computation: pre-selection, and search on the model
between two evaluations); Kirkpatrick et al. 1983 (annealing).
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from doppler.core.errors import ConfigError
from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners.anneal_chains import Walk
from doppler.planners.anneal_core import make_move_tables
from doppler.planners.base import Budget
from doppler.planners.calibrated import CalibratedScorer
from doppler.planners.evaluator import Evaluator
from doppler.planners.guides import Guide, GuideDecoder, GuidedSettings
from doppler.planners.learned_run import LearnedRun
from doppler.planners.mask import Ints, Mask
from doppler.planners.setting_checks import check_at_least, check_budget_parts

STEP_HOT, STEP_COLD = 0.001, 0.0002
"""First and last temperature of steps in the simulator, as parts of the best value."""

DRAWN_AT_ONCE = 16
"""Simulations that one batch of guides is decoded for; the next one knows how these went."""

MOST_KEPT = 256
"""Plans that walks may start from: the best ones."""

STEPS_PER_CHOICE = 64
"""Most steps of a walk per device that a unit may go to and per op with a place in the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSettings:
    """How many predictions one simulation is chosen by.

    Attributes:
        draw_share: Part of the budget for drawn guides.
        polish_share: Part for annealing from the best plan in the simulator.
        candidates: Guides that are decoded for each one that is simulated.
        chains: Walks side by side; each ends in one simulation.
        fewest_steps, steps: Predictions of one walk, drawn anew for every round, short and long
            ones as likely. More find plans that the prediction likes better and the simulator may
            not. Never more than `STEPS_PER_CHOICE` for every choice that the problem has.
        hot, cold: First and last temperature of a walk, as parts of the best value.
        spread: Mean rank of the plan that a walk starts from; the first one of a round starts from
            the best.
        patience: Rounds of walks without a better plan, after which a round goes to steps in the
            simulator: there the predictions do not agree with it.
    """

    draw_share: float = 0.2
    polish_share: float = 0.1
    candidates: int = 8
    chains: int = 8
    fewest_steps: int = 3000
    steps: int = 12000
    hot: float = 0.003
    cold: float = 0.0003
    spread: float = 1.0
    patience: int = 3

    def __post_init__(self) -> None:
        check_budget_parts(self, "draw_share", "polish_share")
        check_at_least(self, 1, "candidates", "chains", "fewest_steps", "patience")
        check_at_least(self, 0.0, "spread")
        if self.steps < self.fewest_steps:
            raise ConfigError(
                f"steps are at least fewest_steps, and they are {self.steps} and "
                f"{self.fewest_steps}"
            )
        if not 0.0 < self.cold <= self.hot:
            raise ConfigError(
                f"temperatures are positive and do not rise, and they are {self.hot} and "
                f"{self.cold}"
            )


class PredictedSearch:
    """The plans simulated so far, and the next ones to simulate.

    Args:
        run: Simulates within the budget and keeps the best plan.
        decoder: Turns guides into plans.
        predictor: Predicts their makespans; learns from what is simulated.
        drawing: How guides are drawn.
        settings: How many predictions a simulation is chosen by.
        rng: Source of randomness.
    """

    def __init__(
        self,
        run: LearnedRun,
        decoder: GuideDecoder,
        predictor: CalibratedScorer,
        drawing: GuidedSettings,
        settings: PredictedSettings,
        rng: np.random.Generator,
    ) -> None:
        self._run, self._decoder, self._predictor = run, decoder, predictor
        self._drawing, self._settings, self._rng = drawing, settings, rng
        self._mask = decoder.lists.mask
        self._moves = make_move_tables(self._mask)
        choices = int(self._mask.allowed_UD[self._mask.movable].sum()) + self._moves.keyed.size
        self._most_steps = STEPS_PER_CHOICE * choices
        self._pool: list[tuple[int, Ints, Ints]] = []
        self._seen: set[bytes] = set()

    @property
    def is_empty(self) -> bool:
        """True if no plan that was simulated fits."""
        return not self._pool

    def draw(self, count: int) -> None:
        """Simulates the policies as they are, HEFT, and the most promising guides round both.

        With a `finish_share` of 1 the policies are not asked at all, with 0 it is HEFT.
        """
        share, decoder = self._drawing.finish_share, self._decoder
        firsts = [
            guide
            for guide, part in ((decoder.policy, 1.0 - share), (decoder.heft, share))
            if part > 0
        ]
        firsts = firsts[:count]
        if not firsts:
            return
        self._simulate(*self._decode(firsts))
        count -= len(firsts)
        while count > 0:
            self._simulate(*self._most_promising(min(count, DRAWN_AT_ONCE)))
            count -= DRAWN_AT_ONCE

    def walk(self, count: int) -> None:
        """Spends `count` simulations on ends of walks, and on steps where walks find nothing.

        After `patience` rounds of walks without a better plan a round goes to steps in the
        simulator, from the best plan; while these help they go on, else walks have another round.
        """
        evaluator, settings = self._run.evaluator, self._settings
        last, patience = evaluator.remaining - count, settings.patience
        while not self.is_empty and not evaluator.is_over and evaluator.remaining > last:
            number, before = min(settings.chains, evaluator.remaining - last), evaluator.best_ns
            if patience > 0:
                self._simulate(*self._walk_ends(number))
                is_better = evaluator.best_ns < before
                patience = settings.patience if is_better else patience - 1
            else:
                self._step(number)
                patience = 0 if evaluator.best_ns < before else 1

    def _step(self, count: int) -> None:
        """Anneals the best plan in the simulator, `count` steps; a better one joins the others."""
        best = self._run.evaluator
        before = best.best_ns
        anneal_best(self._mask, best, count, self._rng)
        if best.best_ns < before and best.best_placement_V is not None:
            assert best.best_priority_V is not None
            plan = best.best_placement_V[None], best.best_priority_V[None]
            self._take(*plan, np.array([best.best_ns], dtype=np.int64))

    def _decode(self, guides: list[Guide]) -> tuple[Ints, Ints]:
        rows = [self._decoder.decode(guide, self._rng) for guide in guides]
        return np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows])

    def _most_promising(self, count: int) -> tuple[Ints, Ints]:
        """Returns (placements, priorities) of the drawn guides of the shortest predictions."""
        number = count * self._settings.candidates
        num_finish = round(self._drawing.finish_share * number)
        decoder = self._decoder
        guides = [
            decoder.drawn(
                decoder.heft if index < num_finish else decoder.policy, self._drawing, self._rng
            )
            for index in range(number)
        ]
        placements, priorities = self._decode(guides)
        values = self._predictor.score(placements, priorities)
        best = np.argsort(values, kind="stable")[:count]
        return placements[best], priorities[best]

    def _walk_ends(self, number: int) -> tuple[Ints, Ints]:
        """Returns (placements, priorities) of the ends of walks from good plans."""
        settings, rng = self._settings, self._rng
        ranks = rng.exponential(settings.spread, size=number).astype(np.int64)
        ranks[0] = 0
        starts = [self._pool[min(rank, len(self._pool) - 1)] for rank in ranks.tolist()]
        placements, priorities = (np.stack([row[k] for row in starts]) for k in (1, 2))
        values = self._predictor.score(placements, priorities)
        low, high = np.log((settings.fewest_steps, settings.steps))
        steps = min(self._most_steps, round(float(np.exp(rng.uniform(low, high)))))
        budget = Budget(number * steps)
        evaluator = Evaluator(self._predictor.problem, self._predictor, budget, "predicted")
        walk = Walk(
            self._moves,
            evaluator,
            rng,
            [
                (value, self._mask.devices_of(placement_V), priority_V)
                for value, (_, placement_V, priority_V) in zip(values.tolist(), starts, strict=True)
            ],
        )
        scale = float(max(1, values[0]))
        walk.run(steps, settings.hot * scale, settings.cold * scale)
        ends = self._mask.placement(walk.devices_CU)
        return ends, self._predictor.in_order_of_start(ends, walk.keys_CV)

    def _simulate(self, placements_BV: Ints, priorities_BV: Ints) -> None:
        """Simulates the plans that are new."""
        rows = self._new_rows(placements_BV, priorities_BV)
        if rows:
            placements_BV, priorities_BV = placements_BV[rows], priorities_BV[rows]
            values_B = self._run.evaluate(placements_BV, priorities_BV)
            self._take(placements_BV, priorities_BV, values_B)

    def _new_rows(self, placements_BV: Ints, priorities_BV: Ints) -> list[int]:
        rows = []
        for row in range(len(placements_BV)):
            plan = placements_BV[row].tobytes() + priorities_BV[row].tobytes()
            key = blake2b(plan, digest_size=16).digest()
            if key not in self._seen:
                self._seen.add(key)
                rows.append(row)
        return rows

    def _take(self, placements_BV: Ints, priorities_BV: Ints, values_B: Ints) -> None:
        """Weighs the predictions by simulated plans; the best ones are starts of walks."""
        self._predictor.observe(placements_BV, priorities_BV, values_B)
        self._pool += [
            (value, placements_BV[row].copy(), priorities_BV[row].copy())
            for row, value in enumerate(values_B.tolist())
            if value < INFEASIBLE_NS
        ]
        self._pool.sort(key=lambda row: row[0])
        del self._pool[MOST_KEPT:]


def anneal_best(mask: Mask, evaluator: Evaluator, calls: int, rng: np.random.Generator) -> None:
    """Anneals an evaluator's best plan in the simulator, `calls` steps; nothing without a plan."""
    placement_V, priority_V = evaluator.best_placement_V, evaluator.best_priority_V
    calls = min(calls, evaluator.remaining)
    if placement_V is None or priority_V is None or calls < 1:
        return
    best_ns = evaluator.best_ns
    start = (best_ns, mask.devices_of(placement_V), priority_V)
    walk = Walk(make_move_tables(mask), evaluator, rng, [start])
    walk.run(calls, STEP_HOT * best_ns, STEP_COLD * best_ns)
