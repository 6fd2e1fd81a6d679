"""Every back end on hardware; where it is missing a test skips with the reason of the probe."""

import dataclasses
import os
from dataclasses import asdict, replace

import numpy as np
import pytest
from allocating_gmi import AllocatesOnGPU

from doppler.config import JOBS
from doppler.core.cluster import Cluster
from doppler.core.errors import KernelError
from doppler.core.layout import Backend, Layout, Slice, per_core_layout
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.gmi import GMIManager
from doppler.graphs.ffnn import FFNNShape, ffnn
from doppler.jobs import build_job
from doppler.session import JobSession
from doppler.simple_plans import job_problem, spread_plan
from executor.job_spec import JobSpec
from executor.launch.seats import plan_seats
from executor.options import ExecutorOptions
from executor.probe import look_from_inside, probe, trial_devices, verify_backends
from executor.runtime import CoreExecutor

pytestmark = pytest.mark.gpu
GIB = 1 << 30


def require(name):
    """Returns what the probe found; it starts a worker where a GPU is."""
    found = verify_backends(probe())
    finding = next(f for f in found.findings if f.name == name)
    if not finding.is_present:
        pytest.skip(finding.detail)
    return found


def values_of(program, cluster, placement, options=None):
    """Returns the last tensor of a graph that has run twice under a placement."""
    problem = Problem(graph=program.graph, cluster=cluster)
    plan = make_plan(problem, placement, [0] * program.graph.num_ops, "test")
    instructions = {name: asdict(step) for name, step in program.instructions.items()}
    config = {"dtype": program.dtype, "seed": 3, "instructions": instructions}
    spec = JobSpec(path="executor.tensors.job:TensorJob", config=config)
    with CoreExecutor(spec, problem, options or ExecutorOptions()) as executor:
        executor.run(problem, plan, 2)
        return executor.read_output(program.graph.num_ops - 1, 0).view(np.float32)


def parts_of_first_gpu(found, backend, units, count):
    gpu = next(g for g in found.inventory.gpus if g.has_mig == (backend is Backend.mig))
    return Layout(
        name="parts",
        slices=tuple(
            Slice(parent=gpu.name, backend=backend, units=units, name=f"g{i}", memory_bytes=4 * GIB)
            for i in range(count)
        ),
    )


def check_ppo_on_first_gpu(found, backend, units, count):
    """Trains for an iteration on parts of a GPU; cores give the expected parameters."""
    settings = dataclasses.replace(
        JOBS["ppo_pendulum"], num_shards=2, envs_per_shard=8, hidden=[32, 16], num_trainers=2
    )
    job = build_job(settings, seed=1)
    cores = per_core_layout(found.hardware.processor_by_name["cpu"])
    vectors = []
    for layout in (parts_of_first_gpu(found, backend, units, count), cores):
        problem = job_problem(job, found.hardware, layout)
        with JobSession(job, problem, ExecutorOptions(mark_unwritten=True)) as session:
            session.run(spread_plan(problem), 1)
            op = problem.graph.op_ids["broadcast"]
            vectors.append(session.executor.read_output(op, 0).view(np.float32))
    half = len(vectors[0]) // 2  # the normaliser at the end is float64
    np.testing.assert_allclose(vectors[0][:half], vectors[1][:half], rtol=1e-2, atol=1e-3)


def check_on_first_gpu(found, backend, units, count, options=None):
    """Runs a graph with its ops spread over the devices; the host gives the expected values."""
    layout = parts_of_first_gpu(found, backend, units, count)
    program = ffnn(FFNNShape(batch=64, features=16, hidden=64))
    num_ops = program.graph.num_ops
    spread = [op % count for op in range(num_ops)]
    value = values_of(program, layout.apply(found.hardware), spread, options)
    cores = per_core_layout(found.hardware.processor_by_name["cpu"]).apply(found.hardware)
    expected = values_of(program, cores, [0] * num_ops)
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-3)


def test_a_plan_runs_on_a_whole_gpu():
    found = require("GPU")
    check_on_first_gpu(found, Backend.whole, found.inventory.gpus[0].num_units, 1)


def test_ppo_trains_on_a_whole_gpu():
    found = require("GPU")
    check_ppo_on_first_gpu(found, Backend.whole, found.inventory.gpus[0].num_units, 1)


@pytest.mark.mps
def test_ppo_trains_on_mps_clients():
    found = require("MPS")
    check_ppo_on_first_gpu(found, Backend.mps, found.inventory.gpus[0].num_units // 4 * 2, 2)


@pytest.mark.green_context
def test_ppo_trains_on_green_contexts_of_one_process():
    found = require("green contexts")
    units = found.inventory.gpus[0].num_units // 16 * 8
    check_ppo_on_first_gpu(found, Backend.green_context, units, 2)


@pytest.mark.mps
def test_a_plan_runs_on_mps_clients():
    found = require("MPS")
    check_on_first_gpu(found, Backend.mps, found.inventory.gpus[0].num_units // 4 * 2, 2)


@pytest.mark.mps
def test_a_plan_runs_on_static_partitions():
    found = require("static MPS partitions")
    units = found.inventory.gpus[0].num_units // 16 * 8
    check_on_first_gpu(found, Backend.mps, units, 2, ExecutorOptions(static_mps=True))


@pytest.mark.mps
def test_a_client_that_takes_more_than_its_memory_is_named():
    found = require("MPS")
    units = found.inventory.gpus[0].num_units // 4 * 2
    cluster = parts_of_first_gpu(found, Backend.mps, units, 1).apply(found.hardware)
    for wanted in (GIB, 8 * GIB):  # it owns 4
        manager = GMIManager(cluster=cluster)
        manager.add_gmi(AllocatesOnGPU, "learner", 0, {"bytes": wanted})
        if wanted == GIB:
            assert manager.run(1, 1) == (wanted,)
        else:
            with pytest.raises(KernelError, match=r"GMI 0 .* raised .*out of memory"):
                manager.run(1, 1)


@pytest.mark.mps
def test_a_client_that_misses_the_daemon_is_an_error(tmp_path):
    found = require("MPS")
    cluster = Cluster(name="c", devices=tuple(trial_devices("mps", found.inventory)))
    (seat,) = plan_seats(cluster, found.inventory, os.environ)
    lost = replace(seat, mps=replace(seat.mps, pipe_directory=str(tmp_path)))
    assert "runs without MPS" in look_from_inside(lost)["error"]


@pytest.mark.mig
def test_a_plan_runs_on_a_mig_instance():
    found = require("MIG")
    instances = [i for gpu in found.inventory.gpus for i in gpu.instances]
    check_on_first_gpu(found, Backend.mig, instances[0].units, 1)


@pytest.mark.green_context
def test_a_plan_runs_on_green_contexts_of_one_process():
    found = require("green contexts")
    check_on_first_gpu(found, Backend.green_context, found.inventory.gpus[0].num_units // 16 * 8, 2)
