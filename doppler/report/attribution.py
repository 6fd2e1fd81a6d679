"""Where the time of each device goes: every nanosecond of a window has exactly one name.

At every instant a device is in the first of these states that holds:

1. *compute*: an op runs on one of its streams (of several the one that started first, then the
   lowest stream, gives the op kind);
2. *copy*: a stream of the device copies a tensor to another device (no copy engines);
3. *dispatch*: the runtime's own time: all that the device's next op needs is there, a stream is
   free, and the op has not been entered;
4. idle. The *next op* is the one that the device starts next, and its *last requirement* is what
   came last of all that it needs. Until the last requirement is there the device is idle because
   - *exposed communication*: it is a tensor, and it has been requested and has not arrived;
   - *waiting for a producer*: it is a tensor of this iteration that another device has not made;
   - *end of iteration*: the same, for a tensor of an earlier iteration (a loop-carried edge);
   - *back-pressure*: it is a credit: a consumer still holds the window's oldest iteration;
   - *no work*: the device starts no further op in this trace.

Communication that is not exposed costs nothing: `hidden_ns` is the part of *compute* during which
a tensor to or from the device was in flight. It overlaps compute and is in no sum.
"""

import enum
import heapq
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from doppler.core.errors import DopplerError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.program import Program, compile_program
from doppler.core.trace import OpSpan, Trace, TransferSpan
from doppler.report.intervals import Interval, intersect, length, subtract, union


class Category(enum.Enum):
    """What a device does at an instant; the module's docstring defines each."""

    compute = "compute"
    copy = "copy"
    dispatch = "dispatch"
    exposed = "exposed"
    producer = "producer"
    iteration_end = "iteration_end"
    back_pressure = "back_pressure"
    no_work = "no_work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Time of one device under one name.

    Attributes:
        category: The state.
        label: Op kind (compute), or what was waited for ("grad on core1"); else empty.
        time_ns: Its time within the window, positive.
    """

    category: Category
    label: str
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAttribution:
    """The window of one device, divided.

    Attributes:
        device: Device name.
        window_ns: Length of the window; the shares sum to it.
        shares: By category in the order of `Category`, then largest first.
        hidden_ns: Compute time during which a tensor of this device was in flight.
    """

    device: str
    window_ns: int
    shares: tuple[Share, ...]
    hidden_ns: int

    def time_ns(self, category: Category) -> int:
        """Returns the time of all shares of a category."""
        return sum(share.time_ns for share in self.shares if share.category is category)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of a trace, [begin_ns, end_ns), which `iterations` iterations took."""

    begin_ns: int
    end_ns: int
    iterations: int


def steady_window(trace: Trace, tail: int) -> Window:
    """Returns the window from the end of a middle iteration to the end of a late one.

    Args:
        trace: At least one iteration.
        tail: Iterations left out at the end, where no later one overlaps any more (the graph's
            window). Of the others the first half is left out as start-up.

    Raises:
        DopplerError: If fewer than two iterations are left.
    """
    ends = trace.iteration_ends_ns()
    last = len(ends) - 1 - tail
    if last < 1:
        raise DopplerError(
            f"a steady window needs two iterations before the last {tail}, "
            f"and the trace has {len(ends)} in all"
        )
    first = last // 2
    return Window(begin_ns=ends[first], end_ns=ends[last], iterations=last - first)


def attribute(
    problem: Problem, plan: Plan, trace: Trace, window: Window
) -> tuple[DeviceAttribution, ...]:
    """Returns one attribution per device, in the order of the cluster.

    Raises:
        DopplerError: If the window is empty or reversed.
    """
    if window.begin_ns >= window.end_ns:
        raise DopplerError(
            f"a window ends after its begin, and it is [{window.begin_ns}, {window.end_ns}) ns"
        )
    program = compile_program(problem, plan)
    ends = {(span.op, span.iteration): span.end_ns for span in trace.op_spans}
    arrivals = {(t.op, t.output, t.iteration, t.dst): t for t in trace.transfers}
    return tuple(
        _Divider(problem, program, trace, device, ends, arrivals).divide(window)
        for device in range(problem.cluster.num_devices)
    )


@dataclass(frozen=True, slots=True)
class _Requirement:
    """What an op waits for: when it came, and which name the wait for it has."""

    time_ns: int
    transfer: TransferSpan | None
    category: Category
    label: str


