"""Tensors that stay on a device: the same values as through the arena, and no copy too many.

Core groups with tensors of their own stand for GPUs; threads of one process for green contexts.
"""

import dataclasses
import mmap
import threading
import weakref
from unittest.mock import Mock

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
from executor.workers.handover import CudaHandover, HostHandover, handover_of
from executor.workers.kernels import KernelTable
from executor.workers.resident import ResidentTensors, Version
from executor.workers.resident_op import HostBacked, Residence

pytestmark = pytest.mark.timeout(120)


def version(number, host, op=0, output=0):
    return Version(op, output, number, number % 3, host)


def host_bytes(value):
    return np.full(8, value, np.uint8)


# -- the buffers ---------------------------------------------------------------------------------


def test_a_version_comes_from_the_host_once_and_anew_after_that():
    tensors = ResidentTensors("cpu", HostHandover())
    host = host_bytes(1)
    first = tensors.read(version(0, host))
    host[:] = 2  # the device has version 0 already
    assert tensors.read(version(0, host)).tolist() == [1] * 8
    assert tensors.read(version(3, host)).tolist() == [2] * 8  # another version, the same place
    assert tensors.read(version(3, host)).data_ptr() == first.data_ptr()
    assert (tensors.num_imports, tensors.allocated_bytes) == (2, 8)
    tensors.forget()
    host[:] = 5
    assert tensors.read(version(3, host)).tolist() == [5] * 8


def test_what_was_written_here_goes_to_the_host_when_it_must_and_once():
    tensors = ResidentTensors("cpu", HostHandover())
    hosts = {number: host_bytes(0) for number in (4, 5, 6)}
    for number, crosses in ((4, True), (5, False), (6, False)):
        tensors.target(version(number, hosts[number])).fill_(number)
        tensors.written(version(number, hosts[number]), crosses)
    assert [hosts[n][0] for n in (4, 5, 6)] == [4, 0, 0]
    tensors.to_host(version(8, hosts[5]))  # another version has that place: the host has it
    assert hosts[5][0] == 0
    tensors.to_host(version(5, hosts[5]))
    assert [hosts[n][0] for n in (4, 5, 6)] == [4, 5, 0]
    tensors.settle([1])  # another op
    assert hosts[6][0] == 0
    tensors.settle([0])
    assert hosts[6][0] == 6
    assert (tensors.num_imports, tensors.num_exports) == (0, 3)


def test_half_written_versions_are_never_settled():
    tensors = ResidentTensors("cpu", HostHandover())
    host = host_bytes(7)
    tensors.target(version(0, host)).fill_(1)
    tensors.written(version(0, host), crosses=False)
    tensors.target(version(3, host)).fill_(2)  # begun, and the kernel has raised
    tensors.settle([0])
    assert host.tolist() == [7] * 8


def test_memory_that_the_devices_own_is_not_exceeded():
    tensors = ResidentTensors("cpu", HostHandover(), limit_bytes=20, owner="device(s) 'g0'")
    tensors.read(version(0, host_bytes(0)))
    tensors.read(version(1, host_bytes(0)))
    message = r"device\(s\) 'g0' with 16 bytes of tensors wants 8 more, of which 4 are free"
    with pytest.raises(CapacityError, match=message):
        tensors.read(version(2, host_bytes(0)))
    assert tensors.allocated_bytes == 16


def test_what_torch_has_no_room_for_is_a_matter_of_capacity_and_other_errors_are_not(monkeypatch):
    tensors = ResidentTensors("cpu", HostHandover(), owner="device(s) 'g0'")
    huge = np.broadcast_to(np.uint8(0), (1 << 50,))  # the machine has no such memory
    with pytest.raises(CapacityError, match=rf"'g0' with 0 .* wants {1 << 50} more, .* \d+ are"):
        tensors.target(version(0, huge))
    assert tensors.allocated_bytes == 0
    for error, raised in (
        (torch.OutOfMemoryError("CUDA out of memory."), CapacityError),
        (RuntimeError("an illegal memory access was encountered"), RuntimeError),
    ):
        monkeypatch.setattr(torch, "empty", Mock(side_effect=error))
        with pytest.raises(raised) as caught:
            tensors.target(version(1, host_bytes(0)))
        assert type(caught.value) is raised


