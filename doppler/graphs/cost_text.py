"""Reader of per-machine cost text, as scheduling benchmarks for unrelated machines use it.

Sections are opened by `#` lines: `#critical` (one number), `#tasks` with one line
`id: cost on machine 0, machine 1, ...` per task, `#edges` with `id: source, target, data` lines,
`#end`. Numbers are decimal, spacing is free, ids count from 0 in order, and every task has as many
costs as there are machines.
"""

from fractions import Fraction
from pathlib import Path

from doppler.core.errors import FormatError, nearest
from doppler.core.graph import Edge, Op
from doppler.graphs.imported import (
    TASK_KIND,
    ImportedGraph,
    checked_graph,
    count_in,
    parse_number,
    read_text,
    scaled,
)

SECTIONS = ("#critical", "#tasks", "#edges", "#end")


def read_cost_text(path: str | Path, ns_per_unit: float, bytes_per_unit: float) -> ImportedGraph:
    """Returns the graph of a cost text and its times per machine.

    Ops are `task0` to `task<n - 1>`; every edge carries a tensor of its own.

    Args:
        path: The file.
        ns_per_unit: Nanoseconds of one unit of cost; the file does not say.
        bytes_per_unit: Bytes of one unit of data.

    Raises:
        FormatError: If a line is not what the format says; names file and line.
        GraphError: If the edges form a circle.
    """
    text = read_text(path, "cost text")
    return parse_cost_text(text, ns_per_unit, bytes_per_unit, Path(path).stem, str(path))


def parse_cost_text(
    text: str, ns_per_unit: float, bytes_per_unit: float, name: str, where: str = "cost text"
) -> ImportedGraph:
    """Returns the graph of cost text; see `read_cost_text`."""
    ignored: dict[str, int] = {}
    tasks, edges = _sections(text, where, ignored)
    if not tasks:
        raise FormatError(f"{where}: #tasks holds at least one task, and it holds none")
    op_ns: list[tuple[int, ...]] = []
    for line, costs in tasks:
        place = f"{where}, line {line}"
        if len(costs) != len(tasks[0][1]):
            raise FormatError(
                f"{place}: every task has one cost per machine ({len(tasks[0][1])}), and this one "
                f"has {len(costs)}"
            )
        op_ns.append(tuple(scaled(cost, ns_per_unit, "ns_per_unit", place) for cost in costs))
    outputs: list[list[int]] = [[] for _ in tasks]
    rows: list[Edge] = []
    for line, (src, dst, data) in edges:
        place = f"{where}, line {line}"
        for end in (src, dst):
            if end.denominator != 1 or end >= len(tasks):
                raise FormatError(f"{place}: tasks are 0 to {len(tasks) - 1}, not {float(end):g}")
        rows.append(Edge(int(src), len(outputs[int(src)]), int(dst)))
        outputs[int(src)].append(scaled(data, bytes_per_unit, "bytes_per_unit", place))
    ops = [
        Op(kind=TASK_KIND, name=f"task{index}", outputs=tuple(sizes))
        for index, sizes in enumerate(outputs)
    ]
    graph = checked_graph(name, ops, rows, [line for line, _ in edges], where)
    return ImportedGraph(graph=graph, op_ns=tuple(op_ns), ignored=ignored)


_Row = tuple[int, tuple[Fraction, ...]]


def _sections(text: str, where: str, ignored: dict[str, int]) -> tuple[list[_Row], list[_Row]]:
    """Rows of #tasks and #edges: line number and the numbers after the colon."""
    rows: dict[str, list[_Row]] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        place = f"{where}, line {number}"
        if not words:
            continue
        if words.startswith("#"):
            section = _open(words.lower(), rows, place)
        elif section in ("", "#end"):
            raise FormatError(f"{place}: a line belongs to a section, and {words!r} is in none")
        elif section == "#critical":
            parse_number(words, "the critical path", place)
            count_in(ignored, "#critical, the length of the critical path")
        else:
            values = _numbers(words, len(rows[section]), place)
            if section == "#edges" and len(values) != 3:
                raise FormatError(
                    f"{place}: an edge is `id: source, target, data`, and this one is {words!r}"
                )
            rows[section].append((number, values))
    for name in ("#tasks", "#end"):
        if name not in rows:
            raise FormatError(f"{where}: the section {name} is missing")
    return rows["#tasks"], rows.get("#edges", [])


def _open(word: str, rows: dict[str, list[_Row]], place: str) -> str:
    if word not in SECTIONS:
        raise FormatError(f"{place}: the section {word!r} is unknown; {nearest(word, SECTIONS)}")
    if word in rows:
        raise FormatError(f"{place}: a section stands once, and {word} is here again")
    if "#end" in rows:
        raise FormatError(f"{place}: nothing follows #end, and {word} does")
    rows[word] = []
    return word


def _numbers(words: str, expected: int, place: str) -> tuple[Fraction, ...]:
    label, colon, rest = words.partition(":")
    if not colon or label.strip() != str(expected):
        raise FormatError(f"{place}: `{expected}: number, ...` is due, and the line is {words!r}")
    return tuple(parse_number(word, "an entry", place) for word in rest.split(","))