class _Divider:
    """Divides the time of one device; built once per trace and device."""

    def __init__(
        self,
        problem: Problem,
        program: Program,
        trace: Trace,
        device: int,
        ends: dict[tuple[int, int], int],
        arrivals: dict[tuple[int, int, int, int], TransferSpan],
    ) -> None:
        self._problem = problem
        self._program = program
        self._device = device
        self._ends = ends
        self._arrivals = arrivals
        self._spans = [span for span in trace.op_spans if span.device == device]
        self._spans.sort(key=lambda span: (span.start_ns, span.stream))
        self._starts = [span.start_ns for span in self._spans]
        self._transfers = [t for t in trace.transfers if device in (t.src, t.dst)]
        self._times: dict[tuple[Category, str], int] = {}

    def divide(self, window: Window) -> DeviceAttribution:
        whole = [(window.begin_ns, window.end_ns)]
        self._times = {}
        running: list[Interval] = []
        for begin, end, kind in self._running_kinds():
            part = intersect([(begin, end)], whole)
            running += part
            self._add(Category.compute, kind, length(part))
        running = union(running)
        copies = subtract(intersect(self._copies(), whole), running)
        self._add(Category.copy, "", length(copies))
        used = union([*running, *copies])
        entering = subtract(intersect(self._entering(), whole), used)
        self._add(Category.dispatch, "", length(entering))
        for begin, end in subtract(whole, union([*used, *entering])):
            self._divide_gap(begin, end)
        flying = union((t.request_ns, t.arrival_ns) for t in self._transfers)
        return DeviceAttribution(
            device=self._problem.cluster.devices[self._device].name,
            window_ns=window.end_ns - window.begin_ns,
            shares=self._shares(),
            hidden_ns=length(intersect(running, flying)),
        )

    def _add(self, category: Category, label: str, time_ns: int) -> None:
        if time_ns > 0:
            key = (category, label)
            self._times[key] = self._times.get(key, 0) + time_ns

    def _shares(self) -> tuple[Share, ...]:
        order = list(Category)
        rows = sorted(
            self._times.items(), key=lambda row: (order.index(row[0][0]), -row[1], row[0][1])
        )
        return tuple(
            Share(category=category, label=label, time_ns=time_ns)
            for (category, label), time_ns in rows
        )

    def _running_kinds(self) -> Iterator[tuple[int, int, str]]:
        """Yields disjoint (begin, end, kind): of the ops that run, the one that started first."""
        active: list[tuple[int, int, int, str]] = []
        position = 0
        index = 0
        while active or index < len(self._spans):
            if not active:
                position = max(position, self._starts[index])
            while index < len(self._spans) and self._starts[index] <= position:
                heapq.heappush(active, self._entry(self._spans[index]))
                index += 1
            _, _, end, kind = active[0]
            # The head started first, so no later start takes the time from it.
            if end > position:
                yield position, end, kind
                position = end
            heapq.heappop(active)

    def _entry(self, span: OpSpan) -> tuple[int, int, int, str]:
        kind = self._problem.graph.ops[span.op].kind
        return span.start_ns, span.stream, span.end_ns, kind

    def _copies(self) -> list[Interval]:
        on_stream = self._program.devices[self._device].stream_copies
        return union(
            (t.start_ns, t.release_ns)
            for t in self._transfers
            if t.src == self._device and t.dst in on_stream
        )

    def _entering(self) -> list[Interval]:
        """Returns the time between "ready, and its stream is free" and the op's entry."""
        free_from: dict[int, int] = {}
        intervals: list[Interval] = []
        for span in self._spans:
            begin = max(span.ready_ns, free_from.get(span.stream, 0))
            intervals.append((begin, span.start_ns))
            free_from[span.stream] = max(free_from.get(span.stream, 0), span.end_ns)
        return union(intervals)

    def _divide_gap(self, begin: int, end: int) -> None:
        """Names an idle gap; an op without length may split it."""
        position = begin
        while position < end:
            index = bisect_left(self._starts, position + 1)
            if index == len(self._spans):
                self._add(Category.no_work, "", end - position)
                return
            stop = min(end, self._starts[index])
            self._divide_wait(position, stop, self._spans[index])
            position = stop

    def _divide_wait(self, begin: int, end: int, span: OpSpan) -> None:
        last = self._last_requirement(span)
        if last is None:
            self._add(Category.dispatch, "", end - begin)
            return
        made = last.time_ns if last.transfer is None else last.transfer.request_ns
        first, second = max(begin, min(made, end)), max(begin, min(last.time_ns, end))
        self._add(last.category, last.label, first - begin)
        if last.transfer is not None and second > first:
            self._add(Category.exposed, self._where(last.transfer.op, "from"), second - first)
        self._add(Category.dispatch, "", end - max(first, second))

    def _last_requirement(self, span: OpSpan) -> _Requirement | None:
        requirements = list(self._requirements(span))
        return max(requirements, key=lambda item: item.time_ns, default=None)

    def _requirements(self, span: OpSpan) -> Iterator[_Requirement]:
        table = self._program.ops[span.op]
        for producer, output, distance in (*table.reads, *table.latest):
            category = Category.iteration_end if distance else Category.producer
            version = span.iteration - distance
            transfer = self._arrivals.get((producer, output, version, self._device))
            if transfer is not None:
                label = self._where(producer, "on")
                yield _Requirement(transfer.arrival_ns, transfer, category, label)
            elif self._is_here(producer):
                yield from self._end_of(producer, version, Category.dispatch)
        for consumer, distance in self._program.credits[span.op]:
            yield from self._end_of(consumer, span.iteration - distance, Category.back_pressure)
        yield from self._end_of(span.op, span.iteration - 1, Category.dispatch)
        for before, after in self._program.holds:
            if after == span.op:
                yield from self._end_of(before, span.iteration, Category.dispatch)

    def _end_of(self, op: int, iteration: int, category: Category) -> Iterator[_Requirement]:
        """Yields the end of an op, if it is in the trace.

        An idle device cannot wait for one of its own ops: what its next op needs of them is
        there, and the time until it starts is the runtime's.
        """
        end = self._ends.get((op, iteration))
        if end is not None:
            here = self._is_here(op)
            label = "" if here else self._where(op, "on")
            yield _Requirement(end, None, Category.dispatch if here else category, label)

    def _is_here(self, op: int) -> bool:
        return self._program.placement[op] == self._device

    def _where(self, op: int, preposition: str) -> str:
        device = self._problem.cluster.devices[self._program.placement[op]].name
        return f"{self._problem.graph.ops[op].kind} {preposition} {device}"
