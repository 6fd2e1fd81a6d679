"""Reader of STG text (Standard Task Graphs): integer times, no edge data.

The first line holds the number of tasks n without the two dummies; then come n + 2 lines
`id time num_predecessors predecessor...` with ids 0 to n + 1, entry 0 and exit n + 1 at time 0.
Lines that start with `#` are comments.
"""

from dataclasses import dataclass
from pathlib import Path

from doppler.core.costs import Costs, make_costs
from doppler.core.errors import FormatError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem


@dataclass(frozen=True, kw_only=True)
class TaskGraph:
    """What an STG file holds.

    Attributes:
        graph: Ops `task1` to `task<n>`, kind "task"; one output of 0 bytes each. The dummies are
            left out: they take no time and join nothing that matters.
        op_ns: Time per op, the file's units times the scale, rounded once.
    """

    graph: DataflowGraph
    op_ns: tuple[int, ...]

    def costs(self, problem: Problem) -> Costs:
        """Returns costs with the file's time on every device of `problem`."""
        num_devices = problem.cluster.num_devices
        return make_costs(problem, tuple((time,) * num_devices for time in self.op_ns))


def read_stg(path: str | Path, ns_per_unit: float) -> TaskGraph:
    """Returns the task graph of an STG file.

    Args:
        path: The file.
        ns_per_unit: Nanoseconds of one time unit; the file does not say.

    Raises:
        FormatError: If a line is not what the format says; names file and line number.
        GraphError: If the tasks form a circle.
    """
    file = Path(path)
    if not ns_per_unit > 0:
        raise FormatError(f"ns_per_unit is positive, and it is {ns_per_unit}")
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{file} cannot be read as STG text: {error}") from error
    return parse_stg(text, ns_per_unit, name=file.stem, where=str(file))


def parse_stg(text: str, ns_per_unit: float, name: str, where: str = "STG text") -> TaskGraph:
    """Returns the task graph of STG text; see `read_stg`."""
    rows = [
        (number, _integers(line, f"{where}, line {number}"))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not rows or len(rows[0][1]) != 1 or rows[0][1][0] < 1:
        raise FormatError(f"{where}: the first line holds the number of tasks, at least 1")
    count = rows[0][1][0]
    if len(rows) != count + 3:
        raise FormatError(
            f"{where}: {count} tasks and two dummies take {count + 2} lines, and there are "
            f"{len(rows) - 1}"
        )
    ops: list[Op] = []
    op_ns: list[int] = []
    edges: list[Edge] = []
    for expected, (number, row) in enumerate(rows[1:]):
        time, predecessors = _task(row, expected, count, f"{where}, line {number}")
        if 1 <= expected <= count:
            ops.append(Op(kind="task", name=f"task{expected}", outputs=(0,)))
            op_ns.append(round(time * ns_per_unit))
            edges += [Edge(src - 1, 0, expected - 1) for src in predecessors if src > 0]
    return TaskGraph(
        graph=DataflowGraph(name=name, ops=tuple(ops), edges=tuple(edges)), op_ns=tuple(op_ns)
    )


def _integers(line: str, where: str) -> list[int]:
    try:
        return [int(word) for word in line.split()]
    except ValueError as error:
        raise FormatError(f"{where}: every word is an integer, and the line is {line!r}") from error


def _task(row: list[int], expected: int, count: int, where: str) -> tuple[int, list[int]]:
    if len(row) < 3 or row[0] != expected:
        raise FormatError(
            f"{where}: `id time num_predecessors ...` with id {expected} is due, and it is {row}"
        )
    time, num_predecessors, predecessors = row[1], row[2], row[3:]
    if len(predecessors) != num_predecessors or num_predecessors < 0:
        raise FormatError(
            f"{where}: {num_predecessors} predecessors are announced and "
            f"{len(predecessors)} are listed"
        )
    dummy = expected in (0, count + 1)
    if time < 0 or (dummy and time != 0):
        raise FormatError(f"{where}: a time is at least 0, and 0 for a dummy, and it is {time}")
    bad = [src for src in predecessors if not 0 <= src <= count or src == expected]
    if bad or len(set(predecessors)) != len(predecessors) or (expected == 0 and predecessors):
        raise FormatError(
            f"{where}: predecessors are distinct other tasks of 0 to {count}, and the line has "
            f"{predecessors}"
        )
    return time, predecessors
