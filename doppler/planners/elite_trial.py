"""The imitation of elites on trial: policies whose episodes get worse by it go back.

An elite of another basin may be nothing that the features can tell apart. So a few episodes are
scored before and after, within the budget.
"""

from collections.abc import Callable

from doppler.planners.learned_run import LearnedRun
from doppler.planners.run_state import RunState, Trial, weights_of
from doppler.policies.sampling import Temperature
from doppler.training.learner import make_optimizer

PROBE = 16
PROBE_TEMPERATURE = Temperature(select=0.5, place=0.5)
PROBE_TIME = 0.1
"""Part of the time left that a probe may take."""
TRIAL_CALLS = 2 * PROBE


def probe(run: LearnedRun) -> float:
    """Scores a few colder episodes; returns their mean value, infinite for none."""
    return run.sample(run.evaluator.allow(PROBE, PROBE_TIME), PROBE_TEMPERATURE)


def spare_trial(calls: int) -> int:
    """Returns what a search with `calls` plans leaves to a trial after it: at most half."""
    return TRIAL_CALLS if calls >= 2 * TRIAL_CALLS else 0


def imitate_on_trial(
    run: LearnedRun, state: RunState, imitate_them: Callable[[], None], write: Callable[[], None]
) -> None:
    """Imitates elites unless the mean of a few episodes gets worse by it.

    Args:
        run: Policies, elites and scoring.
        state: A trial that a state was written in goes on.
        imitate_them: Makes the updates that are left.
        write: Writes the state.
    """
    learner = run.learner
    if state.trial is None:
        evaluator = run.evaluator
        if evaluator.is_over or evaluator.remaining < TRIAL_CALLS or not len(learner.elites):
            return
        learner.optimizer = make_optimizer(learner.policy)
        state.trial = Trial(weights=weights_of(learner.policy), value_ns=probe(run))
        write()
    imitate_them()
    if probe(run) > state.trial.value_ns:
        learner.policy.load_state_dict(state.trial.weights)
        learner.optimizer = make_optimizer(learner.policy)
    state.trial = None
