"""Checks a trace against the rules of the runtime, from the graph and the plan alone.

Nothing here uses the dispatcher or an engine: a fault in them cannot hide itself. What is checked:

- every op runs once per iteration, on its device, iterations in order, streams without overlap;
- it becomes ready when its last input, credit, hold and previous iteration are there, at that very
  moment, and the versions that its `latest` edges read are legal;
- no stream stands idle while something waits for it, and what waits goes by rule 1 of the
  dispatcher (copies on the sender's stream first, oldest first);
- every tensor that the plan sends is sent once per destination, and no other;
- in simulated traces the buses: occupancy, latency, FIFO, nobody waits without a reason.
"""

import heapq
from collections.abc import Iterator, Sequence

from doppler.core.cluster import Link
from doppler.core.errors import TraceError
from doppler.core.graph import Edge, EdgeMode, InputResidency
from doppler.core.occupancy import first_excess, idle_gaps
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace, TransferSpan

MEASURED_RUNTIMES = ("executor",)
_Tensor = tuple[int, int, int, int]  # op, output, iteration, destination


def check_trace(problem: Problem, plan: Plan, trace: Trace, tolerance_ns: int = 0) -> None:
    """Checks all rules.

    Args:
        problem: What ran.
        plan: How it was placed.
        trace: What was seen.
        tolerance_ns: How long a ready op may be overlooked and a stream may seem idle: 0 for
            simulated traces without dispatch costs, else at least the largest dispatch cost; the
            time of a poll for measured ones. Causes always come before effects.

    Raises:
        TraceError: Names the rule, the op and the iteration.
    """
    _Checker(problem, plan, trace, tolerance_ns).check()


