"""From settings to jobs: presets, gymnasium ids, classes of the user's own."""

import dataclasses

import pytest

from doppler.compose import compose_config, overridden_keys
from doppler.config import JOBS, LearnConfig, RunConfig
from doppler.core.errors import ConfigError
from doppler.core.job_mode import JobMode
from doppler.jobs import build_job, ppo_config, resolve_job
from doppler.results import write_settings
from doppler.running import _resolved
from executor.drl.importance import Importance
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


DIRECT = {"trainers": "4 parts, 2 segments", "all-reduce": "direct"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, {"mode": "synchronous", **DIRECT}),
        (
            {"all_reduce": "hybrid(1)", "trainer_groups": 2},
            {"trainers": "4 parts in 2 groups, 2 segments", "all-reduce": "hybrid(1)"},
        ),
        (
            {"mode": JobMode.asynchronous, "staleness": 2},
            {"mode": "asynchronous", "staleness": "at most 2", "importance": "none", **DIRECT},
        ),
        (
            {
                "mode": JobMode.asynchronous,
                "staleness": 1,
                "importance": Importance.vtrace,
                "rho_bar": 2.0,
                "num_trainers": 2,
                "independent_trainers": True,
            },
            {
                "mode": "asynchronous",
                "staleness": "at most 1",
                "importance": "vtrace, rho_bar 2, c_bar 1",
                "trainers": "2 independent of each other, 2 segments",
                "all-reduce": "none, trainers are independent",
            },
        ),
        (
            {"mode": JobMode.serving},
            {"mode": "serving", "training": "none, the policy is fixed"},
        ),
    ],
)
def test_the_facts_say_what_runs(changes, told):
    job = build_job(dataclasses.replace(JOBS["ppo_ant"], **changes), seed=0)
    facts = dict(job.facts)
    assert facts | told == facts
    of_some = {"mode", "staleness", "importance", "PPO", "trainers", "all-reduce", "training"}
    expected = set(told) | ({"mode", "PPO"} if facts["mode"] != "serving" else set())
    assert of_some & set(facts) == expected
    assert all(f"{name} {value}" in job.text for name, value in told.items())


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


def resolved(words):
    config = compose_config(LearnConfig, words)
    return resolve_job(config.job, overridden_keys(words)), config.seed


@pytest.fixture
def custom(tmp_path):
    """Words that name a custom job."""
    path = tmp_path / "my_job.py"
    path.write_text(CUSTOM)
    return ["job=custom", f"job.path='{path}'", "job.name=MyJob"]


def test_settings_of_a_custom_class_beat_the_preset_and_the_command_line_beats_both(custom):
    settings, seed = resolved([*custom, "job.gamma=0.9", "seed=5"])
    job = build_job(settings, seed)
    assert job.config.hidden == (24, 24)
    assert job.config.gamma == 0.9
    assert (job.config.horizon, job.config.seed) == (32, 5)
    assert job.config.envs_per_shard == JOBS["custom"].envs_per_shard
    assert job.graph.num_ops > 50


def test_what_the_command_line_sets_wins_even_where_it_equals_the_preset(custom):
    settings, _ = resolved([*custom, f"job.gamma={JOBS['custom'].gamma}", "job.horizon=16"])
    assert (settings.gamma, settings.horizon) == (JOBS["custom"].gamma, 16)


def test_a_resolved_job_is_stored_and_read_back_as_the_same_job(custom, tmp_path):
    settings, seed = resolved([*custom, "job.chunk=32"])
    write_settings(tmp_path, LearnConfig(job=settings, seed=seed), ["doppler", "learn"])
    run = _resolved(RunConfig(), ["doppler", "run", "x"], tmp_path)
    assert ppo_config(run.job, run.seed) == ppo_config(settings, seed)
    assert run.job.chunk == run.job.horizon == 32


@pytest.mark.parametrize(
    ("settings", "words", "message"),
    [
        ('{"gama": 1.0}', [], "did you mean 'gamma'"),
        ('{"seed": 3}', [], "'seed' is none"),
        ('{"gamma": "x"}', [], "'gamma' must be float"),
        ("{}", ["job.env=ant"], "job.env=ant is set beside job.path"),
    ],
)
def test_settings_that_a_custom_job_cannot_have_are_refused(tmp_path, settings, words, message):
    path = tmp_path / "my_job.py"
    path.write_text(f"class MyJob:\n    environment = 'pendulum'\n    settings = {settings}\n")
    with pytest.raises(ConfigError, match=message):
        resolved(["job=custom", f"job.path='{path}'", "job.name=MyJob", *words])


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
    with pytest.raises(ConfigError, match=message):
        build_job(*resolved(words))
