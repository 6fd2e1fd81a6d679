"""Under noise the plan that is best on average is returned, not the luckiest one."""

import numpy as np
import pytest

from doppler.core.errors import ConfigError
from doppler.planners import annealing
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.planners.learned_run import AnytimeEvaluator, LearnedRun
from doppler.planners.remeasure import Halving, best_on_average, settle
from doppler.policies.config import PolicyConfig
from doppler.training.config import (
    NOISY,
    ImitationConfig,
    LearnedMode,
    ReinforceConfig,
    Start,
    TrainingConfig,
)
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import layered

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)
QUICK = TrainingConfig(
    imitation=ImitationConfig(num_updates=2, num_elite_updates=2),
    reinforce=ReinforceConfig(batch=4),
)
SMALL = Halving(((6, 1), (3, 2), (2, 4)))


class LuckyScorer(SlowScorer):
    """Lognormal noise of 30 %; keeps what it gave, and counts what is true."""

    is_noisy = True

    def __init__(self, problem, costs, seed):
        super().__init__(problem, costs)
        self._rng = np.random.default_rng(seed)
        self.seen = []

    def true(self, plan):
        (value,) = SlowScorer(self.problem, self.costs).score([plan.placement], [plan.priority])
        return value

    def score(self, placements_BV, priorities_BV, bounds_B=None):
        values = np.array(super().score(placements_BV, priorities_BV))
        found = np.rint(values * self._rng.lognormal(0.0, 0.3, len(values))).astype(np.int64)
        self.seen += found.tolist()
        return found


def test_a_lucky_candidate_is_found_out_and_all_that_are_left_are_measured_equally_often():
    # three plans of 100, 110 and 120 ns; the second one was lucky once and is so again at first
    true, counts = np.array([100, 110, 120]), np.zeros(3, dtype=int)

    def measure(placements, priorities):
        rows = placements[:, 0]
        lucky = np.where((rows == 1) & (counts[rows] == 0), 50, 0)
        counts[rows] += 1
        return true[rows] - lucky

    placements = np.arange(3)[:, None]
    best, mean = best_on_average(measure, placements, placements, Halving(((3, 1), (2, 7))))
    assert (best, mean) == (0, 100)  # the second has 8 measurements with a sum of 830
    assert counts.tolist() == [8, 8, 1]
    assert best_on_average(measure, placements, placements, Halving(((2, 1),)))[0] == 0
    assert counts.tolist() == [9, 9, 1]


def test_rounds_shrink_to_the_plans_that_may_be_scored():
    assert Halving().calls == 800
    assert Halving().within(4000) == Halving()
    for calls in (1, 7, 47, 48, 50, 300, 799):
        fewer = Halving().within(calls)
        assert fewer is None or 0 < fewer.calls <= calls
    assert Halving().within(0) is None
    assert Halving(((4, 2), (2, 2))).within(6) == Halving(((2, 2), (1, 2)))


@pytest.mark.parametrize("rounds", [(), ((2, 1), (3, 1)), ((0, 1),), ((1, 0),)])
def test_rounds_that_are_none_are_refused(rounds):
    with pytest.raises(ConfigError, match="rounds have at least 1 candidate"):
        Halving(rounds)


@pytest.mark.parametrize("mode", [LearnedMode.sample, LearnedMode.tune, LearnedMode.polish])
def test_a_scorer_that_declares_noise_has_the_last_candidates_measured_again(mode):
    pair = layered(5)
    scorer = LuckyScorer(*pair, seed=1)
    learned = LearnedPlanner(mode=mode, policy_config=TINY, training=QUICK, halving=SMALL)
    plan = learned(pair[0], scorer, Budget(200), np.random.default_rng(0))
    assert scorer.num_calls <= 200
    again = scorer.seen[-SMALL.calls :]
    lucky = min(scorer.seen[: -SMALL.calls])
    assert learned.values_ns["end"] > lucky  # a mean, not the least of them
    assert min(again) < learned.values_ns["end"] < max(again)
    assert scorer.true(plan) < 1.35 * learned.values_ns["end"]


