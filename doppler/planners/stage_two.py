"""Stage II of the learned planner: once, or several times independently of each other.

Every leg begins with the same policies and the same elites and has a part of the episodes and of
the time. The weights at the end of the leg with the best episode stay, and the elites of all legs.
"""

from collections.abc import Callable

from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners.learned_run import Allowance, LearnedRun
from doppler.planners.run_state import Legs, RunState, weights_of
from doppler.policies.assignment import Ints
from doppler.training.config import Stage, TrainingConfig
from doppler.training.learner import make_optimizer
from doppler.training.metrics import OnRecord
from doppler.training.reinforce import Evaluate, reinforce


def new_legs(run: LearnedRun, training: TrainingConfig, *, is_part: bool) -> Legs | None:
    """Returns the legs of stage II, None where there is no room for one update in each.

    Args:
        run: The run, whose best value so far advantages are parts of.
        training: Settings.
        is_part: Stage II is a part of the run (mode `polish`) and not its rest (mode `tune`).
    """
    evaluator, share, calls = run.evaluator, 1.0, run.evaluator.remaining
    if is_part:
        share = training.learn_share / max(1e-6, 1.0 - training.search_share)
        calls = min(round(share * calls), training.most_episodes)
    batch = training.reinforce.batch
    per_leg = calls // training.restarts // batch * batch
    if per_leg == 0 or evaluator.is_over or evaluator.best_ns >= INFEASIBLE_NS:
        return None
    left, weights = evaluator.seconds_left, weights_of(run.learner.policy)
    return Legs(
        per_leg=per_leg,
        reference_ns=evaluator.best_ns,
        until=None if left is None else evaluator.elapsed + share * left,
        leg_ns=INFEASIBLE_NS,
        best_ns=INFEASIBLE_NS,
        start=weights,
        best=weights,
        start_elites=list(run.learner.elites.elites),
    )


def run_legs(
    run: LearnedRun,
    state: RunState,
    training: TrainingConfig,
    on_record: OnRecord,
    write: Callable[[], None],
) -> None:
    """Runs the legs of a state that are left.

    Args:
        run: Policies, elites and scoring.
        state: Has legs; one that a state was written in goes on.
        training: Settings.
        on_record: Called after every update.
        write: Writes the state.
    """
    legs, learner, config = state.legs, run.learner, training.reinforce
    assert legs is not None
    while legs.index < training.restarts:
        if state.begin_stage(learner, Stage.simulation, legs.per_leg // config.batch):
            learner.policy.load_state_dict(legs.start)
            learner.elites.elites = list(legs.start_elites)
            learner.optimizer = make_optimizer(learner.policy)
            legs.leg_ns = INFEASIBLE_NS
            write()
        if not learner.progress.is_finished:
            reinforce(
                learner,
                _evaluate(run, legs),
                config,
                legs.per_leg,
                stage=Stage.simulation,
                reference_ns=legs.reference_ns,
                on_record=on_record,
                spent=_time_spent(run, legs, training.restarts),
            )
        if legs.leg_ns < legs.best_ns:
            legs.best_ns, legs.best = legs.leg_ns, weights_of(learner.policy)
        legs.kept_elites += learner.elites.elites
        legs.index += 1
        state.in_stage = False
    learner.policy.load_state_dict(legs.best)
    if training.restarts > 1:
        learner.elites.elites = []
        learner.elites.offer(legs.kept_elites)
    state.legs = None


def _evaluate(run: LearnedRun, legs: Legs) -> Evaluate:
    """Evaluates, and remembers the best value of the leg."""

    def evaluate(placements_BV: Ints, priorities_BV: Ints) -> Ints:
        values = run.evaluate(placements_BV, priorities_BV)
        legs.leg_ns = min(legs.leg_ns, int(values.min()))
        return values

    return evaluate


def _time_spent(run: LearnedRun, legs: Legs, restarts: int) -> Callable[[], float] | None:
    """Part of a leg's time that has passed: an equal part of what is left for all of them."""
    if legs.until is None:
        return None
    left = max(0.0, legs.until - run.evaluator.elapsed) / (restarts - legs.index)
    return Allowance(run.evaluator, legs.per_leg, left).time_spent
