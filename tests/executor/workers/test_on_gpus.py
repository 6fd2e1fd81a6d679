"""Every back end on hardware; where it is missing a test skips with the reason of the probe."""

import os
from dataclasses import asdict, replace

import numpy as np
import pytest

from doppler.core.cluster import Cluster
from doppler.core.layout import Backend, Layout, Slice, per_core_layout
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.graphs.ffnn import FFNNShape, ffnn
from executor.job_spec import JobSpec
from executor.launch.seats import plan_seats
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


def values_of(program, cluster, placement):
    """Returns the last tensor of a graph that has run twice under a placement."""
    problem = Problem(graph=program.graph, cluster=cluster)
    plan = make_plan(problem, placement, [0] * program.graph.num_ops, "test")
    instructions = {name: asdict(step) for name, step in program.instructions.items()}
    config = {"dtype": program.dtype, "seed": 3, "instructions": instructions}
    spec = JobSpec(path="executor.tensors.job:TensorJob", config=config)
    with CoreExecutor(spec, problem) as executor:
        executor.run(problem, plan, 2)
        return executor.read_output(program.graph.num_ops - 1, 0).view(np.float32)


def check_on_first_gpu(found, backend, units, count):
    """Runs a graph with its ops spread over the devices; the host gives the expected values."""
    gpu = next(g for g in found.inventory.gpus if g.has_mig == (backend is Backend.mig))
    layout = Layout(
        name="parts",
        slices=tuple(
            Slice(parent=gpu.name, backend=backend, units=units, name=f"g{i}", memory_bytes=4 * GIB)
            for i in range(count)
        ),
    )
    program = ffnn(FFNNShape(batch=64, features=16, hidden=64))
    num_ops = program.graph.num_ops
    spread = [op % count for op in range(num_ops)]
    value = values_of(program, layout.apply(found.hardware), spread)
    cores = per_core_layout(found.hardware.processor_by_name["cpu"]).apply(found.hardware)
    expected = values_of(program, cores, [0] * num_ops)
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-3)


def test_a_plan_runs_on_a_whole_gpu():
    found = require("GPU")
    check_on_first_gpu(found, Backend.whole, found.inventory.gpus[0].num_units, 1)


@pytest.mark.mps
def test_a_plan_runs_on_mps_clients():
    found = require("MPS")
    check_on_first_gpu(found, Backend.mps, found.inventory.gpus[0].num_units // 4 * 2, 2)


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
