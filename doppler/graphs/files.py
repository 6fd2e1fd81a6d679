"""Graph files of any kind that can be read, by their name and content."""

from pathlib import Path

from doppler.core.errors import FormatError
from doppler.core.serialize import load_graph, read_json
from doppler.graphs.cost_text import read_cost_text
from doppler.graphs.dot import read_dot
from doppler.graphs.graphml import read_graphml
from doppler.graphs.imported import ImportedGraph
from doppler.graphs.stg import read_stg
from doppler.graphs.wfcommons import is_wfcommons, read_wfcommons

SUFFIXES = (".json", ".stg", ".dot", ".gv", ".graphml", ".txt")


def read_graph_file(
    path: str | Path, ns_per_unit: float | None = None, bytes_per_unit: float | None = None
) -> ImportedGraph:
    """Returns the graph of a file and the times that it has.

    `.json` is our own graph or a WfCommons instance, `.stg` a standard task graph, `.dot` and `.gv`
    DOT with weights, `.graphml` GraphML, `.txt` per-machine cost text.

    Args:
        path: The file.
        ns_per_unit: Nanoseconds of one unit of time, for formats that have no unit.
        bytes_per_unit: Bytes of one unit of data, for formats that have no unit.

    Raises:
        FormatError: If the kind is unknown, the file is damaged, or a scale is missing.
        GraphError: If the graph breaks a rule.
    """
    file = Path(path)
    match file.suffix.lower():
        case ".json":
            if is_wfcommons(read_json(file)):
                return read_wfcommons(file)
            return ImportedGraph(graph=load_graph(file))
        case ".stg":
            return read_stg(file, _scale(ns_per_unit, "ns_per_unit", file))
        case ".dot" | ".gv":
            return read_dot(file, *_scales(ns_per_unit, bytes_per_unit, file))
        case ".graphml":
            return read_graphml(file, ns_per_unit, bytes_per_unit)
        case ".txt":
            return read_cost_text(file, *_scales(ns_per_unit, bytes_per_unit, file))
    raise FormatError(
        f"a graph file ends in one of {', '.join(SUFFIXES)}, and {str(file)!r} does not"
    )


def _scales(
    ns_per_unit: float | None, bytes_per_unit: float | None, file: Path
) -> tuple[float, float]:
    return (
        _scale(ns_per_unit, "ns_per_unit", file),
        _scale(bytes_per_unit, "bytes_per_unit", file),
    )


def _scale(value: float | None, name: str, file: Path) -> float:
    if value is None:
        raise FormatError(f"{file} has no unit of its own: set {name}=NUMBER")
    return value
