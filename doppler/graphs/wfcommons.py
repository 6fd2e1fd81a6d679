"""Reader of WfCommons JSON 1.5, the format of published workflow instances.

A task is an op with one output per file that it writes; a task that reads the file has an edge
from it, so a file is sent once per device. What no task writes is a graph input. A parent that
shares no file with its child is joined to it by an edge of 0 bytes. Times come from
`workflow.execution`, where there is one: the measured runtime, on every device the same.

Source: wfcommons.org/format, schema version 1.5.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from doppler.core.errors import FormatError, nearest
from doppler.core.graph import INPUT_KIND, Edge, Op
from doppler.graphs.imported import (
    TASK_KIND,
    ImportedGraph,
    checked_graph,
    count_in,
    read_text,
    scaled,
)
from doppler.graphs.json_lines import LinedObject, parse_json

VERSION = "1.5"
NS_PER_SECOND = 1_000_000_000
TASK_KEYS = ("id", "name", "parents", "children", "inputFiles", "outputFiles")
FILE_KEYS = ("id", "sizeInBytes")
RUN_KEYS = ("id", "runtimeInSeconds")


def is_wfcommons(document: Any) -> bool:
    """True for a JSON object that says that it is a WfCommons instance."""
    return isinstance(document, dict) and {"schemaVersion", "workflow"} <= document.keys()


def read_wfcommons(path: str | Path) -> ImportedGraph:
    """Returns the graph of a WfCommons file, with times where it has an execution.

    The format states its units (bytes, seconds), so no scale is asked for.

    Raises:
        FormatError: If the file is not what the format says, parents and children disagree, or a
            file is written twice; names file and line.
        GraphError: If the tasks form a circle.
    """
    return parse_wfcommons(read_text(path, "WfCommons JSON"), Path(path).stem, str(path))


def parse_wfcommons(text: str, name: str, where: str = "WfCommons JSON") -> ImportedGraph:
    """Returns the graph of WfCommons text; see `read_wfcommons`."""
    reader = _Reader(where)
    document = reader.object(parse_json(text, where), "the document", None)
    version = reader.get(document, "schemaVersion", str)
    if version != VERSION:
        raise FormatError(f"{where}: schemaVersion {VERSION} is read, and the file has {version!r}")
    workflow = reader.object(document.get("workflow"), "workflow", document)
    for key in document.keys() - {"schemaVersion", "workflow", "name"}:
        reader.leave_out(key)
    for key in workflow.keys() - {"specification", "execution"}:
        reader.leave_out(f"workflow.{key}")
    specification = reader.object(workflow.get("specification"), "specification", workflow)
    _build(reader, specification)
    op_ns = None
    if "execution" in workflow:
        op_ns = _times(reader, reader.object(workflow["execution"], "execution", workflow))
    title = document.get("name")
    graph = checked_graph(
        title if isinstance(title, str) and title else name,
        reader.ops,
        reader.edges,
        reader.lines,
        where,
    )
    ignored = dict(sorted(reader.ignored.items()))
    return ImportedGraph(graph=graph, op_ns=op_ns, needs_costs=op_ns is None, ignored=ignored)


class _Reader:
    """Typed access with line numbers, and the graph as it grows.

    Attributes:
        ops, edges, lines: The graph; the line of each edge is that of its consumer.
        ids: Task id -> op.
        ignored: What was left out.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.ops: list[Op] = []
        self.edges: list[Edge] = []
        self.lines: list[int] = []
        self.ids: dict[str, int] = {}
        self.ignored: dict[str, int] = {}

    def at(self, owner: LinedObject | None) -> str:
        return self.where if owner is None else f"{self.where}, line {owner.line}"

    def object(self, value: Any, what: str, owner: LinedObject | None) -> LinedObject:
        if not isinstance(value, LinedObject):
            raise FormatError(f"{self.at(owner)}: {what} is an object, and it is {value!r:.60}")
        return value

    def get(self, owner: LinedObject, key: str, kind: type) -> Any:
        value = owner.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise FormatError(
                f"{self.at(owner)}: {key} is of type {kind.__name__}, and the file has "
                f"{value!r:.60}"
            )
        return value

    def objects(self, owner: LinedObject, key: str, known: Iterable[str]) -> list[LinedObject]:
        """A list of objects with distinct ids; keys that are not known are left out."""
        rows = [self.object(row, f"an entry of {key}", owner) for row in self.get(owner, key, list)]
        seen: set[str] = set()
        for row in rows:
            name = self.get(row, "id", str)
            if not name or name in seen:
                raise FormatError(f"{self.at(row)}: ids of {key} are unique, and {name!r} is not")
            seen.add(name)
            for extra in row.keys() - set(known):
                self.leave_out(f"{key}[].{extra}")
        return rows

    def names(self, owner: LinedObject, key: str) -> tuple[str, ...]:
        names = self.get(owner, key, list) if key in owner else []
        for name in names:
            if not isinstance(name, str):
                raise FormatError(f"{self.at(owner)}: {key} lists ids, and it has {name!r:.60}")
        if len(set(names)) != len(names):
            raise FormatError(f"{self.at(owner)}: {key} lists an id once, and it has {names}")
        return tuple(names)

    def leave_out(self, what: str) -> None:
        count_in(self.ignored, what)

    def edge(self, src: int, output: int, dst: int, line: int) -> None:
        self.edges.append(Edge(src, output, dst))
        self.lines.append(line)