class _Checker:
    """One check; `spans` and `sent` are indices over the trace."""

    def __init__(self, problem: Problem, plan: Plan, trace: Trace, tolerance_ns: int) -> None:
        graph = problem.graph
        everywhere = graph.inputs is InputResidency.everywhere
        self.graph, self.cluster = graph, problem.cluster
        self.plan, self.trace, self.tolerance_ns = plan, trace, tolerance_ns
        self.runs = [not (op.is_input and everywhere) for op in graph.ops]
        self.edges = [edge for edge in graph.edges if self.runs[edge.src]]
        self.in_edges: list[list[Edge]] = [[] for _ in graph.ops]
        self.credits: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
        for edge in self.edges:
            self.in_edges[edge.dst].append(edge)
            if edge.src != edge.dst:
                self.credits[edge.src].append((edge.dst, graph.window - edge.distance))
        self.held_by: list[list[int]] = [[] for _ in graph.ops]
        for before, after in plan.holds:
            self.held_by[after].append(before)
            self.credits[before].append((after, graph.window))
        self.ranks = plan.ranks()
        self.spans: dict[tuple[int, int], OpSpan] = {}
        self.sent: dict[_Tensor, TransferSpan] = {}

    def check(self) -> None:
        self._check_identity()
        self._check_each_op_once()
        self._check_each_tensor_once()
        for span in self.trace.op_spans:
            self._check_ready(span)
            self._check_versions(span)
        for device in range(self.cluster.num_devices):
            ops = [span for span in self.trace.op_spans if span.device == device]
            copies = [span for span in self.trace.transfers if self._is_on_stream(span, device)]
            self._check_streams(device, ops)
            self._check_idle(device, ops, copies)
            self._check_order(ops, copies)
        if self.trace.runtime not in MEASURED_RUNTIMES:
            self._check_network()

    def _name(self, op: int, iteration: int) -> str:
        name = self.graph.ops[op].name if 0 <= op < self.graph.num_ops else "?"
        return f"op {op} ({name!r}) of iteration {iteration}"

    def _check_identity(self) -> None:
        for label, found, expected in (
            ("graph", self.trace.graph_digest, self.graph.digest),
            ("cluster", self.trace.cluster_digest, self.cluster.digest),
        ):
            if found != expected:
                raise TraceError(
                    f"the trace is of {label} {found}, and the problem's is {expected}"
                )
        if len(self.trace.peak_bytes) != self.cluster.num_devices:
            raise TraceError(
                f"peak_bytes has one entry per device ({self.cluster.num_devices}), and the trace "
                f"has {len(self.trace.peak_bytes)}"
            )

    def _check_each_op_once(self) -> None:
        graph, iterations = self.graph, self.trace.iterations
        for span in self.trace.op_spans:
            where = self._name(span.op, span.iteration)
            if not (
                0 <= span.op < graph.num_ops
                and self.runs[span.op]
                and 0 <= span.iteration < iterations
            ):
                raise TraceError(f"only ops of the graph run, and the trace has {where}")
            if (span.op, span.iteration) in self.spans:
                raise TraceError(f"each op runs once per iteration, and {where} ran twice")
            device = self.plan.placement[span.op]
            if span.device != device:
                raise TraceError(
                    f"an op runs where it is placed, and {where} ran on device {span.device} "
                    f"instead of {device}"
                )
            if not 0 <= span.stream < self.cluster.devices[device].num_streams:
                raise TraceError(f"a stream is one of its device, and {where} has {span.stream}")
            if not 0 <= span.ready_ns <= span.start_ns <= span.end_ns:
                raise TraceError(
                    f"ready, start and end come in this order, and {where} has {span.ready_ns}, "
                    f"{span.start_ns}, {span.end_ns}"
                )
            self.spans[span.op, span.iteration] = span
        for op in range(graph.num_ops):
            for iteration in range(iterations):
                if self.runs[op] and (op, iteration) not in self.spans:
                    raise TraceError(
                        f"each op runs once per iteration, and {self._name(op, iteration)} "
                        f"did not run"
                    )

    def _check_each_tensor_once(self) -> None:
        place = self.plan.placement
        expected = {
            (edge.src, edge.output, iteration, place[edge.dst])
            for edge in self.edges
            if place[edge.src] != place[edge.dst]
            for iteration in range(self.trace.iterations)
        }
        for span in self.trace.transfers:
            key = (span.op, span.output, span.iteration, span.dst)
            where = (
                f"output {span.output} of {self._name(span.op, span.iteration)} "
                f"to device {span.dst}"
            )
            if key not in expected:
                raise TraceError(f"only tensors with a remote reader are sent, and {where} was")
            if key in self.sent:
                raise TraceError(f"a tensor is sent once per destination, and {where} was twice")
            if span.src != place[span.op]:
                raise TraceError(f"the producer's device sends, and {where} came from {span.src}")
            end_ns = self.spans[span.op, span.iteration].end_ns
            if not end_ns <= span.request_ns <= end_ns + self.tolerance_ns:
                raise TraceError(
                    f"a send is requested when the producer ends ({end_ns}), and {where} was "
                    f"requested at {span.request_ns}"
                )
            if not span.request_ns <= span.start_ns <= span.release_ns <= span.arrival_ns:
                raise TraceError(f"request, start, release, arrival come in this order, not {span}")
            self.sent[key] = span
        for op, output, iteration, dst in sorted(expected - self.sent.keys()):
            raise TraceError(
                f"a tensor is sent to every device that reads it, and output {output} of "
                f"{self._name(op, iteration)} was not sent to device {dst}"
            )

    def _there_ns(self, edge: Edge, version: int) -> int:
        """When a version of an edge's tensor was on the consumer's device."""
        if version < 0:
            return 0
        device = self.plan.placement[edge.dst]
        if self.plan.placement[edge.src] == device:
            return self.spans[edge.src, version].end_ns
        return self.sent[edge.src, edge.output, version, device].arrival_ns

    def _causes(self, op: int, iteration: int) -> Iterator[tuple[int, str]]:
        """(time, what) of everything that an op waits for."""
        yield 0, "the start of the run"
        if iteration > 0:
            yield self.spans[op, iteration - 1].end_ns, "its previous iteration"
        for edge in self.in_edges[op]:
            version = iteration - edge.distance
            yield self._there_ns(edge, version), f"input {self.graph.ops[edge.src].name}@{version}"
        for consumer, distance in self.credits[op]:
            if iteration >= distance:
                name = f"the credit of {self.graph.ops[consumer].name}@{iteration - distance}"
                yield self.spans[consumer, iteration - distance].end_ns, name
        for before in self.held_by[op]:
            yield self.spans[before, iteration].end_ns, f"the hold on {self.graph.ops[before].name}"

    def _check_ready(self, span: OpSpan) -> None:
        time_ns, cause = max(self._causes(span.op, span.iteration))
        where = self._name(span.op, span.iteration)
        if span.ready_ns < time_ns:
            raise TraceError(
                f"an op waits for {cause} ({time_ns} ns), and {where} was ready at {span.ready_ns}"
            )
        if span.ready_ns > time_ns + self.tolerance_ns:
            raise TraceError(
                f"an op is ready when its last cause is there ({cause}, {time_ns} ns), and {where} "
                f"was ready at {span.ready_ns}"
            )

    def _check_versions(self, span: OpSpan) -> None:
        where = self._name(span.op, span.iteration)
        edges = [edge for edge in self.in_edges[span.op] if edge.mode is EdgeMode.latest]
        if len(edges) != len(span.versions):
            raise TraceError(
                f"an op reads one version per `latest` edge ({len(edges)}), and {where} has "
                f"{span.versions}"
            )
        previous = self.spans.get((span.op, span.iteration - 1))
        for index, (edge, version) in enumerate(zip(edges, span.versions, strict=True)):
            source = self.graph.ops[edge.src].name
            if version < span.iteration - edge.distance or version >= self.trace.iterations:
                raise TraceError(
                    f"a `latest` edge reads version {span.iteration - edge.distance} of {source} "
                    f"or a newer one, and {where} read {version}"
                )
            if self._there_ns(edge, version) > span.start_ns:
                raise TraceError(
                    f"a version is read after its arrival, and {where} read {source}@{version}"
                )
            newer = version + 1
            seen_ns = max(span.ready_ns, span.start_ns - self.tolerance_ns)
            if newer < self.trace.iterations and self._there_ns(edge, newer) < seen_ns:
                raise TraceError(
                    f"a `latest` edge reads the newest version, and {where} read {version} of "
                    f"{source} when {newer} was there"
                )
            if previous is not None and previous.versions[index] > version:
                raise TraceError(f"versions never go back, and {where} read {source}@{version}")

    def _is_on_stream(self, span: TransferSpan, device: int) -> bool:
        link = self._link(span)
        return (
            span.src == device
            and self.cluster.devices[device].copy_engines == 0
            and link.bytes_per_s is not None
        )

    def _link(self, span: TransferSpan) -> Link:
        return self.cluster.link_table[span.src, span.dst]

    def _check_streams(self, device: int, ops: Sequence[OpSpan]) -> None:
        last: dict[int, OpSpan] = {}
        for span in sorted(ops, key=lambda s: (s.start_ns, s.end_ns)):
            before = last.get(span.stream)
            if before is not None and before.end_ns > span.start_ns:
                raise TraceError(
                    f"a stream runs one op at a time, and on stream {span.stream} of device "
                    f"{self.cluster.devices[device].name!r} {self._name(span.op, span.iteration)} "
                    f"started before {self._name(before.op, before.iteration)} ended"
                )
            last[span.stream] = span

    def _check_idle(
        self, device: int, ops: Sequence[OpSpan], copies: Sequence[TransferSpan]
    ) -> None:
        """Where something waits, all streams are busy; copies on a stream make it busy too."""
        tolerance, streams = self.tolerance_ns, self.cluster.devices[device].num_streams
        work = [(s.start_ns, s.end_ns) for s in ops] + [(s.start_ns, s.release_ns) for s in copies]
        if first_excess(work, streams) is not None:
            raise TraceError(
                f"a device runs at most {streams} ops and copies at a time, and "
                f"{self.cluster.devices[device].name!r} ran more at {first_excess(work, streams)}"
            )
        gaps = idle_gaps([(start - tolerance, end) for start, end in work], streams)
        waits = [(s.ready_ns, s.start_ns, s.op, s.iteration) for s in ops]
        waits += [(s.request_ns, s.start_ns, s.op, s.iteration) for s in copies]
        position = 0
        for ready, start, op, iteration in sorted(waits):
            while position < len(gaps) and gaps[position][1] <= ready:
                position += 1
            if position < len(gaps) and max(gaps[position][0], ready) < start - tolerance:
                raise TraceError(
                    f"a free stream starts ready work at once, and a stream of device "
                    f"{self.cluster.devices[device].name!r} was idle from "
                    f"{max(gaps[position][0], ready)} ns while {self._name(op, iteration)} or a "
                    f"copy of it waited from {ready} to {start}"
                )

    def _check_order(self, ops: Sequence[OpSpan], copies: Sequence[TransferSpan]) -> None:
        """Nothing starts while something that goes first by rule 1 stays behind.

        What became ready at the instant of a start counts if that was surely in the first round.
        """
        exact = self.tolerance_ns == 0
        items: list[tuple[int, int, tuple[int, ...], int, int]] = []
        for op in ops:
            late = not (exact and self._is_ready_first(op))
            key: tuple[int, ...] = (op.iteration, self.ranks[op.op])
            items.append((op.start_ns, op.ready_ns + late, key, op.op, op.iteration))
        for copy in copies:
            late = not (exact and self._ends_first((copy.op, copy.iteration)))
            key = (-1, *self._request_key(copy))
            items.append((copy.start_ns, copy.request_ns + late, key, copy.op, copy.iteration))
        by_ready = sorted(items, key=lambda item: item[1])
        waiting: list[tuple[tuple[int, ...], int, int, int]] = []
        position = 0
        for start, _, key, op_id, iteration in sorted(items):
            while position < len(by_ready) and by_ready[position][1] <= start - self.tolerance_ns:
                other = by_ready[position]
                heapq.heappush(waiting, (other[2], other[0], other[3], other[4]))
                position += 1
            while waiting and waiting[0][1] <= start + self.tolerance_ns:
                heapq.heappop(waiting)
            if waiting and waiting[0][0] < key:
                first = self._name(waiting[0][2], waiting[0][3])
                raise TraceError(
                    f"ready work goes by (copies, iteration, priority, op id), and "
                    f"{self._name(op_id, iteration)} started at {start} before {first}"
                )

    def _ends_first(self, key: tuple[int, int]) -> bool:
        """True if an op ends in the first round of its instant: it began before."""
        return self.spans[key].start_ns < self.spans[key].end_ns

    def _is_ready_first(self, span: OpSpan) -> bool:
        """True if nothing that made an op ready can have come in a later round of that instant."""
        op, iteration, at_ns = span.op, span.iteration, span.ready_ns
        ended = [(op, iteration - 1)] if iteration else []
        ended += [(before, iteration) for before in self.held_by[op]]
        for edge in self.in_edges[op]:
            version = iteration - edge.distance
            if version < 0:
                continue
            if self.plan.placement[edge.src] == span.device:
                ended.append((edge.src, version))
                continue
            sent = self.sent[edge.src, edge.output, version, span.device]
            if sent.start_ns == sent.arrival_ns == at_ns:
                return False
        for consumer, distance in self.credits[op]:
            if iteration < distance:
                continue
            if self.plan.placement[consumer] == span.device:
                ended.append((consumer, iteration - distance))
            elif self.spans[consumer, iteration - distance].end_ns == at_ns:
                return False  # a credit arrives one round later
        return all(self.spans[key].end_ns < at_ns or self._ends_first(key) for key in ended)

    def _check_network(self) -> None:
        """Simulated buses: a transfer starts when its turn has come and all its buses are free."""
        free_ns: dict[str, int] = {}
        queued: list[tuple[TransferSpan, tuple[int, ...]]] = []
        for span in self.trace.transfers:
            link = self._link(span)
            where = f"a transfer of {self._name(span.op, span.iteration)} to device {span.dst}"
            num_bytes = self.graph.ops[span.op].outputs[span.output]
            took = (span.release_ns - span.start_ns, span.arrival_ns - span.release_ns)
            if took != (link.occupancy_ns(num_bytes), link.latency_ns):
                raise TraceError(
                    f"a transfer takes {link.occupancy_ns(num_bytes)} ns and a latency of "
                    f"{link.latency_ns} ns, and {where} took {took[0]} and {took[1]}"
                )
            if link.bytes_per_s is None and span.start_ns != span.request_ns:
                raise TraceError(f"what is not copied waits for nothing, and {where} waited")
            queued.append((span, self._request_key(span)))
        queued.sort(key=lambda entry: (entry[0].start_ns, entry[0].release_ns, entry[1]))
        for span, _ in queued:
            buses = self._link(span).buses
            where = f"a transfer of {self._name(span.op, span.iteration)} to device {span.dst}"
            expected = max([span.request_ns, *(free_ns.get(bus, 0) for bus in buses)])
            if buses and span.start_ns != expected:
                raise TraceError(
                    f"a transfer starts when its buses are free ({expected} ns), and {where} "
                    f"started at {span.start_ns}"
                )
            free_ns.update(dict.fromkeys(buses, span.release_ns))
        self._check_fifo(queued)

    def _request_key(self, span: TransferSpan) -> tuple[int, ...]:
        """Requests are served in this order."""
        return (span.request_ns, span.iteration, self.ranks[span.op], span.output, span.dst)

    def _check_fifo(self, queued: Sequence[tuple[TransferSpan, tuple[int, ...]]]) -> None:
        """On every bus starts go by key, except that a key may come when a later one has begun."""
        for bus in self.cluster.bus_names:
            last_request = 0
            last_waiting: tuple[int, ...] = ()
            for span, key in queued:
                if bus not in self._link(span).buses:
                    continue
                if span.request_ns < last_request or key < last_waiting:
                    raise TraceError(
                        f"a bus serves requests by (request time, iteration, rank, output, "
                        f"destination), and on {bus!r} a transfer of "
                        f"{self._name(span.op, span.iteration)} was overtaken"
                    )
                last_request = span.request_ns
                if span.start_ns > span.request_ns:
                    last_waiting = key
