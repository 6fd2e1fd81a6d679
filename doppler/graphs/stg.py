"""Reader of STG text (Standard Task Graphs): integer times, no edge data.

The first line holds the number of tasks n without the two dummies; then come n + 2 lines
`id time num_predecessors predecessor...` with ids 0 to n + 1, entry 0 and exit n + 1 at time 0.
Lines that start with `#` are comments.
"""

from fractions import Fraction
from pathlib import Path

from doppler.core.errors import FormatError
from doppler.core.graph import Edge, Op
from doppler.graphs.imported import TASK_KIND, ImportedGraph, checked_graph, scaled


def read_stg(path: str | Path, ns_per_unit: float) -> ImportedGraph:
    """Returns the task graph of an STG file and its times.

    Ops are `task1` to `task<n>` with one output of 0 bytes each. The dummies are left out: they
    take no time and join nothing that matters.

    Args:
        path: The file.
        ns_per_unit: Nanoseconds of one time unit; the file does not say.

    Raises:
        FormatError: If a line is not what the format says; names file and line number.
        GraphError: If the tasks form a circle.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{file} cannot be read as STG text: {error}") from error
    return parse_stg(text, ns_per_unit, name=file.stem, where=str(file))


def parse_stg(text: str, ns_per_unit: float, name: str, where: str = "STG text") -> ImportedGraph:
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
    op_ns: list[tuple[int]] = []
    edges: list[Edge] = []
    lines: list[int] = []
    for expected, (number, row) in enumerate(rows[1:]):
        time, predecessors = _task(row, expected, count, f"{where}, line {number}")
        if 1 <= expected <= count:
            ops.append(Op(kind=TASK_KIND, name=f"task{expected}", outputs=(0,)))
            op_ns.append((scaled(Fraction(time), ns_per_unit, "ns_per_unit", where),))
            edges += [Edge(src - 1, 0, expected - 1) for src in predecessors if src > 0]
            lines += [number] * (len(edges) - len(lines))
    graph = checked_graph(name, ops, edges, lines, where)
    return ImportedGraph(graph=graph, op_ns=tuple(op_ns))


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
