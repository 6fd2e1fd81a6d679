"""Operands that have left the caches: what an op costs more the later it reads what others made.

Between the end of a producer and the start of its consumer the devices of a host write other
tensors. If these are more than a cache holds, the operand is read from memory: it is cold. How many
bytes of an op are cold depends on the plan and its order, so the term is no part of a cost table: a
plan is simulated, its cold bytes are counted, its times corrected, and it is simulated again.

Source: reuse distance as in Mattson et al., "Evaluation techniques for storage hierarchies", IBM
Systems Journal 9 (1970), counted in bytes written.
"""

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace
from simulator.calibrate import observe, op_size

CAPACITIES = tuple(1 << power for power in range(20, 26))
"""Bytes written after which an operand counts as cold: 1 to 32 MiB; the fit chooses."""
OUTLIER = 2.0
"""Executions that took so many times their group's median were disturbed, and are left out."""
FOLDS = 2

Floats = NDArray[np.float64]
Group = tuple[str, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseSample:
    """One measured execution of an op.

    Attributes:
        kind: Kind of the op.
        size: Its size, as `op_size` has it.
        is_beside: True if siblings were busy for more than half of it.
        cold_bytes: Cold bytes among its operands, per entry of `CAPACITIES`.
        duration_ns: Kernel entry to return.
    """

    kind: str
    size: int
    is_beside: bool
    cold_bytes: tuple[int, ...]
    duration_ns: int

    @property
    def group(self) -> Group:
        """Executions that differ by their operands' place only."""
        return self.kind, self.size, self.is_beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What cold operands cost on a machine.

    Attributes:
        capacity_bytes: Bytes written after which an operand is cold.
        cold_ns_per_byte: Extra time per cold byte, above 0.
        usual_bytes: (op kind, size) -> mean cold bytes where it was measured, which the times of a
            table stand for.
        error_without, error: Mean distance of held-out op times from the fit without and with the
            term, as a part of the mean time.
    """

    capacity_bytes: int
    cold_ns_per_byte: float
    usual_bytes: Mapping[tuple[str, int], float]
    error_without: float
    error: float

    def costs(self, problem: Problem, costs: Costs, trace: Trace) -> Costs:
        """Returns the times of a plan's ops with as many cold bytes as its trace says.

        Args:
            problem: Graph and cluster.
            costs: Times without the term.
            trace: The plan, simulated or run; of its iterations the last counts.
        """
        cold = {span.op: 0 for span in trace.op_spans}
        for (op, _), found in sorted(cold_bytes(problem, trace, (self.capacity_bytes,)).items()):
            cold[op] = found[0]
        rows = list(costs.op_ns)
        for op, num_bytes in cold.items():
            spec = problem.graph.ops[op]
            usual = self.usual_bytes.get((spec.kind, op_size(spec)))
            if usual is not None:
                extra = round(self.cold_ns_per_byte * (num_bytes - usual))
                rows[op] = tuple(max(1, time + extra) for time in rows[op])
        return replace(costs, op_ns=tuple(rows))


def cold_bytes(
    problem: Problem, trace: Trace, capacities: Sequence[int] = CAPACITIES
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Returns (op, iteration) -> cold bytes among its operands, per capacity.

    Graph inputs and operands of other iterations are left out: where they lie depends on what ran
    before. Writes of all devices of the trace count: cores of a host share a cache.
    """
    graph = problem.graph
    spans = sorted(trace.op_spans, key=lambda span: span.start_ns)
    starts = [span.start_ns for span in spans]
    written = [sum(graph.ops[span.op].outputs) for span in spans]
    before = list(itertools.accumulate(written, initial=0))
    ends = {(span.op, span.iteration): span.end_ns for span in spans}
    operands = _operands(graph)
    result: dict[tuple[int, int], tuple[int, ...]] = {}
    for span in spans:
        counts = [0] * len(capacities)
        for src, num_bytes in operands[span.op]:
            since = ends.get((src, span.iteration), span.start_ns)
            distance = _between(before, starts, since, span)
            for index, capacity in enumerate(capacities):
                if distance > capacity:
                    counts[index] += num_bytes
        result[span.op, span.iteration] = tuple(counts)
    return result


def reuse_samples(problem: Problem, trace: Trace, skip_iterations: int = 0) -> list[ReuseSample]:
    """Returns one sample per op span of the iterations from `skip_iterations` on."""
    found = cold_bytes(problem, trace)
    spans = [span for span in trace.op_spans if span.iteration >= skip_iterations]
    return [
        ReuseSample(
            kind=seen.kind,
            size=seen.flop,
            is_beside=seen.overlap > 0.5,
            cold_bytes=found[span.op, span.iteration],
            duration_ns=seen.duration_ns,
        )
        for span, seen in zip(spans, observe(problem, trace, skip_iterations), strict=True)
    ]


def fit_reuse(windows: Sequence[Sequence[ReuseSample]]) -> Reuse | None:
    """Returns what cold operands cost, None if they cost nothing that held-out windows confirm.

    Least squares of duration against cold bytes within groups of equal ops, at the capacity that
    explains left-out windows best. Each half of the windows is judged by the fit of the other, and
    the term counts only if it makes the error of both smaller.

    Args:
        windows: Samples per measured window, under plans that differ.
    """
    samples = [sample for window in windows for sample in window]
    fold_S = np.array(
        [index % FOLDS for index, window in enumerate(windows) for _ in window], dtype=np.int64
    )
    if len(np.unique(fold_S)) < FOLDS:
        return None
    ids: dict[Group, int] = {}
    group_S = np.array([ids.setdefault(s.group, len(ids)) for s in samples], dtype=np.int64)
    time_S = np.array([s.duration_ns for s in samples], dtype=np.float64)
    cold_SC = np.array([s.cold_bytes for s in samples], dtype=np.float64)
    keep = _undisturbed(time_S, group_S)
    fold_S, group_S, time_S, cold_SC = fold_S[keep], group_S[keep], time_S[keep], cold_SC[keep]
    best: tuple[float, float, int] | None = None
    for column in range(cold_SC.shape[1]):
        errors = [_held_out(cold_SC[:, column], time_S, group_S, fold_S != f) for f in range(FOLDS)]
        if all(with_term < without for without, with_term in errors):
            without, with_term = (sum(pair) / FOLDS for pair in zip(*errors, strict=True))
            if best is None or with_term < best[1]:
                best = without, with_term, column
    if best is None:
        return None
    column = best[2]
    slope = _slope(cold_SC[:, column], time_S, group_S)
    if slope <= 0.0:
        return None
    return Reuse(
        capacity_bytes=CAPACITIES[column],
        cold_ns_per_byte=slope,
        usual_bytes=_usual(samples, column),
        error_without=best[0],
        error=best[1],
    )


def _operands(graph: DataflowGraph) -> list[list[tuple[int, int]]]:
    """(producer, bytes) per op, of what another op of the same iteration makes."""
    operands: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
    for edge in graph.edges:
        if edge.distance == 0 and not graph.ops[edge.src].is_input:
            operands[edge.dst].append((edge.src, graph.ops[edge.src].outputs[edge.output]))
    return operands


def _between(before: Sequence[int], starts: Sequence[int], since_ns: int, span: OpSpan) -> int:
    """Bytes written by ops that started from `since_ns` on and before `span`."""
    first = bisect.bisect_left(starts, since_ns)
    last = bisect.bisect_left(starts, span.start_ns)
    return before[max(first, last)] - before[first]


def _undisturbed(time_S: Floats, group_S: NDArray[np.int64]) -> NDArray[np.bool_]:
    keep = np.ones(len(time_S), dtype=np.bool_)
    for group in np.unique(group_S):
        rows = group_S == group
        keep[rows] = time_S[rows] <= OUTLIER * np.median(time_S[rows])
    return keep


def _group_means(values_S: Floats, group_S: NDArray[np.int64], size: int) -> Floats:
    counts = np.bincount(group_S, minlength=size)
    means: Floats = np.bincount(group_S, values_S, minlength=size) / np.maximum(counts, 1)
    return means


def _slope(cold_S: Floats, time_S: Floats, group_S: NDArray[np.int64]) -> float:
    """Extra ns per cold byte within groups; 0 if no group has both cold and warm executions."""
    size = int(group_S.max()) + 1
    x_S = cold_S - _group_means(cold_S, group_S, size)[group_S]
    y_S = time_S - _group_means(time_S, group_S, size)[group_S]
    spread = float(x_S @ x_S)
    return float(x_S @ y_S) / spread if spread > 0.0 else 0.0


def _held_out(
    cold_S: Floats, time_S: Floats, group_S: NDArray[np.int64], is_fitted: NDArray[np.bool_]
) -> tuple[float, float]:
    """Mean error of the rows that are not fitted, without and with the term."""
    size = int(group_S.max()) + 1
    fitted_S = group_S[is_fitted]
    slope = _slope(cold_S[is_fitted], time_S[is_fitted], fitted_S)
    mean_time = _group_means(time_S[is_fitted], fitted_S, size)
    mean_cold = _group_means(cold_S[is_fitted], fitted_S, size)
    judged = ~is_fitted & np.isin(group_S, fitted_S)
    rows = group_S[judged]
    plain_S = time_S[judged] - mean_time[rows]
    better_S = plain_S - slope * (cold_S[judged] - mean_cold[rows])
    total = float(time_S[judged].sum()) or 1.0
    return float(np.abs(plain_S).sum()) / total, float(np.abs(better_S).sum()) / total


def _usual(samples: Sequence[ReuseSample], column: int) -> dict[tuple[str, int], float]:
    sums: dict[tuple[str, int], list[int]] = {}
    for sample in samples:
        sums.setdefault((sample.kind, sample.size), []).append(sample.cold_bytes[column])
    return {key: float(np.mean(values)) for key, values in sums.items()}
