"""Guides and walks by prediction: what is simulated is the best of many plans that are not.

Many guides are decoded and their makespans predicted (`doppler.planners.predicted`); the most
promising ones are simulated. Then annealing walks start from the best plans so far, and every step
is judged by the prediction; only where a walk ends is simulated, with its ops in the predicted
order. A walk is short, because a long one ends where the prediction is wrong, and starts again from
plans whose simulated values are known.

Sources: Jin 2011 (surrogates in evolutionary computation: pre-selection, and search on the model
between two evaluations); Kirkpatrick et al. 1983 (annealing).
"""

from dataclasses import dataclass

import numpy as np

from doppler.core.errors import ConfigError
from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners.anneal_chains import Walk
from doppler.planners.anneal_core import make_move_tables
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.guides import Guide, GuideDecoder, GuidedSettings
from doppler.planners.learned_run import LearnedRun
from doppler.planners.mask import Ints
from doppler.planners.predicted import TimelineScorer

MOST_STALE_ROUNDS = 3


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
            not.
        hot, cold: First and last temperature of a walk, as parts of the best value.
        spread: Mean rank of the plan that a walk starts from; the first one of a round starts from
            the best.
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

    def __post_init__(self) -> None:
        for label in ("candidates", "chains", "fewest_steps"):
            if getattr(self, label) < 1:
                raise ConfigError(f"{label} is at least 1, and it is {getattr(self, label)}")
        if self.steps < self.fewest_steps:
            raise ConfigError(
                f"steps are at least fewest_steps, and they are {self.steps} and "
                f"{self.fewest_steps}"
            )
        for label in ("draw_share", "polish_share"):
            if not 0.0 <= getattr(self, label) <= 1.0:
                raise ConfigError(f"{label} lies in [0, 1], and it is {getattr(self, label)}")
        if self.draw_share + self.polish_share > 1.0:
            raise ConfigError(
                f"draw_share and polish_share are at most 1 together, and they are "
                f"{self.draw_share} and {self.polish_share}"
            )
        if not 0.0 < self.cold <= self.hot:
            raise ConfigError(
                f"temperatures are positive and do not rise, and they are {self.hot} and "
                f"{self.cold}"
            )
        if self.spread < 0.0:
            raise ConfigError(f"spread is at least 0, and it is {self.spread}")


class PredictedSearch:
    """The plans simulated so far, and the next ones to simulate.

    Args:
        run: Simulates within the budget and keeps the best plan.
        decoder: Turns guides into plans.
        predictor: Predicts their makespans.
        drawing: How guides are drawn.
        settings: How many predictions a simulation is chosen by.
        rng: Source of randomness.
    """

    def __init__(
        self,
        run: LearnedRun,
        decoder: GuideDecoder,
        predictor: TimelineScorer,
        drawing: GuidedSettings,
        settings: PredictedSettings,
        rng: np.random.Generator,
    ) -> None:
        self._run, self._decoder, self._predictor = run, decoder, predictor
        self._drawing, self._settings, self._rng = drawing, settings, rng
        self._mask = decoder.lists.mask
        self._moves = make_move_tables(self._mask)
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
        number = count * self._settings.candidates
        if number == 0:
            return
        num_finish = round(share * number)
        guides = [
            decoder.drawn(
                decoder.heft if index < num_finish else decoder.policy, self._drawing, self._rng
            )
            for index in range(number)
        ]
        placements, priorities = self._decode(guides)
        values = self._predictor.score(placements, priorities)
        best = np.argsort(values, kind="stable")[:count]
        self._simulate(placements[best], priorities[best])

    def walk(self, count: int) -> None:
        """Simulates the ends of `count` walks; fewer where walks end nowhere new."""
        last, stale = self._run.evaluator.remaining - count, 0
        while not self.is_empty and not self._run.evaluator.is_over and stale < MOST_STALE_ROUNDS:
            left = self._run.evaluator.remaining - last
            if left < 1:
                return
            ends = self._walk_ends(min(self._settings.chains, left))
            stale = 0 if self._simulate(*ends) else stale + 1

    def _decode(self, guides: list[Guide]) -> tuple[Ints, Ints]:
        rows = [self._decoder.decode(guide, self._rng) for guide in guides]
        return np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows])

    def _walk_ends(self, number: int) -> tuple[Ints, Ints]:
        """Returns (placements, priorities) of the ends of walks from good plans."""
        settings, rng = self._settings, self._rng
        self._pool.sort(key=lambda row: row[0])
        ranks = rng.exponential(settings.spread, size=number).astype(np.int64)
        ranks[0] = 0
        starts = [self._pool[min(rank, len(self._pool) - 1)] for rank in ranks.tolist()]
        placements, priorities = (np.stack([row[k] for row in starts]) for k in (1, 2))
        values = self._predictor.score(placements, priorities)
        low, high = np.log((settings.fewest_steps, settings.steps))
        steps = round(float(np.exp(rng.uniform(low, high))))
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

    def _simulate(self, placements_BV: Ints, priorities_BV: Ints) -> bool:
        """Simulates the plans that are new; True if there was one."""
        rows = []
        for row in range(len(placements_BV)):
            key = placements_BV[row].tobytes() + priorities_BV[row].tobytes()
            if key not in self._seen:
                self._seen.add(key)
                rows.append(row)
        if not rows:
            return False
        values = self._run.evaluate(placements_BV[rows], priorities_BV[rows])
        for row, value in zip(rows, values.tolist(), strict=True):
            if value < INFEASIBLE_NS:
                self._pool.append((value, placements_BV[row].copy(), priorities_BV[row].copy()))
        return True
