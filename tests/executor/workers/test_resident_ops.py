"""Ops on tensors that stay on a device, and whole runs: the same values as through the arena.

Core groups with tensors of their own stand for GPUs.
"""

import dataclasses
import mmap

import numpy as np
import pytest
import torch
from core_clusters import OneProcess, plan_of, problem_of, unbound
from toy_job import BYTES, TensorToyJob, random_graph, toy_graph

from doppler.core.errors import CapacityError
from doppler.core.graph import EdgeMode
from executor import team
from executor.arena import Arena, ArenaLayout
from executor.initial import write_initial
from executor.job_spec import JobSpec
from executor.messages import ProfileTask
from executor.options import ExecutorOptions
from executor.runtime import CoreExecutor
from executor.workers.accelerator import Accelerator
from executor.workers.handover import HostHandover
from executor.workers.kernels import KernelTable
from executor.workers.resident import ResidentTensors, Version
from executor.workers.resident_op import Residence

pytestmark = pytest.mark.timeout(120)
PLACEMENT = (0, 0, 1, 1, 0, 1, 0, 1)


def ops_on_two_devices(on_host=(), graph=None):
    """Returns the toy graph's ops, bound as by two devices of one process, and what they share."""
    problem = problem_of(graph or toy_graph())
    plan = plan_of(problem, *PLACEMENT)
    layout = ArenaLayout(graph=problem.graph)
    arena = Arena(layout, mmap.mmap(-1, layout.size_bytes), 0)
    arena.mark_unwritten()
    write_initial(TensorToyJob({}), problem.graph, arena)
    tensors = ResidentTensors("cpu", HostHandover())
    ops = {}
    for device in (0, 1):
        residence = Residence(
            accelerator=Accelerator(torch_device="cpu"),
            tensors=tensors,
            neighbours=frozenset({0, 1}),
        )
        residence.prepare(problem.graph, plan)
        table = KernelTable(problem.graph, arena, 1)
        table.set_job(TensorToyJob({"on_host": on_host}), residence)
        own = [op for op, place in enumerate(plan.placement) if place == device]
        for name in {problem.graph.ops[op].group for op in own} - {None}:
            table.place_group(name, None)
        table.bind(own, lambda _: None)
        ops |= table.ops
    return ops, arena, tensors, residence


def run_op(ops, op, iteration):
    inputs, outputs = ops[op].buffers(iteration, ())
    ops[op].kernel(iteration, inputs, outputs)


def test_an_edge_between_devices_of_one_process_copies_nothing():
    ops, arena, tensors, residence = ops_on_two_devices()
    for op in (1, 2):  # a0 on device 0 feeds a1 on device 1; both read tokens of the host
        run_op(ops, op, 0)
    brought = tensors.num_imports
    assert np.all(arena.readable(1, 0, 0) == 0xFF)
    assert brought == 2  # `data` and a2 of the iteration before
    run_op(ops, 3, 0)
    run_op(ops, 4, 0)
    run_op(ops, 5, 0)
    assert tensors.num_imports == brought + 3  # tokens again
    assert tensors.num_exports == 0
    residence.settle([1])
    assert not np.any(arena.readable(1, 0, 0) == 0xFF)
    assert np.all(arena.readable(2, 0, 0) == 0xFF)


def test_an_op_is_given_the_versions_that_its_edges_say():
    ops, arena, tensors, _ = ops_on_two_devices(graph=toy_graph(window=4, mode=EdgeMode.latest))
    # b0 reads the input and the newest join, b1 b0, a1, a1 of two iterations before, and itself.
    operands, outputs = ops[3].buffers(7, (5,))
    assert [(v.op, v.number, v.place) for v in operands] == [(0, 0, 0), (5, 5, 1)]
    assert operands[1].host.ctypes.data == arena.readable(5, 0, 5).ctypes.data
    assert outputs[0].ctypes.data == arena.readable(3, 0, 7).ctypes.data
    operands, _ = ops[4].buffers(7, ())
    assert [(v.op, v.output, v.number, v.place) for v in operands] == [
        (3, 0, 7, 3),
        (2, 1, 7, 3),
        (2, 0, 5, 1),
        (4, 0, 6, 2),
    ]
    for iteration in range(6):  # the input is brought once, a2's initial token too
        run_op(ops, 1, iteration)
        run_op(ops, 6, iteration)
    assert tensors.num_imports == 2 + 6  # and what `join` would have made, in every iteration


