"""Tensors that stay on a device: no copy too many, and nobody reads before they are written.

torch's CPU device stands for a GPU; threads of one process for green contexts.
"""

import threading
import weakref
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from toy_job import BYTES

from doppler.core.errors import CapacityError
from executor.workers.accelerator import Accelerator
from executor.workers.handover import CudaHandover, HostHandover, handover_of
from executor.workers.resident import ResidentTensors, Version
from executor.workers.resident_op import HostBacked

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
