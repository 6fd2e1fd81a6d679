"""The one work-conserving rule: a pure state machine per device.

`post(event)` records what happened, `dispatch()` decides what starts now. There is no clock, no
thread and no wait in here; the simulator feeds simulated events, a worker of the executor feeds
real ones. The order of the posts between two dispatches does not matter.

The rules (docs/design.md tells why each is so):

1. Ready ops go by (iteration, priority descending, op id); a free stream starts one at once, the
   lowest free stream first. Iteration i of an op starts after its iteration i - 1 ended.
2. Every edge of distance k has an implicit credit edge back of distance `window - k`.
3. The first k tokens of a distance-k edge lie on the consumer's device at the start.
4. A tensor is sent once per destination device, when its producer ends. Where a copy is work on
   the sender's stream it takes a free stream before any op does, oldest request first, then by
   (iteration, producer's rank, output, destination).
5. A version is freed when its last local reader has ended and its last send has left; a version
   that a `latest` edge may still read is kept until a newer one is there.
"""

import heapq
from dataclasses import dataclass

from doppler.core.program import Program


@dataclass(frozen=True, slots=True)
class OpDone:
    """Event: iteration `iteration` of `op` ended on this device."""

    op: int
    iteration: int


@dataclass(frozen=True, slots=True)
class TensorArrived:
    """Event: a tensor of another device is complete in this device's memory."""

    op: int
    output: int
    iteration: int


@dataclass(frozen=True, slots=True)
class TensorSent:
    """Event: a send of this device has left its memory (its buses or its stream are free)."""

    op: int
    output: int
    iteration: int
    destination: int


@dataclass(frozen=True, slots=True)
class CreditArrived:
    """Event: consumer `op` on another device has finished `iteration`."""

    op: int
    iteration: int


@dataclass(frozen=True, slots=True)
class RunOp:
    """Command: start the op now on `stream`; `versions` are what its `latest` edges read."""

    op: int
    iteration: int
    stream: int
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendTensor:
    """Command: send a tensor; `stream` >= 0 if the copy is work on that stream, else -1."""

    op: int
    output: int
    iteration: int
    destination: int
    stream: int


@dataclass(frozen=True, slots=True)
class ReturnCredit:
    """Command: tell `destination` at zero cost that `op` has finished `iteration`."""

    op: int
    iteration: int
    destination: int


@dataclass(frozen=True, slots=True)
class FreeTensor:
    """Command: this version has no reader left on this device."""

    op: int
    output: int
    iteration: int


Event = OpDone | TensorArrived | TensorSent | CreditArrived
Command = RunOp | SendTensor | ReturnCredit | FreeTensor

# (iteration, rank, output, destination, op)
_Copy = tuple[int, int, int, int, int]