def test_plans_that_are_measured_again_are_better_than_lucky_ones():
    """Mean true value over seeds, with the same plans scored before the end."""
    pair, means = layered(5), {}
    for noisy in (True, False):
        values = []
        for seed in range(100, 112):
            scorer = LuckyScorer(*pair, seed=seed)
            scorer.is_noisy = noisy
            learned = LearnedPlanner(
                mode=LearnedMode.sample, policy_config=TINY, training=QUICK, halving=SMALL
            )
            calls = 160 if noisy else 160 - SMALL.calls
            plan = learned(pair[0], scorer, Budget(calls), np.random.default_rng(seed))
            values.append(scorer.true(plan))
        means[noisy] = np.mean(values)
    assert means[True] < means[False]


def test_a_run_that_has_seen_noise_learns_as_noise_needs_it():
    pair = layered(5)
    noisy = LearnedPlanner(mode=LearnedMode.tune, policy_config=TINY)
    noisy(pair[0], LuckyScorer(*pair, seed=0), Budget(30), np.random.default_rng(0))
    assert noisy._settings.reinforce is NOISY
    trained = LearnedPlanner(mode=LearnedMode.sample, start=Start.pretrained)
    trained(pair[0], LuckyScorer(*pair, seed=0), Budget(30), np.random.default_rng(0))
    assert trained._settings.reinforce is not NOISY


def test_a_plan_to_begin_from_is_measured_again_however_unlucky_it_was():
    pair = layered(7)
    searched = LearnedPlanner(start=Start.pretrained)
    good = searched(pair[0], SlowScorer(*pair), Budget(800), np.random.default_rng(1))

    class Unlucky(LuckyScorer):
        """Measures the good plan as ten times as long, once."""

        def __init__(self):
            super().__init__(*pair, seed=0)
            self.met = 0

        def score(self, placements_BV, priorities_BV, bounds_B=None):
            values = np.array(SlowScorer.score(self, placements_BV, priorities_BV))
            for row, (placement, priority) in enumerate(
                zip(placements_BV, priorities_BV, strict=True)
            ):
                plan = (tuple(map(int, placement)), tuple(map(int, priority)))
                if plan == (good.placement, good.priority):
                    self.met += 1
                    values[row] *= 10 if self.met == 1 else 1
            return values

    scorer = Unlucky()
    learned = LearnedPlanner(
        mode=LearnedMode.sample,
        policy_config=TINY,
        training=QUICK,
        halving=SMALL,
        first_plans=(good,),
    )
    found = learned(pair[0], scorer, Budget(100), np.random.default_rng(0))
    assert scorer.met == 1 + sum(times for _, times in SMALL.rounds)
    assert scorer.true(found) <= scorer.true(good)


def test_the_best_plan_so_far_is_a_candidate_and_no_plan_twice():
    pair = layered(5)
    scorer = SlowScorer(*pair)
    evaluator = AnytimeEvaluator(pair[0], scorer, Budget(100), "x")
    learner = LearnedPlanner(mode=LearnedMode.greedy, policy_config=TINY, training=QUICK)
    first = learner(pair[0], scorer, Budget(1), np.random.default_rng(0))
    run = LearnedRun(pair[0], scorer, evaluator, learner.learner, np.random.default_rng(0))
    run.score_plans((first,))
    best = annealing.plan(pair[0], SlowScorer(*pair), Budget(300), np.random.default_rng(1))
    run.score_plans((best,))  # as a list rule's: no elite
    measured = []

    def measure(placements, priorities):
        measured.append(np.stack([placements, priorities], axis=1))
        return np.array(scorer.score(placements, priorities))

    settle(run, measure, Halving(((6, 1),)), (first, best))
    (candidates,) = measured
    assert candidates[0].tolist() == [list(best.placement), list(best.priority)]
    assert candidates[1].tolist() == [list(first.placement), list(first.priority)]
    known = [row.tobytes() for row in candidates]
    assert known.count(known[0]) == known.count(known[1]) == 1
    assert len(candidates) == 6


@pytest.mark.parametrize("start", list(Start))
def test_nobody_imitates_lucky_plans(start, monkeypatch):
    def refuse(*_):
        raise AssertionError("imitated")

    monkeypatch.setattr("doppler.planners.learned.imitate_elites", refuse)
    pair = layered(5)
    scorer = LuckyScorer(*pair, seed=1)
    learned = LearnedPlanner(start=start, policy_config=TINY, training=QUICK, halving=SMALL)
    learned(pair[0], scorer, Budget(300), np.random.default_rng(0))
    scorer.is_noisy = False
    with pytest.raises(AssertionError, match="imitated"):
        learned(pair[0], scorer, Budget(300), np.random.default_rng(0))
