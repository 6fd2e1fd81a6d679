"""Trainers that apply their gradients to shared weights: what their kernels read and write."""

from dataclasses import replace

import numpy as np
import pytest
from small_ppo import SMALL_JOB, interpreted

from doppler.core.errors import ConfigError, ExecutionError
from doppler.core.job_mode import JobMode
from executor.drl.config import PPOJobConfig
from executor.drl.importance import Importance
from executor.drl.learning import gradient_part
from executor.drl.normalizer import initial_moments, merge_moments
from executor.drl.records import BatchStats, merge_stats

SETTINGS = replace(
    SMALL_JOB,
    mode=JobMode.asynchronous,
    staleness=1,
    num_shards=4,
    num_trainers=2,
    num_segments=2,
)
UPDATES = 4


def run(iterations=2, **changes):
    settings = replace(SETTINGS, independent_trainers=True)
    return interpreted(replace(settings, **changes), iterations)


def count_of(tensor):
    """How many updates a segment of shared weights has seen."""
    return int(tensor[-8:].view(np.int64)[0])


def test_every_update_counts_and_the_optimizers_take_all_of_them():
    found = run(3)
    for j in range(2):
        counts = [
            count_of(found.tensor(op.name))
            for op in found.ops
            if op.kind == "adam" and op.name.endswith(f",{j}]")
        ]
        assert sorted(counts) == list(range(2 * 2 * UPDATES + 1, 3 * 2 * UPDATES + 1))
        assert found.groups[f"optimizer[{j}]"].num_steps == 3 * 2 * UPDATES


def test_a_gradient_is_of_the_newest_weights_of_any_trainer():
    found = run(2)
    first = next(op for op in found.ops if op.name == "grad[0,0,0]")
    kernel = found.job.bind("grad[0,0,0]", "grad", None, 1)
    inputs = [found.before[i.op, i.output] for i in first.inputs]
    counts = [count_of(tensor) for tensor in inputs[:2]]
    assert first.inputs[0].op.startswith("adam[1,1,0,")  # its own update
    assert first.inputs[1].op.startswith("adam[1,1,1,")  # the other's
    assert counts[0] != counts[1]
    outputs = [np.zeros(size, np.uint8) for size in found.job.output_bytes("grad[0,0,0]")]
    kernel(2, inputs, outputs)
    read = found.job._context.workspace().parameters
    newest = inputs[int(np.argmax(counts))][:-8].view(np.float32)
    older = inputs[int(np.argmin(counts))][:-8].view(np.float32)
    assert read[: len(newest)].tobytes() == newest.tobytes() != older.tobytes()


def test_one_independent_trainer_is_the_asynchronous_job_bit_for_bit():
    alone = run(3, num_trainers=1)
    together = run(3, num_trainers=1, independent_trainers=False)
    size = 4 * alone.job.sizes.num_parameters
    assert alone.tensor("broadcast[0]")[:size].tobytes() == together.vector().tobytes()


def test_trainers_learn_from_rows_of_their_own():
    config = PPOJobConfig(
        environment="pendulum",
        mode=JobMode.asynchronous,
        staleness=1,
        independent_trainers=True,
        num_shards=4,
        num_trainers=2,
        envs_per_shard=4,
        horizon=8,
        chunk=8,
        minibatches=2,
    )
    first, second = (gradient_part(config, 1, m) for m in (0, 1))
    assert (first.num_shards, first.rows, first.minibatch_rows) == (2, 64, 32)
    assert (first.part, first.num_parts, first.num_sources) == (0, 1, 2)
    assert first.order != second.order  # permutations of their own
    orders = {gradient_part(config, e, m).order for e in range(4) for m in (0, 1)}
    assert len(orders) == 8


def test_the_policy_normalises_by_what_all_trainers_have_seen():
    found = run(1)
    parameters = 4 * found.job.sizes.num_parameters
    moments = [found.tensor("broadcast[0]")[parameters:].view(np.float64)]
    own = found.tensor("collect[0]", 1).view(np.float64)
    # Of the other trainer it read the version before: the initial pseudo-row.
    expected = merge_moments([own, initial_moments(found.job._context.spec.obs_dim)])
    np.testing.assert_array_equal(moments[0], expected)


@pytest.mark.parametrize("importance", list(Importance))
def test_weights_of_old_experience_go_with_it(importance):
    found = run(2, importance=importance)
    assert np.isfinite(found.tensor("broadcast[1]").view(np.float32)[:100]).all()


def test_statistics_of_trainers_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=count) for count in (3, 5)]
    stats = [
        BatchStats(
            advantage_mean=part.mean(),
            advantage_std=part.std(),
            return_std=2.0,
            episode_return_sum=4.0,
            episode_length_sum=3.0,
            episodes=1.0,
            reward_sum=2.5,
            rows=len(part),
        )
        for part in parts
    ]
    both = np.concatenate(parts)
    merged = merge_stats(stats)
    assert merged.advantage_mean == pytest.approx(both.mean())
    assert merged.advantage_std == pytest.approx(both.std())
    assert merged.return_std == pytest.approx(2.0)
    assert (merged.rows, merged.episodes, merged.reward_sum) == (8, 2.0, 5.0)
    assert merge_stats(stats[:1]) == stats[0]
    job = run(1).job
    assert job.recorded() == (("collect[0]", 0), ("collect[1]", 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": JobMode.synchronous, "staleness": 0}, "needs asynchronous mode"),
        ({"all_reduce": "ring"}, "needs asynchronous mode and all_reduce direct"),
        ({"num_shards": 3}, r"num_shards must be a multiple of num_trainers \(2\)"),
        # 12 environments of one step
        (
            {"envs_per_shard": 3, "horizon": 1, "chunk": 1, "minibatches": 4},
            "minibatches must divide the 6 rows of a trainer",
        ),
    ],
)
def test_what_they_cannot_have_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        run(1, **changes)


def test_ops_without_their_trainer_are_refused():
    job = run(1).job
    for name, kind in (("collect", "collect"), ("broadcast", "broadcast"), ("adam[0,0,0]", "adam")):
        with pytest.raises(ExecutionError, match="coordinates in brackets"):
            job.bind(name, kind, None, 1)
    with pytest.raises(ExecutionError, match=r"below \[2, 2, 2, 2\]"):
        job.bind("adam[0,0,2,0]", "adam", None, 1)
