"""The learned planner under a deadline, with a clock that the scorer and the updates move on."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.core.errors import CapacityError
from doppler.planners import bounds
from doppler.planners.base import Budget
from doppler.planners.learned import TUNED, LearnedPlanner
from doppler.planners.learned_run import Allowance, AnytimeEvaluator, LearnedRun
from doppler.policies.config import PolicyConfig
from doppler.training.config import ImitationConfig, LearnedMode, ReinforceConfig, Start
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import layered

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)
MANY = Budget(1 << 40)


class Clock:
    """Stands still unless it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class TimedScorer(SlowScorer):
    """Every plan takes so many seconds."""

    def __init__(self, problem, costs, clock, seconds):
        super().__init__(problem, costs)
        self._clock, self._seconds = clock, seconds

    def score(self, placements_BV, priorities_BV, bounds_B=None):
        values = super().score(placements_BV, priorities_BV, bounds_B)
        self._clock.now += self._seconds * len(values)
        return values


def run(mode, seconds, *, per_plan, start=Start.pretrained, training=None, budget=MANY):
    pair, clock, records = layered(5), Clock(), []
    learned = LearnedPlanner(
        mode=mode,
        start=start,
        policy_config=TINY,
        training=training,
        seconds=seconds,
        clock=clock,
        on_record=lambda record: records.append((clock.now - 100.0, record)),
    )
    scorer = TimedScorer(*pair, clock, per_plan)
    learned(pair[0], scorer, budget, np.random.default_rng(0))
    return scorer.num_calls, clock.now - 100.0, records, learned


def test_loading_what_is_compiled_does_not_count(monkeypatch):
    clock = Clock()
    pair = layered(5)

    def load(*_):
        clock.now += 50.0

    monkeypatch.setattr("doppler.planners.learned.load_learned", load)
    learned = LearnedPlanner(
        mode=LearnedMode.sample, start=Start.pretrained, seconds=10.0, clock=clock
    )
    scorer = TimedScorer(*pair, clock, 0.1)
    learned(pair[0], scorer, MANY, np.random.default_rng(0))
    assert scorer.num_calls > 50  # 10 s pay for 100 plans, in batches of 32
    assert clock.now - 150.0 == pytest.approx(10.0, abs=3.2)


def test_the_lower_bound_of_the_progress_takes_time_of_the_run(monkeypatch):
    clock, pair = Clock(), layered(5)
    found = bounds.lower_bounds(*pair)

    def slow(*_):
        clock.now += 4.0
        return found

    monkeypatch.setattr("doppler.planners.learned.lower_bounds", slow)
    progress = []
    learned = LearnedPlanner(
        mode=LearnedMode.sample,
        start=Start.pretrained,
        seconds=10.0,
        clock=clock,
        on_progress=progress.append,
    )
    scorer = TimedScorer(*pair, clock, 0.1)
    learned(pair[0], scorer, MANY, np.random.default_rng(0))
    assert clock.now - 100.0 == pytest.approx(10.0, abs=3.2)
    assert progress[-1].gap == progress[-1].best_ns / found.best_ns - 1.0


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("mode", [LearnedMode.sample, LearnedMode.tune, LearnedMode.polish])
def test_every_mode_uses_the_time_and_ends_by_it(mode, start):
    quick = replace(TUNED, imitation=ImitationConfig(num_updates=2, num_elite_updates=2))
    training = replace(quick, reinforce=ReinforceConfig(batch=4), learn_share=0.3)
    calls, seconds, _, _ = run(mode, 10.0, per_plan=0.05, start=start, training=training)
    # one batch, or a search sized by the rate so far, may go a little over
    assert 9.0 <= seconds <= 12.0
    assert calls == round(seconds / 0.05)


def test_samples_and_guides_have_shares_of_the_time():
    # 10 s; a tenth of it for samples (one batch, 32 plans, ends it), a fifth of what is left then
    training = replace(TUNED, most_samples=10**6, most_guides=10**6)
    pair, clock, parts = layered(5), Clock(), {}
    learned = LearnedPlanner(start=Start.pretrained, training=training, seconds=10.0, clock=clock)
    begin = AnytimeEvaluator.begin

    def noted(evaluator, part):
        parts[part] = evaluator.elapsed
        begin(evaluator, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnytimeEvaluator, "begin", noted)
        learned(pair[0], TimedScorer(*pair, clock, 0.01), MANY, np.random.default_rng(0))
    assert parts["guide"] - parts["search"] == pytest.approx(1.0, abs=0.35)
    assert parts["polish"] - parts["guide"] == pytest.approx(0.2 * (10.0 - parts["guide"]), abs=0.1)


