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
  plan of a short search in place of the guides, and then do stage II. Policies that did stage II
  imitate what the last search has found in the end. Where the scorer declares noise, nobody does:
  its best plans are lucky ones.

Where the most likely episode does not fit (memory, links), a search for a plan that does comes
first. Policies that have seen nothing begin with stage I, the imitation of the critical-path
teacher (no plan is scored); trained ones, such as the pretrained pair, do not go back to it.

Source: DOPPLER (arXiv 2505.23131) with the changes of docs/design.md.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field

import numpy as np

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.bounds import lower_bounds
from doppler.planners.elite_trial import imitate_on_trial, probe, spare_trial
from doppler.planners.evaluator import KernelScorer
from doppler.planners.guided import explore
from doppler.planners.guides import GuidedSettings
from doppler.planners.learned_run import AnytimeEvaluator, LearnedRun, PlanProgress
from doppler.planners.remeasure import Halving, in_time, is_noisy, settle
from doppler.planners.run_state import (
    Checkpointing,
    RunState,
    StateFolder,
    describe,
    digest,
    flat,
)
from doppler.planners.stage_two import new_legs, run_legs
from doppler.planners.tiny import load_learned
from doppler.policies.ablations import new_policy
from doppler.policies.assignment import Assignment
from doppler.policies.build import build_assignment
from doppler.policies.config import Learned, PolicyConfig
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.pretrained import load_pretrained
from doppler.training.config import (
    NOISY,
    ImitationConfig,
    LearnedMode,
    ReinforceConfig,
    Schedule,
    Stage,
    Start,
    TrainingConfig,
)
from doppler.training.elites import EliteBuffer
from doppler.training.imitation import imitate, imitate_elites
from doppler.training.learner import Learner, torch_threads
from doppler.training.metrics import OnRecord, TrainingRecord

SOURCE = "learned"
STAGE_ONE_TIME = 0.25
"""Part of the time left that stage I and the imitation of elites may take each."""
AGAIN_SHARE = 0.2

