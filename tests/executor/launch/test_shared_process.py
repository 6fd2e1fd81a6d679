"""Several devices in one process, as green contexts are, and kernels that compute elsewhere.

Core groups without cores of their own stand for the contexts: the process, its threads and the
protocol are those of a GPU.
"""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from core_clusters import OneProcess, plan_of, problem_of, unbound
from toy_job import toy_graph

from doppler.core.errors import WorkerDiedError
from doppler.graphs.ffnn import FFNNShape, ffnn
from executor import team
from executor.job_spec import JobSpec
from executor.launch.gpus import GpuInventory
from executor.runtime import CoreExecutor
from executor.tensors.job import TensorJob
from executor.workers.accelerator import Accelerator
from executor.workers.cpu import Worker
from executor.workers.resident_op import HostBacked
from executor.workers.share import GpuShare

pytestmark = pytest.mark.timeout(60)
SPEC = JobSpec(path="toy_job:ToyJob")
SPLIT = (0, 0, 1, 1, 0, 1, 0, 1)


def outcome(problem, spec=SPEC, iterations=6):
    plan = plan_of(problem, *SPLIT)
    with CoreExecutor(spec, problem) as executor:
        pids = {worker.process.pid for worker in executor._team.supervisor.workers}
        trace = executor.run(problem, plan, iterations)
        groups = executor.export_groups()
    assert len(trace.op_spans) == iterations * sum(not op.is_input for op in problem.graph.ops)
    return len(pids), {name: state["values"] for name, state in groups.items()}


def test_devices_of_one_process_give_the_bits_of_two(monkeypatch):
    problem = unbound(problem_of(toy_graph()))
    processes, expected = outcome(problem)
    assert processes == 2
    monkeypatch.setattr(team, "Seating", OneProcess)
    processes, shared = outcome(problem)
    assert processes == 1
    assert shared.keys() == expected.keys()
    assert all(np.array_equal(shared[name], expected[name]) for name in expected)


def test_a_process_that_dies_takes_all_its_devices(monkeypatch):
    monkeypatch.setattr(team, "Seating", OneProcess)
    problem = unbound(problem_of(toy_graph()))
    trouble = {"b1": {"iteration": 2, "what": "die"}}
    spec = JobSpec(path="toy_job:ToyJob", config={"trouble": trouble})
    executor = CoreExecutor(spec, problem)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        executor.run(problem, plan_of(problem, *SPLIT), 6)
    assert executor.survivors() == ()


def test_a_kernel_that_computes_elsewhere_gives_the_same_tensors():
    """The accelerator is torch's CPU: all but the device itself is what a GPU uses."""
    program = ffnn(FFNNShape(batch=32, features=8, hidden=16))
    config = {
        "dtype": program.dtype,
        "instructions": {n: dataclasses.asdict(i) for n, i in program.instructions.items()},
    }
    job, accelerator = TensorJob(config), Accelerator(torch_device="cpu")
    rng = np.random.default_rng(0)
    compared = 0
    for name, step in program.instructions.items():
        if step.kind == "input":
            continue
        inputs = [
            rng.random(shape, np.float32).view(np.uint8).reshape(-1) for shape in step.in_shapes
        ]
        results = []
        elsewhere = HostBacked(job.bind_tensors(name, step.kind, None, 1), accelerator)
        for kernel in (job.bind(name, step.kind, None, 1), elsewhere):
            outputs = [np.zeros(shape, np.float32) for shape in step.out_shapes]
            kernel(0, inputs, [output.view(np.uint8).reshape(-1) for output in outputs])
            results.append(outputs)
        for a, b in zip(*results, strict=True):
            assert a.any()
            np.testing.assert_array_equal(a, b)
        compared += 1
    assert compared > 20


def test_a_job_for_cores_refuses_a_gpu():
    share = GpuShare(
        device="g", kind="cuda", gpu="gpu0", visible="", units=1, total_units=1, memory_bytes=1
    )
    worker = object.__new__(Worker)
    worker._start = SimpleNamespace(spec=SPEC, share=share, write_initial=False)
    worker._spec = SimpleNamespace(name="g")
    with pytest.raises(ValueError, match="job 'toy_job:ToyJob' on device 'g' does not have both"):
        worker.build_job(Accelerator(torch_device="cpu"))


def test_a_host_without_gpus_says_why():
    reason = "no NVIDIA driver"
    with pytest.raises(ValueError, match=rf"cut from 'gpu0'; GPUs here: none \({reason}\)"):
        GpuInventory(reason=reason).find("gpu0", "device 'g'")
