"""The guided planner: what the policies decode, for few simulations on a new problem.

A guide is what one episode is decoded with: a score per op (SEL's), the weights of PLC's terms, and
how much of PLC's network counts; or the scores alone, with devices by earliest finish
(`doppler.planners.guides`). No weight of the policies changes. Where the objective is a makespan,
two timelines predict it, each with the weight that simulations give it
(`doppler.planners.calibrated`): many guides are drawn for each one that is simulated, and
walks by prediction lead from the best plans to the next ones to simulate
(`doppler.planners.predicted_walk`).

Of a period there is no prediction. There guides are drawn round the policies, and the best one is
changed a little at a time (`explore`): an episode that is decoded anew repairs what a change
breaks, where a search over plans would have to find every repair itself. One guide costs one
simulation.

What is left of the budget anneals the best plan.

Sources: Salimans et al. 2017 (search in the space of parameters); Plappert et al. 2018 (noise that
lasts for an episode).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from doppler.core.plan import Plan
from doppler.core.problem import Objective, Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.bounds import lower_bounds
from doppler.planners.calibrated import CalibratedScorer
from doppler.planners.guides import Guide, GuideDecoder, GuidedSettings
from doppler.planners.learned_run import (
    Allowance,
    AnytimeEvaluator,
    LearnedRun,
    PlanProgress,
)
from doppler.planners.predicted import policy_timeline
from doppler.planners.predicted_walk import PredictedSearch, PredictedSettings, anneal_best
from doppler.planners.sent_timeline import sent_timeline
from doppler.policies.build import build_assignment
from doppler.policies.dual import DualPolicy, head_arrays, policy_inputs
from doppler.policies.pretrained import load_pretrained
from doppler.training.elites import EliteBuffer
from doppler.training.learner import Learner, torch_threads

SOURCE = "guided"

_LOGGER = logging.getLogger(__name__)


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan that guides round the pretrained policies lead to.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return GuidedPlanner()(problem, scorer, budget, rng)


def _both_timelines() -> GuidedSettings:
    """Half of the guides with shards that move together, half with transfers that never wait."""
    return GuidedSettings(shared_share=0.5, free_share=0.5)


@dataclass(slots=True, kw_only=True)
class GuidedPlanner:
    """The planner with its settings.

    Attributes:
        policy: Policies to start from; None = the pretrained pair.
        settings: How guides are drawn; the parts of the budget and the steps in it count where
            each guide is simulated: `predicted` is None, the objective is a period, or nothing
            that was drawn fits in memory.
        predicted: How many predictions a simulation is chosen by; None = each guide is simulated.
        on_progress: Called whenever the best plan gets better.
    """

    policy: DualPolicy | None = None
    settings: GuidedSettings = field(default_factory=_both_timelines)
    predicted: PredictedSettings | None = field(default_factory=PredictedSettings)
    on_progress: Callable[[PlanProgress], None] | None = None

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best plan; see `doppler.planners.base.Planner`.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
            PlanError: If no placement obeys pins, kinds, groups and links.
        """
        policy, settings = self.policy or load_pretrained(), self.settings
        evaluator = AnytimeEvaluator(
            problem,
            scorer,
            budget,
            SOURCE,
            bound_ns=lower_bounds(problem, scorer.costs).best_ns if self.on_progress else 0,
            on_progress=self.on_progress,
        )
        assignment = build_assignment(problem, scorer.costs)
        inputs = policy_inputs(assignment, policy.config)
        learner = Learner(policy, inputs, EliteBuffer(assignment, 1), rng)
        run = LearnedRun(problem, scorer, evaluator, learner, rng)
        calls = evaluator.remaining
        with torch_threads(1):
            if self.predicted is None or problem.objective is not Objective.makespan:
                drawn = calls - round(settings.polish_share * calls)
                explore(run, evaluator.allow(drawn, 1.0), settings, rng)
            else:
                polish = round(self.predicted.polish_share * calls)
                _explore_predicted(run, calls - polish, settings, self.predicted, rng)
        anneal_best(run.make_lists().mask, evaluator, evaluator.remaining, rng)
        return evaluator.plan()