Imitate = Callable[[Learner, ImitationConfig, OnRecord | None, Callable[[], float] | None], None]

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
        seconds: Time that a run may take beside its budget of plans, counted once what is compiled
            has been loaded; a search that is begun is ended. With it, equal seeds need not give
            equal plans.
        on_record: Called after every update of stages I and II.
        on_progress: Called whenever the best plan gets better.
        first_plans: Plans of the problem to begin from, a template's for example: they are scored
            within the budget, and the search of mode `polish` walks from them, too.
        policy: Policies to start from; after a call, the trained ones (for stage III).
        learner: After a call, the state of training, elites included.
        checkpoint: Where the state of a run is kept; a second start with the same settings goes on
            from there and ends in the same plan. Not with a scorer that declares noise.
        on_start: Called once before the first step with the number of records that an earlier
            start has made, 0 for a new run.
        clock: Seconds, for `seconds`.
        halving: How the last candidates are measured again where the scorer declares noise
            (`doppler.planners.remeasure`), in a fifth of the budget at most.
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
    checkpoint: Checkpointing | None = None
    on_start: Callable[[int], None] | None = None
    clock: Callable[[], float] = time.monotonic
    halving: Halving = field(default_factory=Halving)
    values_ns: dict[str, int] = field(default_factory=dict)
    _settings: TrainingConfig = field(default_factory=TrainingConfig, init=False, repr=False)
    _state: RunState = field(default_factory=RunState, init=False, repr=False)
    _folder: StateFolder | None = field(default=None, init=False, repr=False)
    _is_noisy: bool = field(default=False, init=False, repr=False)

    def __call__(
        self, problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator
    ) -> Plan:
        """Returns the best plan; see `doppler.planners.base.Planner`.

        Raises:
            CapacityError: If no plan that was scored fits in memory.
            PlanError: If no placement obeys pins, kinds, groups and links, or a first plan is one
                of another problem or has holds.
            ConfigError: If the state of a run is to be kept where the scorer declares noise, or
                another run keeps its state in the same folder.
        """
        is_trained = self.policy is not None or self.start is Start.pretrained
        self._is_noisy = is_noisy(scorer)
        if self._is_noisy and self.checkpoint is not None:
            raise ConfigError(
                "a run whose scorer declares noise cannot be gone on with, as the scorer's "
                "generator is not part of its state: leave out checkpoint"
            )
        untrained = TrainingConfig(reinforce=NOISY) if self._is_noisy else TrainingConfig()
        self._settings = self.training or (TUNED if is_trained else untrained)
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
        first_state, again = rng.bit_generator.state, None
        seconds = self.seconds
        if self._is_noisy and self.mode is not LearnedMode.greedy:
            again = self.halving.within(round(AGAIN_SHARE * budget.calls))
            seconds = None if seconds is None else (1.0 - AGAIN_SHARE) * seconds
        if self.seconds is not None:
            config = self.policy_config if self.policy is None else self.policy.config
            has_kernel = isinstance(scorer, KernelScorer)
            load_learned(LearnedPlanner, self.mode, config, is_trained, has_kernel)
        evaluator = AnytimeEvaluator(
            problem,
            scorer,
            budget if again is None else Budget(budget.calls - again.calls),
            SOURCE,
            seconds=seconds,
            on_progress=self.on_progress,
            clock=self.clock,
        )
        if self.on_progress is not None:
            evaluator.bound_ns = lower_bounds(problem, scorer.costs).best_ns
        learner = self._learner(build_assignment(problem, scorer.costs), rng)
        run = LearnedRun(problem, scorer, evaluator, learner, rng)
        self._state, self._folder = RunState(), None
        if self.checkpoint is not None:
            settings = {
                **describe(problem, scorer, budget, first_state, learner.policy),
                **flat(asdict(self._settings), "training."),
                "training": digest(repr(self._settings)),  # kinds of schedules and of stage II
                "mode": self.mode.value,
                "start": self.start.value,
                "seconds": self.seconds,
                "first_plans": digest(repr(self.first_plans)),
                **self.checkpoint.also,
            }
            self._folder = StateFolder(path=self.checkpoint.folder, settings=settings)
        with nullcontext() if self._folder is None else self._folder.locked():
            self._go_on(run, is_trained)
            if again is not None:
                rounds = in_time(evaluator, again, self.seconds)
                settle(run, scorer.score, rounds, self.first_plans)
            self.values_ns["end"] = evaluator.best_ns
            self._write(run)
        return evaluator.plan()

    def _go_on(self, run: LearnedRun, is_trained: bool) -> None:
        """Does the steps that are left."""
        if self._folder is not None:
            self._state = self._folder.read(run) or self._state
        if self.on_start is not None:
            self.on_start(self._state.records)
        self.values_ns = self._state.values_ns
        steps = self._steps(is_trained)
        for step in range(self._state.step, len(steps)):
            self._state.step = step
            self._write(run)
            steps[step](run)
        self._state.step = len(steps)

    def _steps(self, is_trained: bool) -> tuple[Callable[[LearnedRun], None], ...]:
        """What is done one after the other; a run goes on with the step that it stopped in."""
        first = (self._greedy,) if is_trained else (self._imitate, self._greedy)
        begin = (self._samples, self._guide) if is_trained else (self._first_search,)
        elites = () if is_trained or self._is_noisy else (self._imitate_elites,)
        last = () if self._is_noisy else (self._learn_from_search,)
        by_mode: dict[LearnedMode, tuple[Callable[[LearnedRun], None], ...]] = {
            LearnedMode.greedy: (),
            LearnedMode.sample: (self._sample,),
            LearnedMode.tune: (self._probe, self._reinforce),
            LearnedMode.polish: (*begin, *elites, self._reinforce, self._polish, *last),
        }
        return (*first, *by_mode[self.mode])

    def _imitate(self, run: LearnedRun) -> None:
        """Stage I."""
        self._stage(run, self._settings.imitation.num_updates, imitate)

    def _greedy(self, run: LearnedRun) -> None:
        """The most likely episode and the plans handed over, or else any plan that fits."""
        evaluator = run.evaluator
        run.score_greedy()
        run.score_plans(self.first_plans)
        while evaluator.best_ns >= INFEASIBLE_NS and evaluator.remaining > 0:
            run.search(max(1, evaluator.calls_within(1.0) // 2), ())
            if self.seconds is None or evaluator.is_over:
                break
        self.values_ns["greedy"] = evaluator.best_ns

    def _sample(self, run: LearnedRun) -> None:
        self._part(run, "sample")
        run.sample(run.evaluator.allow(run.evaluator.remaining, 1.0))

    def _probe(self, run: LearnedRun) -> None:
        """Some colder episodes before stage II."""
        self._part(run, "tune")
        probe(run)

    def _samples(self, run: LearnedRun) -> None:
        """Episodes of trained policies, before guides round them."""
        share = self._begin_polish(run)
        calls = min(round(self._state.calls * share), self._settings.most_samples)
        run.sample(run.evaluator.allow(calls, share))

    def _first_search(self, run: LearnedRun) -> None:
        """A search whose best plan policies that have seen nothing imitate."""
        run.search(round(self._begin_polish(run) * self._state.calls), ())

    def _begin_polish(self, run: LearnedRun) -> float:
        """Notes the plans that are left; returns the share of the first part."""
        self._state.calls = run.evaluator.calls_within(1.0)
        self._part(run, "search")
        return self._settings.search_share

    def _polish(self, run: LearnedRun) -> None:
        evaluator, training = run.evaluator, self._settings
        self._part(run, "polish")
        rules = () if evaluator.is_over else run.score_rules()
        learns = training.learn_share > 0.0 and not self._is_noisy
        spared = spare_trial(evaluator.remaining) if learns else 0
        while not evaluator.is_over and evaluator.remaining > spared:
            left = max(1, evaluator.calls_within(1.0 if self.seconds is None else 0.7))
            left = min(left, evaluator.remaining - spared)
            policies = run.seeds(training.num_seeds, SOURCE)
            run.search(left, (*self.first_plans, *policies, *rules))
            if self.seconds is None:
                break

    def _learn_from_search(self, run: LearnedRun) -> None:
        """What the last search has found returns to policies that learn in this run.

        Its best plan is among the elites by then, and the policies imitate these on trial; after a
        deadline nothing is learned. With `learn_share` 0, as trained policies have by default, they
        stay as they are: they are asked for plans and not to be trained, and whoever plans with
        them next starts from the same.
        """
        if self._settings.learn_share > 0.0:
            self._imitate_now(run)

    def _guide(self, run: LearnedRun) -> None:
        """Guides round policies of which both parts learned; an ablation keeps to what it has."""
        self._part(run, "guide")
        share = self._settings.guide_share
        calls = min(round(self._state.calls * share), self._settings.most_guides)
        if run.learner.policy.config.learned is Learned.both:
            allowance = run.evaluator.allow(calls, share)
            explore(run, allowance, GuidedSettings(), run.learner.rng)

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
        """Imitates what the first search has found, where that costs at most half of the rest."""
        if self._state.trial is not None or spare_trial(run.evaluator.remaining):
            self._imitate_now(run)

    def _imitate_now(self, run: LearnedRun) -> None:
        """Imitates the elites on trial; see `doppler.planners.elite_trial`."""
        updates = self._settings.imitation.num_elite_updates
        imitate_on_trial(
            run,
            self._state,
            lambda: self._stage(run, updates, imitate_elites),
            lambda: self._write(run),
        )

    def _reinforce(self, run: LearnedRun) -> None:
        """Stage II; see `doppler.planners.stage_two`."""
        state, is_part = self._state, self.mode is LearnedMode.polish
        if state.legs is None:
            if is_part:
                self._part(run, "learn")
            state.legs = new_legs(run, self._settings, is_part=is_part)
        if state.legs is not None:
            run_legs(run, state, self._settings, self._recorder(run), lambda: self._write(run))

    def _stage(self, run: LearnedRun, num_updates: int, imitate_it: Imitate) -> None:
        """Stage I or the imitation of elites; one that a state was written in goes on."""
        state, spent = self._state, None
        if self.seconds is not None:
            spent = run.evaluator.allow(0, STAGE_ONE_TIME).time_spent
        state.begin_stage(run.learner, Stage.imitation, num_updates)
        if not run.learner.progress.is_finished:
            imitate_it(run.learner, self._settings.imitation, self._recorder(run), spent)
        state.in_stage = False

    def _recorder(self, run: LearnedRun) -> OnRecord:
        """Passes records on, and writes the state after every few of them."""

        def record(record: TrainingRecord) -> None:
            self._state.records += 1
            if self.on_record is not None:
                self.on_record(record)
            if self.checkpoint is not None and self._state.records % self.checkpoint.every == 0:
                self._write(run)

        return record

    def _write(self, run: LearnedRun) -> None:
        if self._folder is not None:
            self._folder.write(run, self._state)