def _build(reader: _Reader, specification: LinedObject) -> None:
    """Inputs first, then tasks in the order of the file."""
    for key in specification.keys() - {"tasks", "files"}:
        reader.leave_out(f"workflow.specification.{key}")
    tasks = reader.objects(specification, "tasks", TASK_KEYS)
    sizes: dict[str, int] = {}
    if "files" in specification:
        for row in reader.objects(specification, "files", FILE_KEYS):
            size = reader.get(row, "sizeInBytes", int)
            if size < 0:
                raise FormatError(f"{reader.at(row)}: sizeInBytes is at least 0, not {size}")
            sizes[row["id"]] = size
    if not tasks:
        raise FormatError(f"{reader.at(specification)}: a workflow has at least one task")
    writers = _writers(reader, tasks, sizes)
    _check_relatives(reader, tasks)
    read = {name for task in tasks for name in reader.names(task, "inputFiles")}
    outside = [name for name in sizes if name in read and name not in writers]
    for name in sizes.keys() - read - writers.keys():
        reader.leave_out(f"file {name!r}, which no task reads or writes")
    task_ids = {task["id"] for task in tasks}
    for name in outside:
        label = f"file {name}" if name in task_ids else name
        reader.ops.append(Op(kind=INPUT_KIND, name=label, outputs=(sizes[name],)))
    inputs = {name: index for index, name in enumerate(outside)}
    parents_of = {task["id"]: _parents(reader, task, writers) for task in tasks}
    with_control = {
        p for parents in parents_of.values() for p, shares in parents.items() if not shares
    }
    for task in tasks:
        reader.ids[task["id"]] = len(reader.ops)
        files = reader.names(task, "outputFiles")
        outputs = [sizes[name] for name in files] + [0] * (task["id"] in with_control)
        kind = task.get("name", TASK_KIND)
        kind = kind if isinstance(kind, str) and kind not in ("", INPUT_KIND) else TASK_KIND
        reader.ops.append(Op(kind=kind, name=task["id"], outputs=tuple(outputs)))
    positions = {
        name: (reader.ids[task["id"]], k)
        for task in tasks
        for k, name in enumerate(reader.names(task, "outputFiles"))
    }
    for task in tasks:
        dst = reader.ids[task["id"]]
        for name in reader.names(task, "inputFiles"):
            if name in inputs:
                reader.edge(inputs[name], 0, dst, task.line)
            elif positions[name][0] != dst:
                reader.edge(*positions[name], dst, task.line)
        for parent, shares in parents_of[task["id"]].items():
            if not shares:
                src = reader.ids[parent]
                reader.edge(src, len(reader.ops[src].outputs) - 1, dst, task.line)


