"""From settings to jobs: presets, gymnasium ids, classes of the user's own."""

import pytest

from doppler.compose import compose_config
from doppler.config import JOBS, LearnConfig
from doppler.core.errors import ConfigError
from doppler.jobs import build_job, ppo_config
from executor.drl.presets import PRESETS

CUSTOM = '''
class MyJob:
    """A pendulum with a network and settings of its own."""

    environment = "pendulum"
    settings = {"hidden": [24, 24], "gamma": 0.97, "horizon": 32}
'''


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_a_job_with_the_same_settings(name):
    assert ppo_config(JOBS[name], seed=0) == PRESETS[name]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_graph_and_kernels_agree_on_every_output(name):
    from executor.drl.job import PPOJob

    job = build_job(JOBS[name], seed=0)
    kernels = PPOJob(job.config)
    for op in job.graph.ops:
        assert kernels.output_bytes(op.name) == op.outputs


def test_a_gymnasium_id_is_enough():
    config = compose_config(LearnConfig, ["job=gym", "job.env=InvertedPendulum-v5"])
    assert ppo_config(config.job, 0).environment == "gym:InvertedPendulum-v5"


def test_settings_of_a_custom_class_beat_defaults_and_the_command_line_beats_both(tmp_path):
    path = tmp_path / "my_job.py"
    path.write_text(CUSTOM)
    words = ["job=custom", f"job.path='{path}'", "job.name=MyJob", "job.gamma=0.9", "seed=5"]
    config = compose_config(LearnConfig, words)
    job = build_job(config.job, config.seed)
    assert job.config.hidden == (24, 24)
    assert job.config.gamma == 0.9
    assert (job.config.horizon, job.config.seed) == (32, 5)
    assert job.graph.num_ops > 50


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job=custom", "job.path=absent.py", "job.name=MyJob"], "absent.py"),
        (["job=custom", "job.path=absent.py"], "set job.name=ClassName"),
        (["job=custom"], "a job names its environment"),
        (["job=gym", "job.env=NoSuchEnv-v9"], "NoSuchEnv-v9"),
        (["job.env=antt"], "ant"),
        (["job.minibatches=7"], "minibatches"),
        (["job.chunk=5"], "chunk must divide horizon 16, but is 5"),
    ],
)
def test_mistakes_get_one_sentence(words, message):
    config = compose_config(LearnConfig, words)
    with pytest.raises(ConfigError, match=message):
        build_job(config.job, config.seed)
