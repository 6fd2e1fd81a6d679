"""Memory as hard rules of a CP-SAT model: group state, resident inputs, tensors while they live.

Left out, so that the rules are never stricter than the runtime: tensors that other iterations
read, and what lives for zero time. Bytes are rounded to a grain in the plan's favour.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from doppler.core.graph import DataflowGraph
from doppler.planners.mask import NO_UNIT, Mask

if TYPE_CHECKING:
    from doppler.planners.cp_sat_model import ScheduleModel

# Memory of a device in grains: bytes times nanoseconds stay far below 2^63.
GRAINS = 100_000


def most_bytes(mask: Mask) -> int:
    """Returns more bytes than any device can hold at once in one iteration."""
    graph = mask.problem.graph
    return int(mask.state_U.sum()) + sum(sum(op.outputs) for op in graph.ops)


def input_readers(mask: Mask) -> dict[tuple[int, int], set[int]]:
    """Returns (input, output) -> units that read it, for inputs that are resident everywhere."""
    readers: dict[tuple[int, int], set[int]] = {}
    for edge in mask.problem.graph.edges:
        if mask.unit_V[edge.src] == NO_UNIT:
            unit = int(mask.unit_V[edge.dst])
            readers.setdefault((edge.src, edge.output), set()).add(unit)
    return readers


def add_memory(made: "ScheduleModel", tensors: Mapping[tuple[int, int], list[int]]) -> None:
    """Adds the memory of every device that may overflow.

    Args:
        made: The model with its intervals.
        tensors: (op, output) -> consumers in the same iteration.
    """
    mask = made.mask
    most = most_bytes(mask)
    for device in range(mask.num_devices):
        if most > int(mask.limit_D[device]):
            _DeviceMemory(made, device).add(tensors)


class _DeviceMemory:
    def __init__(self, made: "ScheduleModel", device: int) -> None:
        self._made, self._device = made, device
        self._model, self._mask = made.model, made.mask
        self._graph: DataflowGraph = made.mask.problem.graph
        self._unit = made.mask.unit_V.tolist()
        self._links = made.mask.problem.cluster.link_table
        limit = int(made.mask.limit_D[device])
        self._grain = max(1, limit // GRAINS)
        self._capacity = -(-limit // self._grain)
        self._intervals: list[Any] = []
        self._demands: list[int] = []
        self._last = made.last_ns

    def add(self, tensors: Mapping[tuple[int, int], list[int]]) -> None:
        made, model = self._made, self._model
        fixed = self._state() + self._inputs()
        if fixed:
            model.add(sum(size * literal for size, literal in fixed) <= self._capacity)
        for op in made.ops:
            for output, size in enumerate(self._graph.ops[op].outputs):
                self._at_home(op, output, size, tensors.get((op, output), []))
                self._abroad(op, output, size, tensors.get((op, output), []))
        for size, literal in fixed:
            whole = model.new_optional_fixed_size_interval_var(0, self._last + 1, literal, "")
            self._intervals.append(whole)
            self._demands.append(size)
        if self._intervals:
            model.add_cumulative(self._intervals, self._demands, self._capacity)

    def _state(self) -> list[tuple[int, Any]]:
        state = self._mask.state_U.tolist()
        return [
            (size // self._grain, self._made.on[unit, self._device])
            for unit, size in enumerate(state)
            if size and (unit, self._device) in self._made.on
        ]

    def _inputs(self) -> list[tuple[int, Any]]:
        rows: list[tuple[int, Any]] = []
        for (op, output), units in input_readers(self._mask).items():
            size = self._graph.ops[op].outputs[output] // self._grain
            literals = [
                self._made.on[unit, self._device]
                for unit in units
                if (unit, self._device) in self._made.on
            ]
            if size and literals:
                here = self._model.new_bool_var("")
                for literal in literals:
                    self._model.add_implication(literal, here)
                rows.append((size, here))
        return rows

    def _at_home(self, op: int, output: int, size: int, consumers: list[int]) -> None:
        """From the producer's start to the last local read and the end of the last send."""
        made, model, device = self._made, self._model, self._device
        here = made.on.get((self._unit[op], device))
        if here is None or size < self._grain:
            return
        free = self._lifetime(made.start[op], size, here)
        model.add(free >= made.end[op]).only_enforce_if(here)
        for consumer in consumers:
            reads = made.on.get((self._unit[consumer], device))
            if reads is not None:
                model.add(free >= made.end[consumer]).only_enforce_if(here, reads)
        for (sender, number, src, dst), present in made.present.items():
            if (sender, number, src) == (op, output, device):
                occupancy = self._links[src, dst].occupancy_ns(size)
                send = made.send[sender, number, dst]
                model.add(free >= send + occupancy).only_enforce_if(present)

    def _abroad(self, op: int, output: int, size: int, consumers: list[int]) -> None:
        """From the start of the transfer to the last read."""
        made, model, device = self._made, self._model, self._device
        unit = self._unit[op]
        readers = [
            consumer
            for consumer in consumers
            if self._unit[consumer] != unit and (self._unit[consumer], device) in made.on
        ]
        if not readers or size < self._grain:
            return
        here = model.new_bool_var("")
        home = made.on.get((unit, device))
        for unit_of_reader in {self._unit[consumer] for consumer in readers}:
            clause = [here, made.on[unit_of_reader, device].negated()]
            model.add_bool_or(*clause, *([] if home is None else [home]))
        begin = model.new_int_var(0, self._last, "")
        send = made.send.get((op, output, device))
        for source in made.devices_of(unit):
            if source == device or (source, device) not in self._links:
                continue
            present = made.present.get((op, output, source, device))
            if present is None:
                model.add(begin <= made.end[op]).only_enforce_if(here, made.on[unit, source])
            else:
                model.add(begin <= send).only_enforce_if(here, present)
        free = self._lifetime(begin, size, here)
        for consumer in readers:
            reads = made.on[self._unit[consumer], device]
            model.add(free >= made.end[consumer]).only_enforce_if(here, reads)

    def _lifetime(self, begin: Any, size: int, here: Any) -> Any:
        model = self._model
        free = model.new_int_var(0, self._last + 1, "")
        length = model.new_int_var(0, self._last + 1, "")
        self._intervals.append(model.new_optional_interval_var(begin, length, free, here, ""))
        self._demands.append(size // self._grain)
        return free