def test_an_op_on_the_host_gets_what_only_the_device_had():
    ops, arena, tensors, _ = ops_on_two_devices(on_host=("a1",))
    run_op(ops, 1, 0)
    assert np.all(arena.readable(1, 0, 0) == 0xFF)
    run_op(ops, 2, 0)
    assert tensors.num_exports == 1
    assert not np.any(arena.readable(2, 0, 0) == 0xFF)
    ops[2]._compute = lambda i, inputs, outputs: inputs[0].fill(0)
    with pytest.raises(ValueError, match="read-only"):
        run_op(ops, 2, 0)


def test_a_new_segment_trusts_host_memory():
    """A checkpoint of another state may bring other bytes under the numbers of old versions."""
    ops, arena, tensors, residence = ops_on_two_devices()
    run_op(ops, 1, 0)
    before = tensors.read(Version(6, 0, -1, 2, arena.writable(6, 0, -1))).clone()
    arena.writable(6, 0, -1)[:] = 1
    problem = problem_of(toy_graph())
    residence.prepare(problem.graph, plan_of(problem, *PLACEMENT))
    after = tensors.read(Version(6, 0, -1, 2, arena.writable(6, 0, -1)))
    assert not torch.equal(before, after)
    assert after.tolist() == [1] * BYTES


def test_a_plan_frees_what_only_the_plan_before_needed_here():
    problem = problem_of(toy_graph())
    tensors = ResidentTensors("cpu", HostHandover())
    residence = Residence(
        accelerator=Accelerator(torch_device="cpu"), tensors=tensors, neighbours=frozenset({0})
    )
    residence.prepare(problem.graph, plan_of(problem, *PLACEMENT))
    for op, spec in enumerate(problem.graph.ops):
        for output in range(len(spec.outputs)):
            tensors.read(Version(op, output, 0, 0, np.zeros(1 << op, np.uint8)))

    def kept_bytes(*placement):
        residence.prepare(problem.graph, plan_of(problem, *placement))
        return tensors.allocated_bytes

    assert kept_bytes(*PLACEMENT) == 1 + 2 + 4 + 4 + 8 + 16 + 32 + 64  # all are made or read here
    # Device 0 runs a0 and a2 alone, which read the input, the join and a2.
    assert kept_bytes(1, 0, 1, 1, 1, 1, 0, 1) == 1 + 2 + 32 + 64
    assert kept_bytes(1, 1, 1, 1, 1, 1, 1, 1) == 0


def test_a_kernel_that_has_too_little_memory_beside_the_tensors_says_so():
    ops, _, _, _ = ops_on_two_devices()

    def compute(iteration, operands, results):
        torch.empty(1 << 50, dtype=torch.uint8)

    ops[1]._compute = compute
    with pytest.raises(CapacityError, match=f"this process with 192 bytes .* {1 << 50} bytes"):
        run_op(ops, 1, 0)


def test_what_other_processes_read_crosses_and_so_does_what_is_recorded():
    problem = problem_of(toy_graph())
    residence = Residence(
        accelerator=Accelerator(torch_device="cpu"),
        tensors=ResidentTensors("cpu", HostHandover()),
        neighbours=frozenset({0}),
        recorded=frozenset({(3, 0)}),
    )
    residence.prepare(problem.graph, plan_of(problem, *PLACEMENT))
    # Device 1 runs a1, b0, join and sink, which read the input, a0, a1, b1, join and a2.
    read_there = {(0, 0), (1, 0), (2, 0), (4, 0), (5, 0), (6, 0)}
    assert residence.crossing == read_there | {(3, 0)}


# -- whole runs ----------------------------------------------------------------------------------


