"""The PPO job, run op by op: forms, shards, parts and moves do not change what is learned."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from interpreter import Interpreter, job_ops

from doppler.core.errors import ConfigError, ExecutionError
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize
from executor.drl.config import PPOJobConfig
from executor.drl.job import PPOJob, load_job
from executor.drl.op_names import KINDS
from executor.drl.plain import PlainPPO
from executor.drl.presets import PRESETS, preset

SMALL = PPOJobConfig(
    num_shards=2, envs_per_shard=6, horizon=8, chunk=4, hidden=(32, 16), epochs=2, num_trainers=2
)


def training_tensors(run: Interpreter) -> list[np.ndarray]:
    """Returns the tensors of the last iteration that do not depend on the form."""
    names = [op.name for op in run.ops if op.kind not in ("rollout", "infer", "env_step")]
    return [array for (op, _), array in sorted(run.before.items()) if op in names]


@pytest.mark.parametrize("environment", ["ant", "pendulum"])
def test_fused_and_unrolled_give_equal_bits(environment):
    fused = Interpreter(replace(SMALL, environment=environment)).run(3)
    unrolled = Interpreter(replace(SMALL, environment=environment, fused=False)).run(3)
    pairs = zip(training_tensors(fused), training_tensors(unrolled), strict=True)
    assert all(a.tobytes() == b.tobytes() for a, b in pairs)


def test_the_length_of_a_chunk_does_not_matter():
    runs = [Interpreter(replace(SMALL, chunk=chunk)).run(2) for chunk in (2, 8)]
    assert runs[0].vector().tobytes() == runs[1].vector().tobytes()


@pytest.mark.parametrize(("trainers", "segments"), [(1, 2), (2, 1), (4, 1), (4, 3)])
def test_parts_and_segments_change_results_by_rounding_only(trainers, segments):
    reference = Interpreter(replace(SMALL, num_trainers=1, num_segments=1)).run(1)
    other = Interpreter(replace(SMALL, num_trainers=trainers, num_segments=segments)).run(1)
    difference = np.linalg.norm(other.vector() - reference.vector())
    assert difference <= 1e-5 * np.linalg.norm(reference.vector())


def gradient(config: PPOJobConfig) -> np.ndarray:
    """Returns the whole gradient of the first minibatch."""
    run = Interpreter(config).run(1)
    pieces = [run.tensor(f"reduce[0,0,{j}]") for j in range(config.num_segments)]
    return np.concatenate(pieces).view(np.float32)


def test_gradients_agree_across_shards_and_parts():
    few = gradient(replace(SMALL, num_shards=2, envs_per_shard=6, num_trainers=1))
    many = gradient(replace(SMALL, num_shards=6, envs_per_shard=2, num_trainers=3))
    assert np.linalg.norm(few - many) <= 1e-5 * np.linalg.norm(few)


def test_sharding_keeps_the_rollouts():
    def rows(config):
        run = Interpreter(config).run(1)
        pieces = [run.tensor(f"advantage[{k}]") for k in range(config.num_shards)]
        return np.concatenate(pieces).view(np.float32)

    few = rows(replace(SMALL, num_shards=2, envs_per_shard=6))
    many = rows(replace(SMALL, num_shards=6, envs_per_shard=2))
    np.testing.assert_allclose(few, many, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("environment", ["ant", "pendulum"])
def test_moving_every_group_half_way_changes_no_bit(environment):
    config = replace(SMALL, environment=environment)
    stays, moved = Interpreter(config).run(2), Interpreter(config)
    for name, group in stays.groups.items():
        moved.groups[name].import_state(group.export_state())
    moved.before, moved.iteration = stays.before, stays.iteration
    for _ in range(3):
        stays.step()
        moved.step()
        for key, tensor in stays.before.items():
            assert tensor.tobytes() == moved.before[key].tobytes(), key


def test_every_output_byte_is_written_or_padding():
    run = Interpreter(SMALL).run(1)
    for op in ("advantage[0]", "grad[0,0,0]", "reduce[0,0,0]", "adam[0,0,0]", "broadcast"):
        values = run.tensor(op).view(np.float32)
        assert not np.isnan(values).any(), op  # buffers start as NaN


@pytest.mark.parametrize("fused", [True, False])
def test_sizes_are_those_of_the_kernels_and_state(fused):
    config = replace(SMALL, fused=fused)
    run = Interpreter(config).run(1)
    sizes = run.job.sizes
    for op in run.ops:
        at = tuple(int(part) for part in op.name[len(op.kind) :].strip("[]").split(",") if part)
        size = sizes.of(op.kind, at)
        assert size.outputs == run.job.output_bytes(op.name)
        assert size.flop >= 0
        assert size.bytes_moved >= sum(size.outputs)
    shard = run.groups["env[0]"].export_state()
    assert sum(array.nbytes for array in shard.values()) <= sizes.env_state_bytes
    for j in range(config.num_segments):
        state = run.groups[f"optimizer[{j}]"].export_state()
        assert sum(array.nbytes for array in state.values()) == sizes.optimizer_state_bytes[j]


def test_the_plain_loop_is_the_same_job():
    run, plain = Interpreter(SMALL).run(2), PlainPPO(SMALL, 1)
    plain.step()
    theirs, ours = plain.step(), run.metrics()
    difference = np.linalg.norm(plain.parameters() - run.vector())
    assert difference <= 1e-3 * np.linalg.norm(run.vector())
    assert theirs.policy_loss == pytest.approx(ours.policy_loss, rel=1e-2, abs=1e-4)
    assert theirs.value_loss == pytest.approx(ours.value_loss, rel=1e-2)
    assert theirs.mean_reward == pytest.approx(ours.mean_reward, rel=1e-3)
    plain.close()


def test_metrics_count_episodes_and_unscaled_returns():
    config = replace(PRESETS["ppo_pendulum"], num_shards=1, envs_per_shard=4)
    metrics = Interpreter(config).run(1).metrics()
    assert metrics.rows == 4 * 64
    assert metrics.mean_reward == 1.0
    assert metrics.episodes > 0
    assert metrics.mean_return == metrics.mean_length  # one per step, not scaled
    assert metrics.iteration == 0


def test_metrics_without_losses_are_nan():
    run = Interpreter(SMALL).run(1)
    metrics = run.job.metrics(0, run.tensor("collect"), [])
    assert np.isnan(metrics.policy_loss)
    assert metrics.rows == 96


def test_a_new_process_would_build_the_same_job():
    again = load_job(json.loads(json.dumps(SMALL.to_dict())))
    first, second = PPOJob(SMALL), again
    for op, output in (("broadcast", 0), ("adam[1,1,1]", 0), ("rollout[1,1]", 1), ("collect", 1)):
        assert first.initial(op, output, -1).tobytes() == second.initial(op, output, -1).tobytes()
    assert first.initial("rollout[0,0]", 0, -1) is None


def test_default_job_has_84_ops():
    assert len(job_ops(PPOJobConfig())) == 84


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("grad[0,0]", "grad", "must be named 'grad' with 3 coordinates"),
        ("grad[0,0,9]", "grad", r"must have coordinates below \[2, 2, 2\]"),
        ("reduce[0,0,0]", "grad", "must be named 'grad'"),
        ("x[0]", "gradd", "did you mean 'grad'"),
        ("Grad 1", "grad", "must be named like"),
        ("adam[0,0,0]", "adam", "needs the state of its optimizer group"),
        ("rollout[0,0]", "rollout", "needs the state of its env group"),
    ],
)
def test_foreign_ops_are_refused(name, kind, message):
    with pytest.raises(ExecutionError, match=message):
        PPOJob(SMALL).bind(name, kind, None, 1)


@pytest.mark.parametrize("name", ["env[2]", "optimizer[2]", "agent[0]", "env"])
def test_foreign_groups_are_refused(name):
    with pytest.raises(ExecutionError, match="does not belong to this job"):
        PPOJob(SMALL).create_group(name, 1)


def test_a_shard_refuses_the_state_of_another():
    group = PPOJob(SMALL).create_group("env[0]", 1)
    with pytest.raises(ExecutionError, match="'running_return' must have shape"):
        group.import_state({})


def test_every_kind_has_an_op():
    kinds = {op.kind for fused in (True, False) for op in job_ops(replace(SMALL, fused=fused))}
    assert kinds | {"reduce_chunk", "forward_chunk"} == set(KINDS)  # those: test_all_reduce_ops


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'ppo_ant'"):
        preset("ppo_ants")


@pytest.mark.slow
def test_pendulum_reaches_950():
    run = Interpreter(PRESETS["ppo_pendulum"])
    best = 0.0
    for _ in range(150):
        run.step()
        metrics = run.metrics()
        if metrics.episodes >= 4:
            best = max(best, metrics.mean_return)
        if best >= 950:
            break
    assert best >= 950


@pytest.mark.slow
def test_ant_learns():
    plain = PlainPPO(replace(PRESETS["ppo_ant"], envs_per_shard=16), 1)
    rewards = [plain.step().mean_reward for _ in range(80)]
    plain.close()
    assert np.mean(rewards[-10:]) > np.mean(rewards[:20]) + 0.2


@pytest.mark.parametrize("fused", [True, False])
def test_the_graph_of_the_job_has_these_ops_and_inputs(fused):
    config = replace(SMALL, fused=fused)
    sizes = PPOJob(config).sizes

    def size_of(kind, at):
        size = sizes.of(kind, at)
        return OpSize(outputs=size.outputs, flop=size.flop, bytes_moved=size.bytes_moved)

    names = [field.name for field in fields(DRLJobShape)]
    shape = DRLJobShape(**{name: getattr(config, name) for name in names})
    graph = build_drl_job("job", shape, size_of)
    inputs: dict[str, list[tuple[str, int, int]]] = {op.name: [] for op in graph.ops}
    for edge in graph.edges:
        source = (graph.ops[edge.src].name, edge.output, edge.distance)
        inputs[graph.ops[edge.dst].name].append(source)
    ours = {
        op.name: [(source.op, source.output, source.distance) for source in op.inputs]
        for op in job_ops(config)
    }
    assert inputs == ours
    assert {op.name: op.group or "" for op in graph.ops} == {
        op.name: op.group for op in job_ops(config)
    }
