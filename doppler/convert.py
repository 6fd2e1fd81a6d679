"""`doppler convert`: a graph file of any kind as our own JSON or as GraphML."""

from collections.abc import Sequence
from pathlib import Path

from doppler.console import View
from doppler.core.errors import ConfigError
from doppler.core.problem import Problem
from doppler.core.serialize import load_cluster, save
from doppler.graph_config import ConvertConfig
from doppler.graphs.files import read_graph_file
from doppler.graphs.graphml import write_graphml


def convert(config: ConvertConfig, command: Sequence[str]) -> None:
    """Reads a graph file and writes the graph, and its times as a cost file where asked to.

    Raises:
        ConfigError: If a name is missing or ends in something that is not written.
        FormatError, GraphError: If the file cannot be read.
    """
    output = Path(config.output)
    if not config.graph or output.suffix not in (".json", ".graphml"):
        raise ConfigError(
            f"convert needs graph=FILE and output=FILE.json or FILE.graphml, and output is "
            f"{config.output!r}"
        )
    if (config.costs_output is None) != (config.cluster is None):
        raise ConfigError("costs are for a cluster: set both costs_output and cluster, or neither")
    imported = read_graph_file(config.graph, config.ns_per_unit, config.bytes_per_unit)
    view = View()
    for note in imported.notes():
        view.line(note)
    graph = imported.graph
    if config.costs_output is not None and config.cluster is not None:
        problem = Problem(graph=graph, cluster=load_cluster(config.cluster))
        save(imported.costs(problem), config.costs_output, problem)
        view.line(f"costs: {config.costs_output}")
    if output.suffix == ".json":
        save(graph, output)
    else:
        write_graphml(graph, output)
    view.line(f"{graph.num_ops} ops, {len(graph.edges)} edges: {output}")
