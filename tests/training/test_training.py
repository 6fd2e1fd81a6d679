import numpy as np
import pytest
import torch

from doppler.core.errors import ConfigError
from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.policies.build import build_assignment
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.sampling import SampleMode, plan_arrays
from doppler.training.config import (
    ImitationConfig,
    ReinforceConfig,
    Schedule,
    Stage,
    TrainingConfig,
)
from doppler.training.elites import EliteBuffer
from doppler.training.imitation import imitate, imitate_elites
from doppler.training.learner import PRIOR_RATE, Learner
from doppler.training.reinforce import leave_one_out, reinforce
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import layered, six_ops

# Priors near zero: what the policies know they have learned.
BLANK = PolicyConfig(
    hidden=8, rank=4, rounds=2, head_hidden=8, summary=3, select_prior=0.01, place_prior=0.01
)


def make_learner(pair, config=BLANK, seed=0):
    assignment = build_assignment(*pair)
    return Learner(
        DualPolicy(config, seed),
        policy_inputs(assignment, config),
        EliteBuffer(assignment, 8),
        np.random.default_rng(seed),
    )


def make_evaluate(pair):
    scorer = SlowScorer(*pair)

    def evaluate(placements, priorities):
        return np.asarray(scorer.score(placements, priorities), dtype=np.int64)

    return evaluate


def mean_value(learner, evaluate, count=64):
    rollouts = learner.policy.sample(learner.inputs, count, np.random.default_rng(99))
    return evaluate(*plan_arrays(learner.inputs.assignment, rollouts)).mean()


def test_imitation_loss_falls_and_the_student_becomes_the_teacher():
    learner = make_learner(six_ops())
    records = []
    config = ImitationConfig(num_updates=80, learning_rate=Schedule(3e-2, 1e-2))
    imitate(learner, config, records.append)
    assert records[-1].loss < 0.6 * records[0].loss
    greedy = learner.policy.sample(
        learner.inputs, 1, np.random.default_rng(0), mode=SampleMode.greedy
    )
    # b-levels fall along a, b, m0, m1, join, tail (100 + 80 > 90 + 70).
    assert greedy.orders[0].tolist()[0] == 0
    replayed = learner.policy.replay(learner.inputs, greedy.orders, greedy.devices)
    chosen = replayed.teacher[0, np.arange(6), greedy.devices[0]]
    assert chosen.all()
    assert all(record.simulations == 0 for record in records)


def test_reinforce_beats_random_placement():
    pair = six_ops()
    learner, evaluate = make_learner(pair), make_evaluate(pair)
    before = mean_value(learner, evaluate)
    config = ReinforceConfig(
        batch=16, learning_rate=Schedule(2e-2, 5e-3), temperature=Schedule(1.0, 1.0), elite_batch=0
    )
    reinforce(learner, evaluate, config, 16 * 40, stage=Stage.simulation, reference_ns=int(before))
    after = mean_value(learner, evaluate)
    # a 100, m0 80 on one device and b 90, m1 70 on the other; join and tail: 20 + 60 + 50.
    best = 100 + 80 + 60 + 50
    assert learner.elites.best_ns == best
    assert after - best < 0.4 * (before - best)


def test_imitating_elites_makes_them_likely():
    pair = layered(1)
    learner, evaluate = make_learner(pair), make_evaluate(pair)
    rollouts = learner.policy.sample(learner.inputs, 1, learner.rng)
    plans = plan_arrays(learner.inputs.assignment, rollouts)
    learner.elites.add_plans(*plans, evaluate(*plans))
    records = []
    config = ImitationConfig(num_elite_updates=60, learning_rate=Schedule(2e-2, 1e-2))
    imitate_elites(learner, config, records.append)
    assert records[-1].loss < 0.5 * records[0].loss
    empty = make_learner(pair)
    imitate_elites(empty, config, records.append)
    assert len(records) == 60


def test_schedules_reach_the_optimiser_and_the_sampler():
    pair = six_ops()
    learner, evaluate = make_learner(pair), make_evaluate(pair)
    config = ReinforceConfig(
        batch=4, learning_rate=Schedule(1e-2, 1e-4), temperature=Schedule(2.0, 0.5)
    )
    records, rates = [], []

    def watch(record):
        records.append(record)
        rates.append([group["lr"] for group in learner.optimizer.param_groups])

    reinforce(
        learner, evaluate, config, 20, stage=Stage.simulation, reference_ns=300, on_record=watch
    )
    assert len(records) == 5
    assert rates[0] == pytest.approx([1e-2, PRIOR_RATE * 1e-2])
    assert rates[-1] == pytest.approx([1e-4, PRIOR_RATE * 1e-4])
    assert [records[0].learning_rate, records[-1].learning_rate] == pytest.approx([1e-2, 1e-4])
    assert [records[0].temperature, records[-1].temperature] == pytest.approx([2.0, 0.5])
    assert records[-1].episodes == records[-1].simulations == 20
    assert records[0].select_entropy > records[-1].select_entropy  # colder sampling, same weights


