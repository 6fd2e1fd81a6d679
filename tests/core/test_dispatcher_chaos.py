"""The dispatchers under the worst driver: everything in flight completes in any order.

No clock, no FIFO: ops end, sends leave, tensors and credits arrive in a random order, several of
them between two dispatches or none, and devices dispatch at random moments. Whatever happens, every
op runs once per iteration and finds its inputs in memory, nothing is freed that is still read,
nothing is sent twice, memory stays within the window, and all work gets done.

Seen to fail with: `window - 1` slots in `Dispatcher._missing` (it has `window + 1`; `window` would
do); no credit edge for a hold, or credits one iteration later; the newest version taken from the
last arrival instead of the largest iteration; a version freed when its sends have left, local
readers or not.
"""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.dispatcher import (
    Command,
    CreditArrived,
    Dispatcher,
    Event,
    FreeTensor,
    OpDone,
    ReturnCredit,
    RunOp,
    SendTensor,
    TensorArrived,
    TensorSent,
)
from doppler.core.graph import Edge, EdgeMode
from doppler.core.program import compile_program
from tests.strategies import Case, cases

Version = tuple[int, int, int, int]  # device, op, output, iteration


class Chaos:
    """Drives the dispatchers of a case and keeps its own books."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.rng = case, random.Random(seed)
        self.graph, self.place = case.problem.graph, case.plan.placement
        program = compile_program(case.problem, case.plan)
        self.runs = program.runs
        self.edges = [edge for edge in self.graph.edges if self.runs[edge.src]]
        devices = range(case.problem.cluster.num_devices)
        self.dispatchers = [Dispatcher(program, device, case.iterations) for device in devices]
        self.in_flight: list[tuple[int, Event]] = []
        self.present: set[Version] = set()
        self.readers: Counter[Version] = Counter()  # ops that run, sends that have not left
        self.reading: dict[int, list[Version]] = {}
        self.ended: Counter[int] = Counter()
        self.sent: set[tuple[Version, int]] = set()
        for edge in self.edges:
            for version in range(-edge.distance, 0):
                self.present.add((self.place[edge.dst], edge.src, edge.output, version))

    def run(self) -> None:
        for device in range(len(self.dispatchers)):
            self.dispatch(device)
        while self.in_flight:
            for _ in range(self.rng.randint(1, 3)):
                if self.in_flight:
                    self.complete(*self.in_flight.pop(self.rng.randrange(len(self.in_flight))))
            for device in range(len(self.dispatchers)):
                if not self.in_flight or self.rng.random() < 0.6:
                    self.dispatch(device)
            if not self.in_flight:  # the last events may have been posted behind a dispatch
                for device in range(len(self.dispatchers)):
                    self.dispatch(device)

    def complete(self, device: int, event: Event) -> None:
        match event:
            case OpDone():
                self.ended[event.op] += 1
                self.readers.subtract(self.reading.pop(event.op))
                for output in range(len(self.graph.ops[event.op].outputs)):
                    self.add((device, event.op, output, event.iteration))
            case TensorSent():
                self.readers[device, event.op, event.output, event.iteration] -= 1
                arrival = TensorArrived(event.op, event.output, event.iteration)
                self.in_flight.append((event.destination, arrival))
            case TensorArrived():
                self.add((device, event.op, event.output, event.iteration))
        self.dispatchers[device].post(event)

    def add(self, version: Version) -> None:
        self.present.add(version)
        live = sum(other[:3] == version[:3] for other in self.present)
        assert live <= self.graph.window + 1

    def inputs(self, device: int, op: int, iteration: int) -> list[Version]:
        return [
            (device, edge.src, edge.output, iteration - edge.distance)
            for edge in self.edges
            if edge.dst == op and edge.mode is EdgeMode.token
        ]

    def dispatch(self, device: int) -> None:
        for command in self.dispatchers[device].dispatch():
            self.obey(device, command)

    def obey(self, device: int, command: Command) -> None:
        match command:
            case RunOp():
                self.start(device, command)
            case SendTensor():
                version = (device, command.op, command.output, command.iteration)
                assert version in self.present
                assert (version, command.destination) not in self.sent
                self.sent.add((version, command.destination))
                self.readers[version] += 1
                sent = TensorSent(*version[1:], command.destination)
                self.in_flight.append((device, sent))
            case ReturnCredit():
                credit = CreditArrived(command.op, command.iteration)
                self.in_flight.append((command.destination, credit))
            case FreeTensor():
                version = (device, command.op, command.output, command.iteration)
                assert self.readers[version] == 0
                self.present.remove(version)

    def start(self, device: int, command: RunOp) -> None:
        op, iteration = command.op, command.iteration
        assert self.place[op] == device
        assert self.ended[op] == iteration
        reading = self.inputs(device, op, iteration)
        latest = [e for e in self.edges if e.dst == op and e.mode is EdgeMode.latest]
        for edge, version in zip(latest, command.versions, strict=True):
            assert version >= iteration - edge.distance
            reading.append((device, edge.src, edge.output, version))
        assert self.present.issuperset(reading)
        self.readers.update(reading)
        self.reading[op] = reading
        for before, after in self.case.plan.holds:
            assert after != op or self.ended[before] > iteration
            assert before != op or self.ended[after] > iteration - self.graph.window
        for edge in self.edges:
            if edge.src == op and edge.dst != op:
                assert self.ended[edge.dst] >= iteration - (self.graph.window - edge.distance) + 1
        self.in_flight.append((device, OpDone(op, iteration)))

    def survives(self, device: int, edge: Edge, version: int) -> bool:
        if self.place[edge.dst] != device:
            return False
        is_newest = edge.mode is EdgeMode.latest and version == self.case.iterations - 1
        is_unread = edge.mode is EdgeMode.token and version + edge.distance >= self.case.iterations
        return is_newest or is_unread


@settings(max_examples=300, deadline=None)
@given(case=cases(max_iterations=9), seed=st.integers(0, 2**32))
def test_any_order_of_completions_is_survived(case: Case, seed: int) -> None:
    chaos = Chaos(case, seed)
    chaos.run()
    assert all(dispatcher.is_done for dispatcher in chaos.dispatchers)
    assert all(dispatcher.blocked() == [] for dispatcher in chaos.dispatchers)
    assert all(
        chaos.ended[op] == case.iterations for op in range(chaos.graph.num_ops) if chaos.runs[op]
    )
    expected = {
        ((chaos.place[edge.src], edge.src, edge.output, iteration), chaos.place[edge.dst])
        for edge in chaos.edges
        if chaos.place[edge.src] != chaos.place[edge.dst]
        for iteration in range(case.iterations)
    }
    assert chaos.sent == expected
    for device, op, output, version in chaos.present:
        edges = [e for e in chaos.edges if (e.src, e.output) == (op, output)]
        assert any(chaos.survives(device, edge, version) for edge in edges)