class Dispatcher:
    """The rule for one device; iterations count from 0 to `iterations` - 1.

    Attributes:
        device: Device id.
        running: Ops that are commanded and not yet reported done, op -> stream.
    """

    def __init__(self, program: Program, device: int, iterations: int) -> None:
        self.device = device
        self.running: dict[int, int] = {}
        self._program = program
        self._table = program.devices[device]
        self._ops = program.ops
        self._ranks = program.ranks
        self._window = program.window
        self._iterations = iterations
        self._slots = program.window + 1
        self._missing: dict[int, list[int]] = {}
        self._done: dict[int, int] = dict.fromkeys(self._table.ops, 0)
        self._ready: list[tuple[int, int, int]] = []
        self._became_ready: list[tuple[int, int]] = []
        self._free_streams = list(range(self._table.num_streams))
        self._copies_requested: list[_Copy] = []
        self._copies_waiting: list[_Copy] = []
        self._copy_streams: dict[tuple[int, int, int, int], int] = {}
        self._out: list[Command] = []
        self._readers: dict[tuple[int, int, int], int] = {}
        self._newest: dict[tuple[int, int], int] = {}
        self._reading: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self._arrived: dict[tuple[int, int], int] = {}
        self._credited: dict[int, int] = {}
        self._remaining = len(self._table.ops) * iterations
        self._place_initial_versions()
        for op in self._table.ops:
            table = program.ops[op]
            self._missing[op] = [*table.initial_requirements, table.requirements]
            if table.initial_requirements[0] == 0 and iterations > 0:
                self._push_ready(op, 0)

    @property
    def is_done(self) -> bool:
        """True when every op of this device has finished its last iteration."""
        return self._remaining == 0

    def post(self, event: Event) -> None:
        """Records an event; starts nothing."""
        match event:
            case OpDone():
                self._op_done(event.op, event.iteration)
            case TensorArrived():
                self._tensor_arrived(event.op, event.output, event.iteration)
            case CreditArrived():
                self._credited[event.op] = max(event.iteration, self._credited.get(event.op, -1))
                for producer, distance in self._table.credit_targets[event.op]:
                    self._satisfy(producer, event.iteration + distance)
            case TensorSent():
                key = (event.op, event.output, event.iteration, event.destination)
                stream = self._copy_streams.pop(key, -1)
                if stream >= 0:
                    heapq.heappush(self._free_streams, stream)
                self._release(event.op, event.output, event.iteration)

    def take_ready(self) -> list[tuple[int, int]]:
        """Returns (op, iteration) of all that became ready since the last call, for time stamps."""
        ready, self._became_ready = self._became_ready, []
        return ready

    def dispatch(self) -> list[Command]:
        """Returns what starts now: sends, credits and frees first, then ops by rule 1."""
        commands, self._out = self._out, []
        if self._copies_requested:
            self._copies_waiting += sorted(self._copies_requested)
            self._copies_requested = []
        while self._copies_waiting and self._free_streams:
            iteration, _, output, destination, op = self._copies_waiting.pop(0)
            stream = heapq.heappop(self._free_streams)
            self._copy_streams[op, output, iteration, destination] = stream
            commands.append(SendTensor(op, output, iteration, destination, stream))
        while self._ready and self._free_streams:
            iteration, _, op = heapq.heappop(self._ready)
            stream = heapq.heappop(self._free_streams)
            self.running[op] = stream
            slot = iteration % self._slots
            self._missing[op][slot] = self._ops[op].requirements
            versions: tuple[int, ...] = ()
            if self._ops[op].latest:
                versions = self._read_latest(op)
            commands.append(RunOp(op, iteration, stream, versions))
        return commands

    def blocked(self) -> list[str]:
        """Returns one line per op that could not start, with what it waits for."""
        lines: list[str] = []
        for op in self._table.ops:
            iteration = self._done[op]
            if op in self.running or iteration >= self._iterations:
                continue
            waits = self._waits(op, iteration)
            if waits:
                name = self._program.names[op]
                lines.append(f"{name}@{iteration} waits for {', '.join(waits)}")
        return lines

    def _op_done(self, op: int, iteration: int) -> None:
        table = self._ops[op]
        heapq.heappush(self._free_streams, self.running.pop(op))
        self._done[op] = iteration + 1
        self._remaining -= 1
        self._satisfy(op, iteration + 1)
        for consumer, distance in table.local:
            self._satisfy(consumer, iteration + distance)
        for producer, distance in table.local_credits:
            self._satisfy(producer, iteration + distance)
        for after in table.holds:
            self._satisfy(after, iteration)
        for destination in table.credit_devices:
            self._out.append(ReturnCredit(op, iteration, destination))
        self._place_outputs(op, iteration)
        for output, destination in table.sends:
            if destination in self._table.stream_copies:
                rank = self._ranks[op]
                self._copies_requested.append((iteration, rank, output, destination, op))
            else:
                self._out.append(SendTensor(op, output, iteration, destination, -1))
        for producer, output, distance in table.reads:
            self._release(producer, output, iteration - distance)
        for producer, output, version in self._reading.pop(op, ()):
            self._release(producer, output, version)

    def _tensor_arrived(self, op: int, output: int, iteration: int) -> None:
        key = (op, output)
        self._arrived[key] = max(iteration, self._arrived.get(key, -1))
        self._place_version(key, iteration)
        for consumer, distance in self._table.consumers[key]:
            self._satisfy(consumer, iteration + distance)

    def _satisfy(self, op: int, iteration: int) -> None:
        missing = self._missing[op]
        slot = iteration % self._slots
        missing[slot] -= 1
        if missing[slot] == 0 and iteration < self._iterations:
            self._push_ready(op, iteration)

    def _push_ready(self, op: int, iteration: int) -> None:
        heapq.heappush(self._ready, (iteration, self._ranks[op], op))
        self._became_ready.append((op, iteration))

    def _place_initial_versions(self) -> None:
        for (op, output), count in self._table.initial_versions.items():
            for version in range(-count, 0):
                self._place_version((op, output), version)

    def _place_outputs(self, op: int, iteration: int) -> None:
        readers = self._table.readers
        num_outputs = self._program.num_outputs[op]
        for output in range(num_outputs):
            if (op, output) in readers:
                self._place_version((op, output), iteration)
            else:
                self._out.append(FreeTensor(op, output, iteration))

    def _place_version(self, key: tuple[int, int], version: int) -> None:
        """Counts the readers of a version that is now in memory.

        Of a tensor that `latest` edges read, the newest version has one reader more until a newer
        one is there; two versions may be posted in one round, in either order.
        """
        self._readers[key[0], key[1], version] = self._initial_readers(key, version)
        if key not in self._table.latest_tensors:
            return
        newest = self._newest.get(key)
        if newest is None:
            self._newest[key] = version
            return
        self._newest[key] = max(newest, version)
        self._release(key[0], key[1], min(newest, version))

    def _initial_readers(self, key: tuple[int, int], version: int) -> int:
        if version >= 0:
            return self._table.readers[key]
        return self._table.initial_readers[key][-version - 1]

    def _read_latest(self, op: int) -> tuple[int, ...]:
        reading: list[tuple[int, int, int]] = []
        for producer, output, _ in self._ops[op].latest:
            version = self._newest[producer, output]
            self._readers[producer, output, version] += 1
            reading.append((producer, output, version))
        self._reading[op] = tuple(reading)
        return tuple(version for _, _, version in reading)

    def _release(self, op: int, output: int, version: int) -> None:
        key = (op, output, version)
        count = self._readers[key] - 1
        if count == 0:
            del self._readers[key]
            self._out.append(FreeTensor(op, output, version))
        else:
            self._readers[key] = count

    def _waits(self, op: int, iteration: int) -> list[str]:
        program, names = self._program, self._program.names
        waits: list[str] = []
        table = program.ops[op]
        for producer, output, distance in (*table.reads, *table.latest):
            needed = iteration - distance
            if needed < 0:
                continue
            if program.placement[producer] == self.device:
                if self._done[producer] <= needed:
                    waits.append(f"{names[producer]}@{needed}")
            elif self._arrived.get((producer, output), -1) < needed:
                waits.append(f"tensor {names[producer]}:{output}@{needed}")
        for consumer, distance in program.credits[op]:
            needed = iteration - distance
            if needed < 0:
                continue
            if program.placement[consumer] == self.device:
                done = self._done[consumer] > needed
            else:
                done = self._credited.get(consumer, -1) >= needed
            if not done:
                waits.append(f"credit of {names[consumer]}@{needed}")
        waits += [
            f"hold {names[before]}@{iteration}"
            for before, after in program.holds
            if after == op and self._done[before] <= iteration
        ]
        return waits
