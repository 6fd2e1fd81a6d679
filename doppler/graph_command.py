"""`doppler graph NAME`: a workload with its counts, as files that the other commands read."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rich.table import Table

from doppler.commands import check_output
from doppler.config import JOBS
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, nearest
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Problem
from doppler.core.serialize import save
from doppler.graphs.counts import count_graph, total_graph
from doppler.graphs.families import generate
from doppler.graphs.ffnn import FFNNShape, ffnn
from doppler.graphs.llama import LlamaShape, llama_block, llama_layer
from doppler.graphs.matmul_chain import ChainShards, matmul_chain
from doppler.graphs.moe import MoEShape, moe_block
from doppler.jobs import build_job
from doppler.workload_config import (
    JOB_KEYS,
    JOB_WORKLOADS,
    WORKLOADS,
    FamilyConfig,
    MoEConfig,
    WorkloadConfig,
)

_COUNTS = (
    ("n", "ops, inputs included"),
    ("inputs", "graph inputs"),
    ("placed", "placed ops"),
    ("edges", "edges between them"),
    ("roots", "roots"),
    ("sinks", "sinks"),
    ("depth", "depth"),
    ("max_in", "max. fan-in"),
    ("max_out", "max. fan-out"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload as it was built.

    Attributes:
        graph: What is placed.
        problem, costs: With the cluster and the times that a generated family brings; None for the
            others, which take any machine.
    """

    graph: DataflowGraph
    problem: Problem | None = None
    costs: Costs | None = None


def graph(config: WorkloadConfig, command: Sequence[str]) -> None:
    """Builds a workload, shows its counts, writes it; without a name, lists all.

    Raises:
        ConfigError: If a name or a number is out of range, or a file cannot be written.
        GraphError: If a dimension cannot be cut as the settings say.
    """
    view = View()
    if not config.name:
        if config.output is not None:
            raise ConfigError(f"name the workload to write: {', '.join(WORKLOADS)}")
        view.show(_list())
        return
    outputs = {
        key: check_output(getattr(config, key))
        for key in ("output", "cluster_output", "costs_output")
        if hasattr(config, key)
    }
    built = build_workload(config)
    view.show(_counts(built.graph))
    view.show(_kinds(built.graph))
    if (path := outputs["output"]) is not None:
        save(built.graph, path)
        view.line(f"graph: {path}")
    if built.problem is None or built.costs is None:
        return
    if (path := outputs["cluster_output"]) is not None:
        save(built.problem.cluster, path)
        view.line(f"cluster: {path}")
    if (path := outputs["costs_output"]) is not None:
        save(built.costs, path, built.problem)
        view.line(f"costs: {path}")
    elif outputs["output"] is not None:
        view.line("op times are not in the graph file: costs_output=FILE.json writes them")


def build_workload(config: WorkloadConfig) -> Workload:
    """Returns the workload of the settings in `WORKLOADS`.

    Raises:
        ConfigError: If the name is unknown, or a setting out of range.
        GraphError: If a dimension cannot be cut as the settings say.
    """
    values: Any = config
    if config.name not in WORKLOADS:
        raise ConfigError(f"workload {config.name!r} is unknown; {nearest(config.name, WORKLOADS)}")
    if isinstance(config, FamilyConfig):
        return _generated(config)
    if isinstance(config, MoEConfig):
        return Workload(graph=moe_block(_shape(MoEShape, config), config.dtype.value))
    if config.name in JOB_WORKLOADS:
        settings = {key: getattr(config, key) for key in JOB_KEYS}
        return Workload(graph=build_job(replace(JOBS[config.name], **settings), seed=0).graph)
    dtype = values.dtype.value
    match config.name:
        case "chainmm":
            program = matmul_chain(values.size, _shape(ChainShards, config), dtype)
        case "ffnn":
            program = ffnn(_shape(FFNNShape, config), dtype)
        case "llama_block":
            program = llama_block(_shape(LlamaShape, config), dtype)
        case _:
            program = llama_layer(_shape(LlamaShape, config), dtype)
    return Workload(graph=program.graph)


def _shape(kind: type[Any], config: WorkloadConfig) -> Any:
    """The sizes and cuts of a builder, as far as the settings name them."""
    names = [item.name for item in fields(kind) if hasattr(config, item.name)]
    return kind(**{name: getattr(config, name) for name in names})


def _generated(config: FamilyConfig) -> Workload:
    shared = {item.name for item in fields(FamilyConfig)}
    own = [item.name for item in fields(config) if item.name not in shared]
    made = generate(
        config.name,
        config.num_ops,
        config.num_devices,
        ccr=config.ccr,
        heterogeneity=config.heterogeneity,
        seed=config.seed,
        speed_spread=config.speed_spread,
        topology=config.topology,
        shape={name: getattr(config, name) for name in own if getattr(config, name) is not None},
    )
    return Workload(graph=made.graph, problem=made.problem, costs=made.costs)


def _list() -> Table:
    table = Table(title="doppler graph NAME --help")
    table.add_column("name")
    for heading in ("ops", "edges", "depth"):
        table.add_column(heading, justify="right")
    for name, schema in WORKLOADS.items():
        counts = count_graph(build_workload(schema(name=name)).graph)
        table.add_row(name, str(counts.placed), str(counts.edges), str(counts.depth))
    return table


def _counts(graph: DataflowGraph) -> Table:
    counts, totals = count_graph(graph), total_graph(graph)
    table = Table(title=graph.name, show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, label in _COUNTS:
        table.add_row(label, f"{getattr(counts, name):,}")
    table.add_row("width", f"{totals.width:,}")
    for label, total in (
        ("edges to a later iteration", totals.loop_edges),
        ("flop", totals.flop),
        ("bytes read and written", totals.bytes_moved),
        ("bytes on edges", totals.edge_bytes),
        ("bytes of inputs", totals.input_bytes),
        ("bytes of state", totals.state_bytes),
    ):
        if total:
            table.add_row(label, f"{total:,}")
    return table


def _kinds(graph: DataflowGraph) -> Table:
    table = Table(title="ops by kind")
    table.add_column("kind")
    for heading in ("ops", "flop", "bytes read and written"):
        table.add_column(heading, justify="right")
    for row in total_graph(graph).kinds:
        table.add_row(row.kind, f"{row.num_ops:,}", f"{row.flop:,}", f"{row.bytes_moved:,}")
    return table
