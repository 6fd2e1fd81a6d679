"""The learned planner: SEL and PLC on one problem; search and policy feed each other.

What it does depends on its mode, each being an anytime planner (the best plan ever scored is
returned, never the last):

- `greedy`: the most likely episode, one simulation.
- `sample`: the best of the budget's episodes.
- `tune`: stage II on this problem (REINFORCE in the simulator), no search.
- `polish`: a few episodes and guides round the policies (`doppler.planners.guided`), and then the
  portfolio's search from the plans of all list rules and the best two of the policies: more would
  leave the rules fewer of the first walks. Trained policies do stage II only if `learn_share` says
  so: the search makes more of the same time. Policies that have seen nothing imitate the best
  plan of a short search in place of the guides, and then do stage II.

Where the most likely episode does not fit (memory, links), a search for a plan that does comes
first. Policies that have seen nothing begin with stage I, the imitation of the critical-path
teacher (no plan is scored); trained ones, such as the pretrained pair, do not go back to it.

Source: DOPPLER (arXiv 2505.23131) with the changes of docs/design.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.bounds import lower_bounds
from doppler.planners.guided import explore
from doppler.planners.guides import GuidedSettings
from doppler.planners.learned_run import AnytimeEvaluator, LearnedRun, PlanProgress
from doppler.policies.ablations import new_policy
from doppler.policies.assignment import Assignment, Ints
from doppler.policies.build import build_assignment
from doppler.policies.config import Learned, PolicyConfig
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.pretrained import load_pretrained
from doppler.policies.sampling import Temperature
from doppler.training.config import (
    LearnedMode,
    ReinforceConfig,
    Schedule,
    Stage,
    Start,
    TrainingConfig,
)
from doppler.training.elites import EliteBuffer
from doppler.training.imitation import imitate, imitate_elites
from doppler.training.learner import Learner, make_optimizer, torch_threads
from doppler.training.metrics import OnRecord
from doppler.training.reinforce import reinforce

SOURCE = "learned"
PROBE = 16
PROBE_TEMPERATURE = Temperature(select=0.5, place=0.5)

# Trained policies move in small steps, or a few noisy updates undo what they know.
TUNED = TrainingConfig(
    reinforce=ReinforceConfig(
        batch=16, learning_rate=Schedule(2e-3, 5e-4), temperature=Schedule(0.4, 0.2)
    ),
    learn_share=0.0,  # mode `tune` is stage II and knows no share
    guide_share=0.2,
    most_guides=200,
    most_samples=32,
    most_episodes=160,
    num_seeds=2,
)


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of the learned planner, which starts from the pretrained pair.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return LearnedPlanner(start=Start.pretrained)(problem, scorer, budget, rng)


@dataclass(slots=True, kw_only=True)
class LearnedPlanner:
    """A planner that keeps what it learned.

    Attributes:
        mode: How the budget is spent.
        start: Where the policies come from if none are handed over.
        policy_config: Shape of policies that start from scratch.
        training: Shares and settings of the parts; None = the default, with smaller steps and
            colder samples where the policies are trained already (`TUNED`).
        seconds: Time that a run may take beside its budget of plans; a part that is begun is
            ended. With it, equal seeds need not give equal plans.
        on_record: Called after every update of stages I and II.
        on_progress: Called whenever the best plan gets better.
        first_plans: Plans of the problem to begin from, a template's for example: they are scored
            within the budget, and the search of mode `polish` walks from them, too.
        policy: Policies to start from; after a call, the trained ones (for stage III).
        learner: After a call, the state of training, elites included.
        values_ns: After a call, the best value at the end of each part.
    """

    mode: LearnedMode = LearnedMode.polish
    start: Start = Start.scratch
    policy_config: PolicyConfig = field(default_factory=PolicyConfig)
    training: TrainingConfig | None = None
    seconds: float | None = None
    on_record: OnRecord | None = None
    on_progress: Callable[[PlanProgress], None] | None = None
    first_plans: tuple[Plan, ...] = ()
    policy: DualPolicy | None = None
    learner: Learner | None = None
    values_ns: dict[str, int] = field(default_factory=dict)
    _settings: TrainingConfig = field(default_factory=TrainingConfig, init=False, repr=False)

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best plan; see `doppler.planners.base.Planner`.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
            PlanError: If no placement obeys pins, kinds, groups and links, or a first plan is one
                of another problem or has holds.
        """
        is_trained = self.policy is not None or self.start is Start.pretrained
        self._settings = self.training or (TUNED if is_trained else TrainingConfig())
        with torch_threads(self._settings.threads):
            return self._plan(problem, scorer, budget, rng, is_trained)

    def _plan(
        self,
        problem: Problem,
        scorer: Scorer,
        budget: Budget,
        rng: np.random.Generator,
        is_trained: bool,
    ) -> Plan:
        bound_ns = lower_bounds(problem, scorer.costs).best_ns if self.on_progress else 0
        evaluator = AnytimeEvaluator(
            problem,
            scorer,
            budget,
            SOURCE,
            seconds=self.seconds,
            bound_ns=bound_ns,
            on_progress=self.on_progress,
        )
        learner = self._learner(build_assignment(problem, scorer.costs), rng)
        run = LearnedRun(problem, scorer, evaluator, learner, rng)
        if not is_trained:
            imitate(learner, self._settings.imitation, self.on_record)
        run.score_greedy()
        run.score_plans(self.first_plans)
        if evaluator.best_ns >= INFEASIBLE_NS:
            run.search(max(1, evaluator.remaining // 2), ())
        self.values_ns = {"greedy": evaluator.best_ns}
        if self.mode is LearnedMode.sample:
            self._part(run, "sample")
            run.sample(evaluator.remaining)
        elif self.mode is LearnedMode.tune:
            self._part(run, "tune")
            run.sample(min(PROBE, evaluator.remaining), PROBE_TEMPERATURE)
            self._reinforce(run, 1.0)
        elif self.mode is LearnedMode.polish:
            self._polish(run, is_trained)
        self.values_ns["end"] = evaluator.best_ns
        return evaluator.plan()

    def _polish(self, run: LearnedRun, is_trained: bool) -> None:
        evaluator, training = run.evaluator, self._settings
        calls = evaluator.calls_within(1.0)
        self._part(run, "search")
        if is_trained:
            run.sample(min(round(calls * training.search_share), training.most_samples))
            self._part(run, "guide")
            self._guide(run, min(round(calls * training.guide_share), training.most_guides))
        else:
            run.search(round(calls * training.search_share), ())
            self._imitate_elites(run)
        self._part(run, "learn")
        self._reinforce(run, training.learn_share / max(1e-6, 1.0 - training.search_share))
        self._part(run, "polish")
        rules = () if evaluator.is_over else run.score_rules()
        while not evaluator.is_over:
            left = max(1, evaluator.calls_within(1.0 if self.seconds is None else 0.7))
            policies = run.seeds(training.num_seeds, SOURCE)
            run.search(left, (*self.first_plans, *policies, *rules))
            if self.seconds is None:
                break

    def _guide(self, run: LearnedRun, calls: int) -> None:
        """Guides round policies of which both parts learned; an ablation keeps to what it has."""
        if run.learner.policy.config.learned is Learned.both:
            explore(run, min(calls, run.evaluator.remaining), GuidedSettings(), run.learner.rng)

    def _part(self, run: LearnedRun, name: str) -> None:
        self.values_ns[f"before {name}"] = run.evaluator.best_ns
        run.evaluator.begin(name)

    def _learner(self, assignment: Assignment, rng: np.random.Generator) -> Learner:
        policy = self.policy
        if policy is None and self.start is Start.pretrained:
            policy = load_pretrained()
        if policy is None:
            policy = new_policy(self.policy_config, seed=int(rng.integers(2**31)))
        elites = EliteBuffer(assignment, self._settings.reinforce.num_elites)
        inputs = policy_inputs(assignment, policy.config)
        own = np.random.default_rng(int(rng.integers(2**63)))
        self.policy = policy
        self.learner = Learner(policy, inputs, elites, own, self._settings.threads)
        return self.learner

    def _imitate_elites(self, run: LearnedRun) -> None:
        """Imitates the elites, unless the policy's episodes get worse by it.

        An elite of another basin may be nothing that the features can tell apart.
        """
        learner, config = run.learner, self._settings.imitation
        if run.evaluator.remaining < 4 * PROBE or not len(learner.elites):
            return
        before = _weights(learner.policy)
        value = run.sample(PROBE, PROBE_TEMPERATURE)
        imitate_elites(learner, config, self.on_record)
        if run.sample(PROBE, PROBE_TEMPERATURE) > value:
            learner.policy.load_state_dict(before)

    def _reinforce(self, run: LearnedRun, share: float) -> None:
        """Stage II, `restarts` times from the policy as it is; the best end is kept."""
        config, restarts = self._settings.reinforce, self._settings.restarts
        calls = run.evaluator.calls_within(share)
        if self.mode is LearnedMode.polish:
            calls = min(calls, self._settings.most_episodes)
        per_leg = calls // restarts // config.batch * config.batch
        if per_leg == 0 or run.evaluator.best_ns >= INFEASIBLE_NS:
            return
        learner = run.learner
        reference = run.evaluator.best_ns
        start = _weights(learner.policy)
        best_ns, best_state = INFEASIBLE_NS, start
        for _ in range(restarts):
            learner.policy.load_state_dict(start)
            learner.optimizer = make_optimizer(learner.policy)
            leg = _LegBest(run)
            reinforce(
                learner,
                leg.evaluate,
                config,
                per_leg,
                stage=Stage.simulation,
                reference_ns=reference,
                on_record=self.on_record,
            )
            if leg.best_ns < best_ns:
                best_ns, best_state = leg.best_ns, _weights(learner.policy)
        learner.policy.load_state_dict(best_state)


def _weights(policy: DualPolicy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


class _LegBest:
    """Evaluates, and remembers the best value of one leg."""

    def __init__(self, run: LearnedRun) -> None:
        self._run = run
        self.best_ns = INFEASIBLE_NS

    def evaluate(self, placements_BV: Ints, priorities_BV: Ints) -> Ints:
        values = self._run.evaluate(placements_BV, priorities_BV)
        self.best_ns = min(self.best_ns, int(values.min()))
        return values
