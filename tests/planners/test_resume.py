"""A run of the learned planner that is stopped goes on and ends as if nothing had happened."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from doppler.core.errors import ConfigError, FormatError
from doppler.planners.base import Budget
from doppler.planners.learned import TUNED, LearnedPlanner
from doppler.planners.learned_run import AnytimeEvaluator
from doppler.planners.run_state import PREFIX, Checkpointing
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import DualPolicy
from doppler.training.config import (
    ImitationConfig,
    LearnedMode,
    PPOConfig,
    ReinforceConfig,
    Stage,
    Start,
    TrainingConfig,
)
from tests.planners.slow_scorer import SlowScorer
from tests.policies.problems import six_ops

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)
QUICK = TrainingConfig(
    imitation=ImitationConfig(num_updates=3, num_elite_updates=3, batch=2),
    reinforce=ReinforceConfig(batch=4, num_elites=5),
    learn_share=0.1,
    guide_share=0.1,
    restarts=2,
)
LARGE = replace(QUICK, reinforce=ReinforceConfig(batch=12, num_elites=5))
CALLS = 240


class StoppedError(Exception):
    """The power went off."""


def make(folder, every=2, **changes):
    settings = {"mode": LearnedMode.polish, "training": QUICK, "policy_config": TINY} | changes
    return LearnedPlanner(
        checkpoint=None if folder is None else Checkpointing(folder=folder, every=every), **settings
    )


def end(planner, seed=3, calls=CALLS):
    """Everything that a run ends with."""
    pair = six_ops()
    scorer = SlowScorer(*pair)
    rng = np.random.default_rng(seed)
    plan = planner(pair[0], scorer, Budget(calls), rng)
    learner = planner.learner
    return {
        "plan": (plan.placement, plan.priority, plan.source),
        "calls": scorer.num_calls,
        "values": planner.values_ns,
        "elites": [
            (e.value_ns, e.order.tolist(), e.devices.tolist()) for e in learner.elites.elites
        ],
        "weights": {n: t.tolist() for n, t in learner.policy.state_dict().items()},
        "next": [generator.integers(0, 2**60, 3).tolist() for generator in (learner.rng, rng)],
    }


def stop_after(planner, number):
    """Lets the run fail after so many updates; returns what they were."""
    seen = []

    def note(record):
        seen.append(record)
        if len(seen) > number:
            raise StoppedError

    planner.on_record = note
    return seen


def states(folder):
    return list(folder.glob(f"{PREFIX}*"))


def trained():
    return {"policy": DualPolicy(TINY, seed=0)}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(dict, id="polish from scratch"),
        pytest.param(lambda: {"mode": LearnedMode.tune, "training": LARGE}, id="tune from scratch"),
        pytest.param(trained, id="polish of trained policies"),
        pytest.param(
            lambda: {"training": replace(QUICK, reinforce=PPOConfig(batch=4, epochs=2))}, id="PPO"
        ),
    ],
)
def test_stopped_at_any_update_it_ends_in_the_same_plan_bit_for_bit(tmp_path, changes):
    straight = make(None, **changes())
    records = []
    straight.on_record = records.append
    wanted = end(straight)
    assert len(records) > 6
    for number in range(len(records)):
        folder = tmp_path / str(number)
        first = make(folder, **changes())
        before = stop_after(first, number)
        with pytest.raises(StoppedError):
            end(first)
        second, kept, after = make(folder, **changes()), [], []
        second.on_start, second.on_record = kept.append, after.append
        assert end(second) == wanted, number
        assert before[: kept[0]] + after == records
        assert number - 2 < kept[0] <= number


def test_stopped_again_and_again_it_ends_too(tmp_path):
    wanted = end(make(None))
    for attempt in count():
        planner = make(tmp_path, every=1)
        stop_after(planner, 1)  # every start makes one update and dies in the next
        try:
            found = end(planner)
        except StoppedError:
            assert attempt < 40
            continue
        break
    assert attempt > 5
    assert found == wanted


def test_a_run_that_has_ended_gives_its_plan_again_without_work(tmp_path):
    wanted = end(make(tmp_path))
    again = make(tmp_path)
    stop_after(again, 0)
    assert end(again) == wanted
    assert len(states(tmp_path)) == 1


def test_a_run_that_is_killed_while_it_writes_goes_on_from_the_state_before(tmp_path):
    wanted = end(make(None))
    first = make(tmp_path)
    stop_after(first, 5)
    with pytest.raises(StoppedError):
        end(first)
    (state,) = states(tmp_path)
    torn = tmp_path / f".{PREFIX}99.123.new"
    torn.mkdir()
    (torn / "tensors.safetensors").write_bytes(b"half")
    assert end(make(tmp_path)) == wanted
    assert not torn.exists()
    assert not state.exists()


@pytest.mark.parametrize(
    ("changes", "call", "message"),
    [
        ({"mode": LearnedMode.tune}, {}, "mode=polish where this start has tune"),
        (
            {"training": replace(QUICK, reinforce=ReinforceConfig(batch=6, num_elites=5))},
            {},
            r"training\.reinforce\.batch=4 where this start has 6",
        ),
        (
            {"training": replace(QUICK, reinforce=PPOConfig(batch=4, num_elites=5))},
            {},
            r"training\.reinforce",
        ),
        ({}, {"calls": 241}, "budget=240 where this start has 241"),
        ({}, {"seed": 4}, "seed="),
        ({"policy_config": replace(TINY, summary=3)}, {}, "policy="),
        ({"seconds": 5.0}, {}, "seconds=None where this start has 5.0"),
    ],
)
def test_other_settings_are_refused_in_one_sentence(tmp_path, changes, call, message):
    first = make(tmp_path)
    stop_after(first, 3)
    with pytest.raises(StoppedError):
        end(first)
    with pytest.raises(FormatError, match=message) as caught:
        end(make(tmp_path, **changes), **call)
    assert "name another folder" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_states_are_refused(tmp_path):
    first = make(tmp_path)
    stop_after(first, 3)
    with pytest.raises(StoppedError):
        end(first)
    (state,) = states(tmp_path)
    document = state / "bundle.json"
    whole = document.read_text()
    for old, new, message in (
        ('"in_stage":', '"begun":', "content keys"),
        ('"spent": {', '"spent": {"more": 1, "x', "state in .* is damaged|is no JSON"),
        ('"PCG64"', '"MT19937"', "the generator's state in .* is damaged"),
        ('"settings": {', '"settings": [], "x": {', "content keys"),
    ):
        assert old in whole
        document.write_text(whole.replace(old, new))
        with pytest.raises(FormatError, match=message):
            end(make(tmp_path))


def test_two_runs_do_not_share_a_folder(tmp_path):
    first, second, seen = make(tmp_path), make(tmp_path), []

    def start_again(record):
        if not seen:
            seen.append(record)
            with pytest.raises(ConfigError, match="one run at a time") as caught:
                end(second)
            assert "\n" not in str(caught.value)

    first.on_record = start_again
    assert end(first) == end(make(None))
    assert seen
    assert end(second)["plan"] == end(make(None))["plan"]  # the first has left it


def test_a_run_that_fails_leaves_the_folder_to_the_next(tmp_path):
    first = make(tmp_path)
    stop_after(first, 3)
    with pytest.raises(StoppedError):
        end(first)
    assert end(make(tmp_path)) == end(make(None))


def test_progress_after_a_second_start_names_the_part_that_goes_on(tmp_path, monkeypatch):
    first = make(tmp_path, every=1)
    updates = []

    def stop(record):
        updates.append(record.stage)
        if updates.count(Stage.simulation) == 2:
            raise StoppedError

    first.on_record = stop
    with pytest.raises(StoppedError):
        end(first)
    parts = []

    class Noting(AnytimeEvaluator):
        def go_on(self, calls, seconds, part):
            super().go_on(calls, seconds, part)
            parts.append(self.part)

    monkeypatch.setattr("doppler.planners.learned.AnytimeEvaluator", Noting)
    end(make(tmp_path))
    assert parts == ["learn"]


def test_noise_is_not_kept_and_so_a_run_with_it_is_not_gone_on_with(tmp_path):
    pair = six_ops()
    scorer = SlowScorer(*pair)
    scorer.is_noisy = True
    with pytest.raises(ConfigError, match="declares noise cannot be gone on with"):
        make(tmp_path)(pair[0], scorer, Budget(CALLS), np.random.default_rng(0))
    assert scorer.num_calls == 0
    assert not list(tmp_path.iterdir())


def test_states_are_at_least_one_update_apart():
    with pytest.raises(ConfigError, match="at least 1, and are 0"):
        Checkpointing(folder=None, every=0)


def test_restarts_do_not_see_each_others_elites(monkeypatch):
    """Each leg begins with the weights and the elites of before; all legs' elites stay."""
    begun, ended = [], []

    def spied(learner, *arguments, **named):
        weights = {name: value.clone() for name, value in learner.policy.state_dict().items()}
        begun.append(([id(elite) for elite in learner.elites.elites], weights))
        original(learner, *arguments, **named)
        ended.append(list(learner.elites.elites))

    from doppler.planners import stage_two

    original = stage_two.reinforce
    monkeypatch.setattr(stage_two, "reinforce", spied)
    training = replace(QUICK, restarts=3, reinforce=ReinforceConfig(batch=4, num_elites=40))
    planner = make(None, mode=LearnedMode.tune, training=training, start=Start.scratch)
    end(planner, calls=17 + 72)
    assert len(begun) == 3
    assert begun[0][0] == begun[1][0] == begun[2][0]
    for name, value in begun[0][1].items():
        assert torch.equal(value, begun[1][1][name])
        assert torch.equal(value, begun[2][1][name])
    found = {elite.value_ns for elites in ended for elite in elites}
    assert min(found) == planner.learner.elites.best_ns
    assert len(planner.learner.elites) >= max(map(len, ended))


def test_tuned_settings_are_told_apart_from_those_from_scratch(tmp_path):
    first = make(tmp_path, mode=LearnedMode.greedy, training=None, **trained())
    end(first, calls=1)
    with pytest.raises(FormatError, match=r"training\."):
        end(
            make(
                tmp_path, mode=LearnedMode.greedy, training=replace(TUNED, threads=2), **trained()
            ),
            calls=1,
        )
