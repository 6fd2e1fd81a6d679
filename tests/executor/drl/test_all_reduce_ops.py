"""Gradients added by an all-reduce whose additions and copies are ops of the job."""

from dataclasses import replace

import numpy as np
import pytest
from small_ppo import SMALL_JOB, interpreted

from doppler.core.errors import ConfigError, ExecutionError, GraphError
from executor.drl.config import PPOJobConfig
from executor.drl.job import PPOJob

SETTINGS = replace(SMALL_JOB, num_shards=2, num_segments=3)
CASES = [
    (name, trainers, groups)
    for trainers, groups, names in [
        (1, 1, "ring tree through_host local_leader multi_ring hybrid(1)"),
        (2, 1, "ring tree through_host local_leader multi_ring hybrid(0) hybrid(2)"),
        (3, 2, "ring tree through_host local_leader"),  # uneven groups
        (4, 2, "ring tree through_host local_leader multi_ring hybrid(1) hybrid(2)"),
        (6, 3, "multi_ring hybrid(1)"),
    ]
    for name in names.split()
]


def run(all_reduce, trainers=4, groups=1, iterations=2, **changes):
    settings = replace(
        SETTINGS,
        all_reduce=all_reduce,
        num_trainers=trainers,
        trainer_groups=groups,
        **changes,
    )
    return interpreted(settings, iterations)


@pytest.mark.parametrize(("name", "trainers", "groups"), CASES)
def test_every_composition_trains_the_policy_of_the_plain_sum(name, trainers, groups):
    plain = run("direct", trainers)
    found = run(name, trainers, groups)
    difference = np.linalg.norm(found.vector() - plain.vector())
    assert difference <= 1e-5 * np.linalg.norm(plain.vector())
    assert {op.kind for op in found.ops} <= {op.kind for op in plain.ops} | {
        "reduce_chunk",
        "forward_chunk",
    }
    # All trainers read the same bits, wherever a sum was formed.
    segments, step = range(SETTINGS.num_segments), "1,1"
    for j in segments:
        made = [
            found.tensor(op.name).tobytes()
            for op in found.ops
            if op.name.startswith((f"adam[{step},{j},", f"adam[{step},{j}]"))
        ]
        assert made
        assert len(set(made)) == 1


def test_sums_are_formed_in_the_order_of_the_ring():
    # Chunk 0 of 3 trainers starts at trainer 1 and ends at trainer 0: ((g1 + g2) + g0).
    found = run("ring", 3, iterations=1)
    g = [found.tensor(f"grad[0,0,{m}]", 0).view(np.float32) for m in range(3)]
    expected = (g[1] + g[2]) + g[0]
    assert found.tensor("reduce[0,0,0,0]").tobytes() == expected.tobytes()
    norm = found.tensor("reduce[0,0,0,0]", 1).view(np.float64)[0]
    assert norm == np.square(expected.astype(np.float64)).sum()


def test_a_copy_of_weights_is_what_the_next_gradient_reads():
    found = run("ring", 4, groups=1)
    reads = {op.name: [source.op for source in op.inputs] for op in found.ops}
    copies = [name for name in reads if name.startswith("forward_chunk")]
    assert copies
    for name in copies:
        (source,) = reads[name]
        assert found.tensor(name).tobytes() == found.tensor(source).tobytes()
        assert source.startswith(("adam", "forward_chunk"))
    used = {source for name in reads if name.startswith("grad") for source in reads[name]}
    assert any(name.startswith("forward_chunk") for name in used)


def test_replicated_optimizers_stay_equal():
    found = run("multi_ring", 4, groups=2)
    names = sorted(name for name in found.groups if name.startswith("optimizer"))
    assert names == [f"optimizer[{j},{m}]" for j in range(3) for m in sorted(homes(j))]
    for j in range(3):
        first, second = (found.groups[f"optimizer[{j},{m}]"].export_state() for m in homes(j))
        for key, array in first.items():
            np.testing.assert_array_equal(array, second[key])


def homes(segment):
    """Where rings across positions (2) end, in groups (0, 2) and (1, 3), by hand.

    Ring 0 has trainers 0 and 3, ring 1 trainers 1 and 2, by position; chunk c ends at position
    c mod 2.
    """
    return [(0, 1), (3, 2)][segment % 2]


def test_unknown_compositions_and_groups_are_refused():
    with pytest.raises(GraphError, match=r"is one of direct, ring, .*'star' is asked"):
        run("star")
    with pytest.raises(GraphError, match="needs groups of one size"):
        run("multi_ring", 3, groups=2)
    with pytest.raises(ConfigError, match="trainer_groups must be at most num_trainers"):
        run("ring", 2, groups=3)
    with pytest.raises(ConfigError, match=r"all_reduce 'auto' is decided where .* are known"):
        run("auto")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("reduce[0,0,0]", "reduce", "with 4 coordinates"),
        ("adam[0,0,0,2]", "adam", r"below \[4, 2, 2, 2\]"),
        ("reduce_chunk[0,0,2,5,1]", "reduce_chunk", "must have coordinates below"),
    ],
)
def test_ops_of_another_composition_are_refused(name, kind, message):
    job = PPOJob(PPOJobConfig(environment="pendulum", all_reduce="ring", num_trainers=2))
    with pytest.raises(ExecutionError, match=message):
        job.bind(name, kind, None, 1)
    with pytest.raises(ExecutionError, match=r"optimizer\[0...1,0...1\]"):
        job.create_group("optimizer[0]", 1)