def _writers(reader: _Reader, tasks: list[LinedObject], sizes: Mapping[str, int]) -> dict[str, str]:
    """File -> id of the task that writes it."""
    writers: dict[str, str] = {}
    for task in tasks:
        for name in (*reader.names(task, "inputFiles"), *reader.names(task, "outputFiles")):
            if name not in sizes:
                raise FormatError(
                    f"{reader.at(task)}: files lists every file, and {name!r} of task "
                    f"{task['id']!r} is not among them"
                )
        for name in reader.names(task, "outputFiles"):
            if name in writers:
                raise FormatError(
                    f"{reader.at(task)}: a file has one writer, and {name!r} is written by "
                    f"{writers[name]!r} and {task['id']!r}"
                )
            writers[name] = task["id"]
    return writers


def _check_relatives(reader: _Reader, tasks: list[LinedObject]) -> None:
    relatives = {
        (task["id"], key): frozenset(reader.names(task, key))
        for task in tasks
        for key in ("parents", "children")
    }
    known = {task["id"]: task for task in tasks}
    for task in tasks:
        for key in ("parents", "children"):
            for other in sorted(relatives[task["id"], key] - known.keys()):
                raise FormatError(
                    f"{reader.at(task)}: {key} of task {task['id']!r} names {other!r}; "
                    f"{nearest(other, known) if len(known) < 20 else 'there is no such task'}"
                )
    for task in tasks:
        for key, back in (("parents", "children"), ("children", "parents")):
            for other in sorted(relatives[task["id"], key]):
                if task["id"] not in relatives[other, back]:
                    raise FormatError(
                        f"{reader.at(task)}: parents and children agree, and task {task['id']!r} "
                        f"has {other!r} among its {key}, which lacks it among its {back}"
                    )


def _parents(reader: _Reader, task: LinedObject, writers: Mapping[str, str]) -> dict[str, bool]:
    """Parent -> whether the task reads a file of it; a writer is a parent, listed or not."""
    shares = dict.fromkeys(reader.names(task, "parents"), False)
    for name in reader.names(task, "inputFiles"):
        writer = writers.get(name)
        if writer == task["id"]:
            reader.leave_out("file that a task both writes and reads")
        elif writer is not None:
            if writer not in shares:
                reader.leave_out("missing entry in parents (the edge is there, from the file)")
            shares[writer] = True
    return shares


def _times(reader: _Reader, execution: LinedObject) -> tuple[tuple[int, ...], ...]:
    for key in execution.keys() - {"tasks"}:
        reader.leave_out(f"workflow.execution.{key}")
    times: dict[str, int] = {}
    for row in reader.objects(execution, "tasks", RUN_KEYS):
        if row["id"] not in reader.ids:
            raise FormatError(
                f"{reader.at(row)}: the execution is of tasks of the specification, and "
                f"{row['id']!r} is none"
            )
        seconds = row.get("runtimeInSeconds")
        if (
            not isinstance(seconds, int | float)
            or isinstance(seconds, bool)
            or not (0 <= seconds < float("inf"))
        ):
            raise FormatError(
                f"{reader.at(row)}: runtimeInSeconds is a number of at least 0, and it is "
                f"{seconds!r}"
            )
        times[row["id"]] = scaled(
            Fraction(str(seconds)), NS_PER_SECOND, "ns_per_second", reader.at(row)
        )
    for name in reader.ids:
        if name not in times:
            raise FormatError(
                f"{reader.at(execution)}: an execution times every task, and {name!r} is missing"
            )
    return tuple((0 if op.is_input else times[op.name],) for op in reader.ops)
