"""The guided planner: a search over what the policies decode, for few simulations on a new problem.

A guide is what one episode is decoded with: a score per op (SEL's), the weights of PLC's terms, and
how much of PLC's network counts; or the scores alone, with devices by earliest finish. The search
starts from the policies as they are, draws guides round them, and then changes the best one a
little at a time: an episode that is decoded anew repairs what a change breaks, where a search over
plans would have to find every repair itself. What is left of the budget anneals the best plan.

No weight of the policies changes. One guide costs one simulation.

Sources: Salimans et al. 2017 (search in the space of parameters); Plappert et al. 2018 (noise that
lasts for an episode); facts of the portfolio study (keys that a list rule decodes).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.annealing import AnnealingSettings, anneal
from doppler.planners.base import Budget
from doppler.planners.bounds import lower_bounds
from doppler.planners.learned_run import AnytimeEvaluator, LearnedRun, PlanProgress
from doppler.planners.list_schedule import ListScheduler
from doppler.planners.watched import run_within
from doppler.policies.assignment import Floats, Ints
from doppler.policies.build import build_assignment
from doppler.policies.dual import DualPolicy, PolicyInputs, head_arrays, policy_inputs
from doppler.policies.pretrained import load_pretrained
from doppler.policies.sampling import (
    MIN_TEMPERATURE,
    SampleMode,
    Temperature,
    plan_arrays,
    sample_episodes,
)
from doppler.policies.tables import Heads
from doppler.training.elites import EliteBuffer
from doppler.training.learner import Learner, torch_threads

SOURCE = "guided"
STRENGTHS = (0.0, 0.5, 1.0)
SCORE_SCALE = 8.0
"""SEL's scores begin as this times b-level over critical path; HEFT's ranks are brought to it."""

_COLD = Temperature(select=MIN_TEMPERATURE, place=MIN_TEMPERATURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedSettings:
    """How the budget is spent, and how far a guide moves.

    Attributes:
        draw_share: Part of the budget for guides drawn round the policies.
        polish_share: Part for annealing from the best plan.
        finish_share: Part of the drawn guides whose devices are those of the earliest finish.
        head_start: The steps go on from the policies' best guide, unless the best one of the
            earliest finish is better by more than this part.
        order_noise: Deviation of the scores of drawn guides (a part of the score where devices are
            those of the earliest finish, as in perturbed HEFT).
        weight_noise: Deviation of the logarithm of the weights of drawn guides.
        step_ops: Largest part of the ops whose score one step changes.
        step_order: Deviation of such a change.
        step_weight: Deviation of the logarithm of a weight that a step changes.
    """

    draw_share: float = 0.5
    polish_share: float = 0.25
    finish_share: float = 0.4
    head_start: float = 0.04
    order_noise: float = 0.3
    weight_noise: float = 1.0
    step_ops: float = 0.4
    step_order: float = 0.5
    step_weight: float = 0.3

    def __post_init__(self) -> None:
        for label in ("draw_share", "polish_share", "finish_share", "step_ops"):
            if not 0.0 <= getattr(self, label) <= 1.0:
                raise ConfigError(f"{label} lies in [0, 1], and it is {getattr(self, label)}")
        if self.draw_share + self.polish_share > 1.0:
            raise ConfigError(
                f"draw_share and polish_share are at most 1 together, and they are "
                f"{self.draw_share} and {self.polish_share}"
            )
        for label in ("head_start", "order_noise", "weight_noise", "step_order", "step_weight"):
            if getattr(self, label) < 0.0:
                raise ConfigError(f"{label} is at least 0, and it is {getattr(self, label)}")


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan that guides round the pretrained policies lead to.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return GuidedPlanner()(problem, scorer, budget, rng)


@dataclass(slots=True, kw_only=True)
class GuidedPlanner:
    """The planner with its settings.

    Attributes:
        policy: Policies to start from; None = the pretrained pair.
        settings: How the budget is spent.
        on_progress: Called whenever the best plan gets better.
    """

    policy: DualPolicy | None = None
    settings: GuidedSettings = GuidedSettings()
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
            explore(run, calls - round(settings.polish_share * calls), settings, rng)
        if evaluator.best_placement_V is not None and evaluator.best_priority_V is not None:
            best = make_plan(
                problem,
                tuple(evaluator.best_placement_V.tolist()),
                tuple(evaluator.best_priority_V.tolist()),
                SOURCE,
            )
            settings_of_anneal = AnnealingSettings(orders=0.0)

            def annealed(
                problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
            ) -> Plan:
                return anneal(problem, scorer, budget, rng, settings_of_anneal, seeds=(best,))

            run_within(annealed, problem, scorer, evaluator, evaluator.remaining, rng)
        return evaluator.plan()


def explore(
    run: LearnedRun, calls: int, settings: GuidedSettings, rng: np.random.Generator
) -> None:
    """Spends `calls` on guides round the policies of a run; better plans become its elites.

    The parts for drawing and stepping are those of the settings without annealing.
    """
    if calls < 1:
        return
    learner = run.learner
    with torch.no_grad():
        heads = head_arrays(learner.policy.encode(learner.inputs))
    walk = _Walk(_Decoder(learner.inputs, heads, run.make_lists()), run, settings, rng)
    last = run.evaluator.remaining - calls
    drawing = settings.draw_share / max(1e-6, 1.0 - settings.polish_share)
    walk.draw(max(1, min(calls, round(drawing * calls))))
    walk.step(run.evaluator.remaining - last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guide:
    """What one episode is decoded with; N placed ops.

    Attributes:
        scores: The op of the largest score among the candidates comes next, N.
        weights: Of PLC's terms.
        strength: Of PLC's network.
        by_finish: True where devices are those of the earliest finish (HEFT's rule).
    """

    scores: Floats
    weights: Floats
    strength: float
    by_finish: bool


class _Decoder:
    """Turns guides into plans."""

    def __init__(self, inputs: PolicyInputs, heads: Heads, lists: ListScheduler) -> None:
        self._inputs, self._heads, self._lists = inputs, heads, lists
        ranks = lists.ranks_V[inputs.assignment.op_ids]
        self.policy = _Guide(
            scores=heads.scores, weights=heads.priors, strength=1.0, by_finish=False
        )
        self.heft = replace(
            self.policy, scores=SCORE_SCALE * ranks / max(1.0, float(ranks.max())), by_finish=True
        )

    def decode(self, guide: _Guide, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Returns (placements_BV, priorities_BV), B = 1."""
        if guide.by_finish:
            keys_BV = np.zeros((1, len(self._lists.ranks_V)))
            keys_BV[0, self._inputs.assignment.op_ids] = guide.scores
            devices_BU, priorities_BV, _ = self._lists.decode(keys_BV)
            return self._lists.mask.placement(devices_BU), priorities_BV
        heads = self._heads._replace(
            scores=guide.scores,
            priors=guide.weights,
            output=(self._heads.output * guide.strength).astype(np.float32),
        )
        rollouts = sample_episodes(
            self._inputs.tables, heads, 1, rng, temperature=_COLD, mode=SampleMode.greedy
        )
        return plan_arrays(self._inputs.assignment, rollouts)


class _Walk:
    """The best guide of either kind so far, and the steps from it."""

    def __init__(
        self,
        decoder: _Decoder,
        run: LearnedRun,
        settings: GuidedSettings,
        rng: np.random.Generator,
    ) -> None:
        self._decoder, self._run = decoder, run
        self._settings, self._rng = settings, rng
        self._best = {
            first.by_finish: (INFEASIBLE_NS, first) for first in (decoder.policy, decoder.heft)
        }

    def draw(self, count: int) -> None:
        """Tries the policies as they are, HEFT, and guides round both."""
        num_finish = round(self._settings.finish_share * count)
        for first, number in (
            (self._decoder.policy, count - num_finish),
            (self._decoder.heft, num_finish),
        ):
            for index in range(number):
                self._try(first if index == 0 else self._drawn(first))

    def step(self, count: int) -> None:
        """Changes a guide `count` times; what is not worse takes its place.

        It is the policies' best guide, unless that of the earliest finish has the head start.
        """
        policy_ns, finish_ns = self._best[False][0], self._best[True][0]
        by_finish = policy_ns > (1.0 + self._settings.head_start) * finish_ns
        for _ in range(count):
            self._try(self._changed(self._best[by_finish][1]))

    def _drawn(self, first: _Guide) -> _Guide:
        rng, settings = self._rng, self._settings
        if first.by_finish:
            scale = settings.order_noise * rng.standard_normal(len(first.scores))
            return replace(first, scores=first.scores * (1.0 + scale))
        noise = settings.order_noise * rng.standard_normal(len(first.scores))
        scale = settings.weight_noise * rng.standard_normal(len(first.weights))
        return replace(
            first,
            scores=first.scores + noise,
            weights=first.weights * np.exp(scale),
            strength=float(rng.choice(STRENGTHS)),
        )

    def _changed(self, guide: _Guide) -> _Guide:
        rng, settings = self._rng, self._settings
        changed = rng.random(len(guide.scores)) < settings.step_ops * rng.random() ** 2
        changed[rng.integers(len(changed))] = True
        noise = settings.step_order * rng.standard_normal(len(changed))
        guide = replace(guide, scores=guide.scores + changed * noise)
        if rng.random() < settings.step_weight:
            scale = settings.step_weight * rng.standard_normal(len(guide.weights))
            guide = replace(guide, weights=guide.weights * np.exp(scale))
        return guide

    def _try(self, guide: _Guide) -> None:
        if self._run.evaluator.is_over:
            return
        plans = self._decoder.decode(guide, self._rng)
        values = self._run.evaluate(*plans)
        value_ns = int(values[0])
        if value_ns < self._best[guide.by_finish][0]:
            self._run.learner.elites.add_plans(*plans, values)
        if value_ns <= self._best[guide.by_finish][0]:
            self._best[guide.by_finish] = (value_ns, guide)
