"""Commands about hardware: the catalogue, what-if questions, where op times come from."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table

from doppler.commands import check_output, check_planners, read_problem
from doppler.console import View
from doppler.core.codecs.fields import encode
from doppler.core.codecs.text import format_json
from doppler.core.errors import ConfigError, FormatError
from doppler.core.hardware import Hardware
from doppler.core.serialize import save, write_atomic
from doppler.graph_config import CostsConfig, HardwareConfig, WhatIfConfig
from doppler.what_if import WhatIf, what_if
from simulator.costs.composed import model_shares
from simulator.hardware.catalogue import Catalogue, load_catalogue
from simulator.hardware.machines import imported_hardware, named_hardware, split_name
from simulator.hardware.page import catalogue_page
from simulator.hardware.topology import parse_topology

WHAT_IF_SCHEMA = 1


def show_hardware(config: HardwareConfig, command: Sequence[str]) -> None:
    """Lists the catalogue, or shows one machine; imports a topology."""
    catalogue, view, output = load_catalogue(), View(), check_output(config.output)
    if not config.name:
        if config.topology is not None:
            raise ConfigError(
                "a topology states no GPU: name the machine whose GPUs and wires it has, such as "
                "doppler hardware dgx_a100 topology=topo.txt"
            )
        view.show(_machines(catalogue))
        if output is not None:
            write_atomic(output, catalogue_page(catalogue))
            view.line(f"page: {config.output}")
        return
    hardware = _hardware(config, catalogue)
    view.show(_processors(hardware))
    view.show(_wires(hardware))
    if output is not None:
        save(hardware, output)
        view.line(f"hardware: {config.output}")


def ask_what_if(config: WhatIfConfig, command: Sequence[str]) -> None:
    """Scores and ranks plans before and after a change of the catalogue."""
    check_planners(config.planners)
    output = check_output(config.output)
    view = View()
    problem, costs, choice = read_problem(config)
    if choice.is_given:
        view.line("op times are given by a file: the change moves transfers only")
    answer = what_if(
        problem.graph,
        config.cluster,
        [config.change] if config.change else [],
        planners=config.planners,
        budget=config.budget,
        costs=costs if choice.is_given else None,
        layout=config.layout,
        objective=config.objective,
        replan=config.replan,
        seed=config.seed,
    )
    for change in answer.changes:
        view.line(f"{change.entry}.{change.number}: {change.before:,} -> {change.after:,}")
    view.show(_ranking(answer, f"{problem.graph.name} on {config.cluster}"))
    if output is not None:
        document = {
            "type": "what_if",
            "schema_version": WHAT_IF_SCHEMA,
            "machine": config.cluster,
            "changes": [encode(change) for change in answer.changes],
            "objective": answer.objective.value,
            "rows": [
                {key: value for key, value in encode(row).items() if key != "plan"}
                for row in answer.rows
            ],
        }
        write_atomic(output, format_json(document))
        view.line(f"what-if: {config.output}")


def show_costs(config: CostsConfig, command: Sequence[str]) -> None:
    """Shows the times of every op kind on every device, and which model they come from."""
    output = check_output(config.output)
    problem, costs, choice = read_problem(config)
    origins = choice.origins(problem)
    view = View()
    table = Table(title=f"op times of {problem.graph.name} on {problem.cluster.name}")
    for heading in ("op kind", "device", "ops", "least (us)", "most (us)", "from", "how"):
        is_number = heading in ("ops", "least (us)", "most (us)")
        table.add_column(heading, justify="right" if is_number else "left")
    for row in origins:
        table.add_row(
            row.kind,
            row.device,
            str(row.num_ops),
            f"{row.min_ns / 1e3:.3f}",
            f"{row.max_ns / 1e3:.3f}",
            row.model,
            row.detail,
        )
    view.show(table)
    shares = model_shares(origins).items()
    view.line(", ".join(f"{model}: {share:.1%} of the times" for model, share in shares))
    if output is not None:
        save(costs, output, problem)
        view.line(f"costs: {config.output}")


def _hardware(config: HardwareConfig, catalogue: Catalogue) -> Hardware:
    if config.topology is None:
        return named_hardware(catalogue, config.name)
    machine, dtype = split_name(config.name)
    node, _, network = catalogue.node_of(machine)
    if network is not None:
        raise ConfigError(
            f"a topology is that of one host, and {machine!r} is several: {node.name}"
        )
    path = Path(config.topology)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read as text: {error}") from error
    topology = parse_topology(text, path.name)
    return imported_hardware(catalogue, path.stem, topology, node, dtype)


def _machines(catalogue: Catalogue) -> Table:
    rows = [
        (node.name, node.title, node.gpu or f"{node.cores} x {node.cpu}")
        for node in catalogue.nodes.values()
    ]
    rows += [
        (pod.name, pod.title, catalogue.nodes[pod.node].gpu or "")
        for pod in catalogue.pods.values()
    ]
    return _table("machines (cluster=NAME, cluster=NAME@bf16)", ("name", "machine", "GPU"), rows)


def _processors(hardware: Hardware) -> Table:
    kinds: dict[tuple[str, ...], list[str]] = {}
    for processor in hardware.processors:
        row = (
            processor.model,
            str(processor.num_units),
            f"{processor.memory_bytes / 2**30:.1f}",
            f"{processor.memory_bytes_per_s / 1e9:,.0f}",
            f"{processor.flop_per_s / 1e12:,.2f}",
        )
        kinds.setdefault(row, []).append(processor.name)
    return _table(
        f"processors of {hardware.name}",
        ("model", "units", "GiB", "GB/s", "Tflop/s", "names"),
        [(*row, ", ".join(names)) for row, names in kinds.items()],
    )


def _wires(hardware: Hardware) -> Table:
    """How pairs of GPUs are joined, equal pairs together."""
    gpus = [p.name for p in hardware.processors if p.kind == "gpu"]
    routed = {(route.src, route.dst) for route in hardware.routes}
    kinds: dict[tuple[str, ...], int] = {}
    for pair, link in hardware.link_table.items():
        if pair[0] in gpus and pair[1] in gpus:
            key = (
                f"{(link.bytes_per_s or 0) / 1e9:,.2f}",
                f"{link.latency_ns / 1e3:.1f}",
                str(len(link.buses)),
                "route" if pair in routed else "link",
            )
            kinds[key] = kinds.get(key, 0) + 1
    return _table(
        "pairs of GPUs",
        ("GB/s", "latency (us)", "buses held", "by", "pairs"),
        [(*key, str(count)) for key, count in kinds.items()],
    )


def _ranking(answer: WhatIf, title: str) -> Table:
    objective = answer.objective.value
    rows = [
        (
            row.planner,
            str(row.rank_before),
            f"{row.before_ns / 1e6:.3f}",
            str(row.rank_after),
            f"{row.after_ns / 1e6:.3f}",
            f"{row.after_ns / row.before_ns - 1:+.1%}" if row.before_ns else "",
            "" if row.replanned_ns is None else f"{row.replanned_ns / 1e6:.3f}",
        )
        for row in answer.rows
    ]
    heads = (
        "planner",
        "rank before",
        f"{objective} before (ms)",
        "rank after",
        f"{objective} after (ms)",
        "change",
        "planned anew (ms)",
    )
    return _table(title, heads, rows)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title)
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*row)
    return table