def values_after(problem, plans, options, on_host=()):
    """Returns states, tensors and records after 3 iterations of each plan and a way back."""
    spec = JobSpec(path="toy_job:TensorToyJob", config={"on_host": list(on_host)})
    graph = problem.graph
    options = dataclasses.replace(options, record=((graph.num_ops - 1, 0),))
    with CoreExecutor(spec, problem, options) as executor:
        executor.run(problem, plans[0], 3)
        saved = executor.checkpoint()
        executor.run(problem, plans[1], 4)
        executor.restore(saved)  # the versions of these iterations are made a second time
        executor.run(problem, plans[1], 2)
        executor.run(problem, plans[0], 2)
        states = executor.export_groups()
        tensors = {
            (op, output): executor.read_output(op, output)
            for op, spec in enumerate(graph.ops)
            for output in range(len(spec.outputs))
        }
        (records,) = executor.take_records().values()
        tasks = [ProfileTask(device=0, ops=(1, 2), repeats=2)]
        assert set(executor.profile(tasks)) == {(0, 1), (0, 2)}
    flat = {name: state["values"].tobytes() for name, state in states.items()}
    kept = [(i, v.tobytes()) for i, v in records]
    return flat, {key: t.tobytes() for key, t in tensors.items()}, kept


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("processes", [1, 2])
def test_own_tensors_change_no_bit(seed, processes, monkeypatch):
    graph = random_graph(seed)
    problem = unbound(problem_of(graph))
    rng = np.random.default_rng(seed)
    groups = {}
    plans = []
    for _ in range(2):
        placement = rng.integers(0, 2, graph.num_ops).tolist()
        for op, spec in enumerate(graph.ops):
            if spec.group is not None:
                placement[op] = groups.setdefault((len(plans), spec.group), placement[op])
        plans.append(plan_of(problem, *placement))
    on_host = [op.name for op in graph.ops[seed::3]] if seed else []
    expected = values_after(problem, plans, ExecutorOptions())
    if processes == 1:
        monkeypatch.setattr(team, "Seating", OneProcess)
    found = values_after(problem, plans, ExecutorOptions(own_tensors=True), on_host)
    assert found == expected


@pytest.mark.parametrize("num_streams", [1, 2])
def test_a_run_whose_tensors_do_not_fit_names_device_op_and_bytes(num_streams, monkeypatch):
    """One stream runs kernels in the worker's loop, two on threads of their own."""
    problem = unbound(problem_of(toy_graph(), num_streams=num_streams))
    devices = tuple(
        dataclasses.replace(device, memory_bytes=5 * BYTES) for device in problem.cluster.devices
    )
    cluster = dataclasses.replace(problem.cluster, devices=devices)
    problem = dataclasses.replace(problem, cluster=cluster)
    message = (
        rf"device\(s\) 'core\d' with {5 * BYTES} bytes of tensors wants {BYTES} more, of which 0 "
        rf"are free \(device 'core\d', op '\w+' in iteration \d+\)"
    )
    with CoreExecutor(
        JobSpec(path="toy_job:TensorToyJob"), problem, ExecutorOptions(own_tensors=True)
    ) as executor:
        with pytest.raises(CapacityError, match=message):
            executor.run(problem, plan_of(problem, *PLACEMENT), 10)
        assert executor.survivors() == (0, 1)


def test_edges_that_read_the_newest_version_work_on_own_tensors(monkeypatch):
    monkeypatch.setattr(team, "Seating", OneProcess)
    problem = unbound(problem_of(toy_graph(mode=EdgeMode.latest)))
    spec = JobSpec(path="toy_job:TensorToyJob")
    plan = plan_of(problem, *(0, 0, 1, 1, 0, 1, 0, 1))
    with CoreExecutor(spec, problem, ExecutorOptions(own_tensors=True)) as executor:
        trace = executor.run(problem, plan, 30)
        values = executor.read_output(4, 0).view(np.float64)
    assert len(trace.op_spans) == 30 * 7
    assert np.isfinite(values).all()
