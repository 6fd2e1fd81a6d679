"""Settings from the command line: types, ranges, suggestions."""

import pytest

from doppler.compose import compose_config, flat_keys
from doppler.config import LayoutName, LearnConfig, OnFailure, RunConfig
from doppler.core.errors import ConfigError
from doppler.graph_config import CompareConfig, PlanConfig, SimulateConfig


def test_defaults_are_the_ant_job():
    config = compose_config(LearnConfig, [])
    assert config.job.name == "ppo_ant"
    assert config.layout is LayoutName.auto


def test_group_choice_then_override_then_nested_override():
    words = ["job=ppo_pendulum", "job.learning_rate=0.01", "training.sim_episodes=20000", "seed=3"]
    config = compose_config(LearnConfig, words)
    assert (config.job.env, config.job.learning_rate) == ("pendulum", 0.01)
    assert (config.training.sim_episodes, config.seed) == (20000, 3)


def test_an_override_before_the_group_choice_still_wins():
    config = compose_config(LearnConfig, ["job.learning_rate=0.01", "job=ppo_pendulum"])
    assert (config.job.env, config.job.learning_rate) == ("pendulum", 0.01)


def test_enums_are_chosen_by_name():
    config = compose_config(RunConfig, ["plan=p.json", "run.on_failure=replan"])
    assert config.run.on_failure is OnFailure.replan


@pytest.mark.parametrize(
    ("schema", "word", "message"),
    [
        (LearnConfig, "job=ppo_antt", "job 'ppo_antt' is unknown; did you mean 'ppo_ant'"),
        (LearnConfig, "trainig.sim_episodes=5", "did you mean 'training.sim_episodes'"),
        (LearnConfig, "layout=per_cores", "did you mean 'per_core'"),
        (RunConfig, "run.on_failure=stopp", "did you mean 'stop'"),
        (LearnConfig, "seed=abc", "^seed is a whole number, and it is 'abc'$"),
        (LearnConfig, "seed='a,b'", "^seed is a whole number, and it is 'a,b'$"),
        (LearnConfig, "seed=null", "^seed is a whole number, and it is null$"),
        (LearnConfig, "job.fused=maybe", "^job.fused is true or false, and it is 'maybe'$"),
        (LearnConfig, "job.hidden=[8,a]", r"^job.hidden\[1\] is a whole number, and it is 'a'$"),
        (LearnConfig, "job.hidden=3", r"^job.hidden is a list in brackets, .* it is 3$"),
        (LearnConfig, "results=${oc.env:NOPE}", "^results refers to .* not there: .*NOPE}$"),
        (RunConfig, "run.target_reward=x", "^run.target_reward is a number or null, and it"),
        (LearnConfig, "seed=1,2", "'seed=1,2' gives several"),
        (LearnConfig, "+seed=1", "'.seed=1' begins with a sign"),
        (LearnConfig, "seed=(", r"'seed=\(' cannot be read"),
        (LearnConfig, "training.sim_episodes=0", "sim_episodes is at least 10"),
        (LearnConfig, "training.algorithm=pppo", "did you mean 'ppo'"),
        (LearnConfig, "training.ppo_epochs=0", "ppo_epochs is at least 1, and it is 0"),
        (LearnConfig, "training.ppo_clip=1.5", "ppo_clip lies between 0 and 1, and it is 1.5"),
        (LearnConfig, "training.ppo_clip=nan", "ppo_clip lies between 0 and 1, and it is nan"),
        (LearnConfig, "training.ppo_clip=0.3", "of algorithm=ppo, and algorithm is reinforce"),
        (LearnConfig, "training=3", "'training' is a group of settings"),
        (LearnConfig, "seed", "has no '='"),
        (PlanConfig, "budget=-1", "budget is at least 1"),
    ],
)
def test_mistakes_get_one_sentence(schema, word, message):
    with pytest.raises(ConfigError, match=message):
        compose_config(schema, [word])


def test_every_setting_has_a_line_of_help():
    for schema in (LearnConfig, RunConfig, PlanConfig, CompareConfig, SimulateConfig):
        for key, item in flat_keys(schema).items():
            assert item.metadata.get("help"), key