def test_schedules_of_stage_two_follow_the_time_to_their_end():
    config = ReinforceConfig(batch=4)
    training = replace(TUNED, reinforce=config)
    _, _, records, _ = run(LearnedMode.tune, 20.0, per_plan=0.05, training=training)
    rates = [record.learning_rate for _, record in records]
    assert rates[0] == pytest.approx(config.learning_rate.start, rel=0.02)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 1.05 * config.learning_rate.end
    # half of the time is half of the schedule, a geometric mean
    middle = min(records, key=lambda row: abs(row[0] - 10.5))[1].learning_rate
    wanted = (config.learning_rate.start * config.learning_rate.end) ** 0.5
    assert middle == pytest.approx(wanted, rel=0.1)


def test_schedules_of_stage_two_follow_the_plans_where_these_end_first():
    config = ReinforceConfig(batch=4)
    training = replace(TUNED, reinforce=config)
    calls, seconds, records, _ = run(
        LearnedMode.tune, 1e6, per_plan=0.05, training=training, budget=Budget(17 + 40)
    )
    assert (calls, len(records)) == (57, 10)
    assert seconds < 10.0
    assert records[-1][1].learning_rate == config.learning_rate.end


def test_restarts_share_the_time():
    training = replace(TUNED, reinforce=ReinforceConfig(batch=4), restarts=2)
    _, _, records, _ = run(LearnedMode.tune, 20.0, per_plan=0.05, training=training)
    (second,) = [at for at, record in records[1:] if record.update == 0]
    assert second == pytest.approx(11.0, abs=1.0)  # after the greedy plan and the probe


def test_a_stage_that_time_has_ended_is_over():
    _, _, _, learned = run(
        LearnedMode.tune, 5.0, per_plan=0.05, training=replace(TUNED, learn_share=0.5)
    )
    assert learned.learner.progress.is_finished
    assert learned.learner.progress.update < 10**3


def test_a_search_for_a_plan_that_fits_has_an_end_under_a_deadline():
    """With time as the only limit the plans that are left are as good as endless."""
    pair, clock = layered(5), Clock()
    scorer = TimedScorer(*pair, clock, 0.1)
    learned = LearnedPlanner(
        mode=LearnedMode.greedy, start=Start.pretrained, seconds=10.0, clock=clock
    )
    searched = []

    def search(run, calls, seeds):
        searched.append(calls)
        clock.now += 0.1 * calls
        scorer.num_calls += calls

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("doppler.planners.learned.load_learned", lambda *_: None)
        patch.setattr(LearnedRun, "score_greedy", lambda run: search(run, 1, ()))
        patch.setattr(LearnedRun, "search", search)
        with pytest.raises(CapacityError):
            learned(pair[0], scorer, MANY, np.random.default_rng(0))
    assert len(searched) > 3
    assert clock.now - 100.0 == pytest.approx(10.0, abs=0.2)


def test_an_allowance_ends_with_its_plans_its_time_or_the_run():
    pair, clock = layered(5), Clock()
    scorer = SlowScorer(*pair)
    evaluator = AnytimeEvaluator(pair[0], scorer, Budget(100), "x", seconds=10.0, clock=clock)
    half = evaluator.allow(40, 0.5)
    assert (half.remaining, half.time_spent()) == (40, 0.0)
    scorer.num_calls, clock.now = 30, 102.0
    assert (half.remaining, half.time_spent()) == (10, 0.4)
    part = half.part(20, 0.5)  # 10 plans, 1.5 s
    assert part.calls == 10
    clock.now = 103.5
    assert (part.remaining, part.time_spent()) == (0, 1.0)
    assert half.remaining == 10
    clock.now = 105.0
    assert half.remaining == 0
    assert Allowance(evaluator, 5, None).remaining == 5
    clock.now = 110.0
    assert Allowance(evaluator, 5, None).remaining == 0