def test_buffers_of_outputs_that_nobody_needs_are_freed():
    tensors = ResidentTensors("cpu", HostHandover(), limit_bytes=24)
    host = host_bytes(3)
    gone = weakref.ref(tensors.read(version(0, host, op=1)))
    tensors.read(version(1, host, op=1))
    kept = tensors.read(version(0, host, op=2, output=1))
    with pytest.raises(CapacityError, match="24 bytes of tensors wants 8 more, of which 0 are"):
        tensors.read(version(0, host, op=3))
    tensors.keep_only({(2, 1), (3, 0)})
    assert gone() is None
    assert tensors.allocated_bytes == 8
    tensors.read(version(0, host, op=3))
    assert tensors.read(version(0, host, op=2, output=1)).data_ptr() == kept.data_ptr()


class Log:
    """A handover that writes down what each thread asks for."""

    def __init__(self):
        self.marks = []
        self.waits = []

    def record(self):
        self.marks.append(threading.current_thread().name)
        return len(self.marks) - 1

    def wait(self, mark):
        self.waits.append((threading.current_thread().name, mark))


def in_thread(name, call):
    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join()


def test_every_reader_waits_for_the_mark_behind_the_newest_write():
    log = Log()
    tensors = ResidentTensors("cpu", log)
    first, second, foreign = host_bytes(0), host_bytes(0), host_bytes(9)

    def produce(number, host):
        tensors.target(version(number, host))
        tensors.written(version(number, host), crosses=False)

    in_thread("a", lambda: produce(0, first))
    in_thread("b", lambda: tensors.read(version(0, first)))
    in_thread("a", lambda: produce(3, second))
    in_thread("b", lambda: tensors.read(version(3, second)))
    in_thread("c", lambda: tensors.to_host(version(3, second)))
    in_thread("a", lambda: tensors.read(version(0, foreign, op=1)))  # brings it from the host
    in_thread("b", lambda: tensors.read(version(0, foreign, op=1)))
    assert log.marks == ["a", "a", "a"]
    assert log.waits == [("b", 0), ("b", 1), ("c", 1), ("a", 2), ("b", 2)]


def test_a_version_is_brought_once_though_many_threads_ask_at_once():
    tensors = ResidentTensors("cpu", HostHandover())
    host = np.arange(1 << 20, dtype=np.uint8)
    barrier, wrong = threading.Barrier(4), []

    def ask():
        for number in range(20):
            barrier.wait(30)
            if not np.array_equal(tensors.read(version(number, host)).numpy(), host):
                wrong.append(number)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert tensors.num_imports == 20


# -- ops -----------------------------------------------------------------------------------------


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
            tensors.read(version(0, np.zeros(1 << op, np.uint8), op=op, output=output))

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


# -- hardware ------------------------------------------------------------------------------------


def test_a_cpu_hands_over_without_events_and_cuda_with():
    assert isinstance(handover_of("cpu"), HostHandover)
    assert isinstance(handover_of("cuda:0"), CudaHandover)


@pytest.mark.gpu
def test_events_order_two_streams_of_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("this torch shows no GPU")
    tensors = ResidentTensors("cuda:0", CudaHandover())
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    host = np.zeros(BYTES << 18, np.uint8)
    for number in range(30):
        with torch.cuda.stream(streams[0]):
            target = tensors.target(version(number, host))
            torch.cuda._sleep(2_000_000)
            target.fill_(number)
            tensors.written(version(number, host), crosses=False)
        with torch.cuda.stream(streams[1]):
            copy = tensors.read(version(number, host)).clone()
        streams[1].synchronize()
        assert bool((copy == number).all())
    assert (tensors.num_imports, tensors.num_exports) == (0, 0)


def test_a_profile_measures_a_kernel_with_its_copies():
    """HostBacked is what `KernelTable.bind_kernel` gives a profile."""
    add = HostBacked(
        lambda i, inputs, outputs: outputs[0].copy_(inputs[0] + inputs[1] + i),
        Accelerator(torch_device="cpu"),
    )
    a, b, out = host_bytes(1), host_bytes(2), host_bytes(0)
    a.flags.writeable = False
    add(4, [a, b], [out])
    assert out.tolist() == [7] * 8