def test_entropy_weight_acts():
    pair = six_ops()
    entropies = []
    for weight in (1e-12, 1.0):  # the first is below Adam's epsilon
        learner = make_learner(pair, PolicyConfig(hidden=8, head_hidden=8))
        config = ReinforceConfig(
            batch=8,
            elite_batch=0,
            learning_rate=Schedule(1e-2, 1e-2),
            temperature=Schedule(1.0, 1.0),
            entropy_weight=Schedule(weight, weight),
        )
        records = []
        reinforce(
            learner,
            lambda placements, _: np.full(len(placements), 300, dtype=np.int64),
            config,
            8 * 30,
            stage=Stage.simulation,
            reference_ns=300,
            on_record=records.append,
        )
        entropies.append(records[-1].place_entropy + records[-1].select_entropy)
    assert entropies[1] > entropies[0] + 0.05


def test_leave_one_out_by_hand():
    # Costs 1, 2, 3 of reference 100: means of the others 2.5, 2, 1.5; deviation sqrt(2/3).
    advantages = leave_one_out(np.array([100, 200, 300]), 100, 0.01)
    assert advantages == pytest.approx(np.array([1.5, 0.0, -1.5]) / np.sqrt(2 / 3))
    # The deviation is at least the floor, and infeasible plans count as 4 references.
    assert leave_one_out(np.array([100, 100]), 100, 0.01).tolist() == [0.0, 0.0]
    high = leave_one_out(np.array([100, INFEASIBLE_NS]), 100, 10.0)
    assert high == pytest.approx([0.3, -0.3])


def test_a_stage_that_was_stopped_goes_on_and_a_finished_one_begins_again():
    pair = six_ops()
    learner, evaluate = make_learner(pair), make_evaluate(pair)
    config = ReinforceConfig(batch=4)

    class StoppedError(Exception):
        pass

    def stop(record):
        if record.update == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        reinforce(
            learner, evaluate, config, 20, stage=Stage.simulation, reference_ns=9, on_record=stop
        )
    updates = []
    for _ in range(2):
        reinforce(
            learner,
            evaluate,
            config,
            20,
            stage=Stage.simulation,
            reference_ns=9,
            on_record=lambda record: updates.append(record.update),
        )
    assert updates == [2, 3, 4, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("calls", [1, 2, 40, 400])
def test_learned_planner_keeps_to_its_budget_and_returns_its_best(calls):
    pair = layered(3, num_layers=4, groups=1)
    scorer = SlowScorer(*pair)
    seen = []
    score = scorer.score

    def watch(placements, priorities, bounds=None):
        values = score(placements, priorities, bounds)
        scorer.num_calls += 0
        seen.extend(values)
        return values

    scorer.score = watch
    planner = LearnedPlanner(
        policy_config=BLANK,
        training=TrainingConfig(
            imitation=ImitationConfig(num_updates=3, num_elite_updates=3),
            reinforce=ReinforceConfig(batch=8),
        ),
    )
    plan = planner(pair[0], scorer, Budget(calls), np.random.default_rng(1))
    (value,) = score([plan.placement], [plan.priority])
    assert 1 <= len(seen) <= calls
    assert value == min(seen)
    assert planner.policy is planner.learner.policy
    assert torch.get_num_threads() >= 1


def test_settings_out_of_range_are_refused():
    for make, message in (
        (lambda: Schedule(0.0, 1.0), "between positive values"),
        (lambda: ReinforceConfig(batch=1), "batch is at least 2, and it is 1"),
        (lambda: ReinforceConfig(elite_weight=-1.0), "elite_weight is at least 0"),
        (lambda: ReinforceConfig(max_gradient=0.0), "max_gradient is positive"),
        (lambda: ImitationConfig(batch=0), "batch is at least 1"),
        (lambda: TrainingConfig(threads=0), "threads is at least 1"),
        (lambda: TrainingConfig(search_share=1.5), r"search_share lies in \[0, 1\]"),
        (lambda: TrainingConfig(search_share=0.7, learn_share=0.7), "at most 1 together"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()
