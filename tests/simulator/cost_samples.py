"""Problems and cost tables that the tests of cost models share."""

from doppler.core.cluster import Cluster, Device
from doppler.core.graph import DataflowGraph, Op
from doppler.core.problem import Problem
from simulator.costs.measured import CostEntry, CostTable


def problem_of(ops: tuple[Op, ...], devices: tuple[Device, ...] | None = None) -> Problem:
    """Independent ops on two cores, or on the devices given."""
    cores = tuple(
        Device(name=f"core{c}", kind="cpu", parent="cpu", cores=(c,), copy_engines=0)
        for c in (0, 1)
    )
    return Problem(
        graph=DataflowGraph(name="loose", ops=ops, edges=()),
        cluster=Cluster(name="two", devices=cores if devices is None else devices),
    )


def walk(flop: int) -> Problem:
    return problem_of((Op(kind="walk", name="w", flop=flop),))


def entry(flop: int, median: int, slowdown: int = 0, kind: str = "walk") -> CostEntry:
    return CostEntry(
        kind=kind,
        flop=flop,
        device_kind="cpu",
        cores=1,
        median_ns=median,
        spread_ns=0,
        slowdown_permille=slowdown,
        count=3,
    )


def table(*entries: CostEntry) -> CostTable:
    return CostTable(entries=entries, dispatch_ns={("cpu", 1): 7}, provenance={})