def explore(
    run: LearnedRun, allowance: Allowance, settings: GuidedSettings, rng: np.random.Generator
) -> None:
    """Spends an allowance on guides round the policies of a run; better plans become its elites.

    The parts for drawing and stepping are those of the settings without annealing.
    """
    calls = allowance.remaining
    if calls < 1:
        return
    walk = _Walk(_decoder(run), run, settings, rng)
    drawing = settings.draw_share / max(1e-6, 1.0 - settings.polish_share)
    walk.draw(allowance.part(max(1, min(calls, round(drawing * calls))), drawing))
    walk.step(allowance)


def _explore_predicted(
    run: LearnedRun,
    calls: int,
    settings: GuidedSettings,
    predicted: PredictedSettings,
    rng: np.random.Generator,
) -> None:
    """Spends `calls` on the most promising guides and on the ends of walks by prediction.

    Where no guide fits in memory, which predictions do not count, `explore` spends the rest.
    """
    decoder, evaluator = _decoder(run), run.evaluator
    inputs, lists = run.learner.inputs, decoder.lists
    predictor = CalibratedScorer([policy_timeline(inputs, lists), sent_timeline(inputs, lists)])
    search = PredictedSearch(run, decoder, predictor, settings, predicted, rng)
    last = evaluator.remaining - calls
    search.draw(max(1, min(calls, round(predicted.draw_share * evaluator.remaining))))
    if search.is_empty:
        explore(run, evaluator.allow(evaluator.remaining - last, 1.0), settings, rng)
    else:
        search.walk(evaluator.remaining - last)
    weights = ", ".join(f"{weight:.2f}" for weight in predictor.weights.tolist())
    _LOGGER.info(
        "weights of the timelines %s; rank correlation with %d simulations %.2f",
        weights,
        predictor.num_observed,
        predictor.agreement(),
    )


def _decoder(run: LearnedRun) -> GuideDecoder:
    learner = run.learner
    with torch.no_grad():
        heads = head_arrays(learner.policy.encode(learner.inputs))
    return GuideDecoder(learner.inputs, heads, run.make_lists())


class _Walk:
    """The best guide of either kind so far, and the steps from it."""

    def __init__(
        self,
        decoder: GuideDecoder,
        run: LearnedRun,
        settings: GuidedSettings,
        rng: np.random.Generator,
    ) -> None:
        self._decoder, self._run = decoder, run
        self._settings, self._rng = settings, rng
        self._best = {
            first.by_finish: (INFEASIBLE_NS, first) for first in (decoder.policy, decoder.heft)
        }

    def draw(self, allowance: Allowance) -> None:
        """Tries the policies as they are, HEFT, and guides round both."""
        count, finish_share = allowance.calls, self._settings.finish_share
        num_finish = round(finish_share * count)
        for first, number, share in (
            (self._decoder.policy, count - num_finish, 1.0 - finish_share),
            (self._decoder.heft, num_finish, 1.0),
        ):
            part = allowance.part(number, share)
            for index in range(number):
                if part.remaining < 1:
                    break
                self._try(
                    first if index == 0 else self._decoder.drawn(first, self._settings, self._rng)
                )

    def step(self, allowance: Allowance) -> None:
        """Changes a guide as often as allowed; what is not worse takes its place.

        It is the policies' best guide, unless that of the earliest finish has the head start.
        """
        policy_ns, finish_ns = self._best[False][0], self._best[True][0]
        by_finish = policy_ns > (1.0 + self._settings.head_start) * finish_ns
        for _ in range(allowance.remaining):
            if allowance.remaining < 1:
                break
            self._try(self._changed(self._best[by_finish][1]))

    def _changed(self, guide: Guide) -> Guide:
        rng, settings = self._rng, self._settings
        changed = rng.random(len(guide.scores)) < settings.step_ops * rng.random() ** 2
        changed[rng.integers(len(changed))] = True
        noise = settings.step_order * rng.standard_normal(len(changed))
        guide = replace(guide, scores=guide.scores + changed * noise)
        if rng.random() < settings.step_weight:
            scale = settings.step_weight * rng.standard_normal(len(guide.weights))
            guide = replace(guide, weights=guide.weights * np.exp(scale))
        return guide

    def _try(self, guide: Guide) -> None:
        if self._run.evaluator.is_over:
            return
        plans = self._decoder.decode(guide, self._rng)
        values = self._run.evaluate(*plans)
        value_ns = int(values[0])
        if value_ns < self._best[guide.by_finish][0]:
            self._run.learner.elites.add_plans(*plans, values)
        if value_ns <= self._best[guide.by_finish][0]:
            self._best[guide.by_finish] = (value_ns, guide)
