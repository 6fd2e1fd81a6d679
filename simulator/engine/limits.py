"""What the compiled engine counts in 63 bits; a problem beyond that is refused when it is built."""

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS
from simulator.engine.tables import Int64, Tables

LARGEST = (1 << 63) - 1


def int64_array(values: npt.ArrayLike, what: str) -> Int64:
    """Returns the values as int64.

    Raises:
        ConfigError: If one of them does not fit.
    """
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise ConfigError(
            f"{what} fit in 63 bits (at most {LARGEST}), and one of them does not"
        ) from None


def check_integers(problem: Problem, costs: Costs) -> None:
    """Refuses times, bytes and latencies that are no 63-bit integers.

    Raises:
        ConfigError: Names which.
    """
    graph, cluster = problem.graph, problem.cluster
    int64_array(costs.op_ns, "op_ns")
    int64_array(costs.slowdown_permille, "slowdown_permille")
    int64_array(costs.dispatch_ns, "dispatch_ns")
    int64_array([size for op in graph.ops for size in op.outputs], "output bytes")
    int64_array([group.state_bytes for group in graph.groups], "state_bytes")
    int64_array([device.memory_bytes for device in cluster.devices], "memory_bytes")
    int64_array([link.latency_ns for link in cluster.link_table.values()], "latency_ns")
    rates = {link.bytes_per_s: link for link in cluster.link_table.values()}
    largest = max((size for op in graph.ops for size in op.outputs), default=0)
    int64_array([link.occupancy_ns(largest) for link in rates.values()], "transfer times")


def largest_permille(tables: Tables) -> NDArray[np.float64]:
    """Returns by how many thousandths each op takes longest, float64[V]: all siblings are busy."""
    siblings = float(np.bincount(tables.domain).max() - 1)
    return 1000.0 + siblings * tables.slowdown.astype(np.float64)


def op_horizon_ns(tables: Tables) -> NDArray[np.float64]:
    """Returns the longest time of each op, float64[V], slowdown and dispatch included."""
    longest_VD = tables.op_ns.astype(np.float64) * (largest_permille(tables) / 1000.0)[:, None]
    longest_V: NDArray[np.float64] = longest_VD.max(axis=1) + float(tables.dispatch_ns.max())
    return longest_V


def transfer_horizon_ns(tables: Tables) -> float:
    """Returns a bound of the time of all transfers of one iteration, one after the other."""
    slowest = tables.occupancy_ns.astype(np.float64).max(axis=1, initial=0.0)
    latency = float(tables.link_latency.max(initial=0))
    return float((slowest + latency).sum()) * max(tables.num_devices - 1, 0)


def check_products(problem: Problem, tables: Tables) -> None:
    """Refuses problems whose products or byte counts leave 63 bits.

    Raises:
        ConfigError: Names the product, its value and the limit.
    """
    check_scaled(problem.graph, tables, tables.op_ns.max(axis=1))
    versions = tables.window + 2.0 + tables.tensor_distance.astype(np.float64)
    num_bytes = float((tables.tensor_bytes.astype(np.float64) * versions).sum())
    num_bytes += float(tables.group_state.astype(np.float64).sum())
    num_bytes += float(tables.resident_bytes.astype(np.float64).sum())
    _refuse(problem.graph, num_bytes, "the bytes of all versions on one device")


def check_scaled(graph: DataflowGraph, tables: Tables, longest_V: Int64) -> None:
    """Refuses times whose product with the slowdown leaves 63 bits.

    Raises:
        ConfigError: Names the product and the limit.
    """
    scaled = float((longest_V.astype(np.float64) * largest_permille(tables)).max())
    _refuse(graph, scaled, "the product of times and (1000 + siblings * slowdown_permille)")


def check_run(graph: DataflowGraph, tables: Tables, iterations: int, horizon_ns: float) -> None:
    """Refuses runs whose last time or whose queue keys leave their bits.

    Args:
        graph: For the message.
        tables: What is run.
        iterations: Iterations of one run.
        horizon_ns: Time of all ops and transfers of the run, one after the other.

    Raises:
        ConfigError: Names what overflows, its value and the limit.
    """
    keys = iterations * tables.num_ops * len(tables.tensor_op) * tables.num_devices
    _refuse(graph, float(keys), "iterations * ops * tensors * devices (the keys of bus queues)")
    if horizon_ns >= INFEASIBLE_NS:
        raise ConfigError(
            f"a run ends before {INFEASIBLE_NS} ns, and {iterations} iteration(s) of graph "
            f"{graph.name!r} may take {horizon_ns:.3g} ns"
        )


def _refuse(graph: DataflowGraph, value: float, what: str) -> None:
    if value >= LARGEST:
        raise ConfigError(
            f"{what} stays below {LARGEST} in the compiled engine, and graph {graph.name!r} has "
            f"{value:.3g}"
        )
