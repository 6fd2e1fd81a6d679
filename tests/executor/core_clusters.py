"""Clusters and problems for the executor's tests."""

import dataclasses
import os

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.graph import DataflowGraph
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from executor.launch.gpus import GpuInventory
from executor.launch.seats import Seat, Seating


def core_cluster(num_devices: int = 2, num_streams: int = 1) -> Cluster:
    """Returns core groups joined without a copy, one core each, cores used in turn."""
    cores = sorted(os.sched_getaffinity(0))
    devices = tuple(
        Device(
            name=f"core{index}",
            kind="cpu",
            parent="cpu",
            copy_engines=0,
            num_streams=num_streams,
            cores=(cores[index % len(cores)],),
        )
        for index in range(num_devices)
    )
    links = tuple(Link(src=a.name, dst=b.name) for a in devices for b in devices if a != b)
    return Cluster(name="cores", devices=devices, links=links)


def problem_of(graph: DataflowGraph, num_devices: int = 2, num_streams: int = 1) -> Problem:
    """Returns the graph on `core_cluster`."""
    return Problem(graph=graph, cluster=core_cluster(num_devices, num_streams))


def plan_of(problem: Problem, *placement: int) -> Plan:
    """Returns a plan that runs ops by id."""
    return make_plan(problem, placement, (0,) * problem.graph.num_ops, "test")


class OneProcess(Seating):
    """Seats all devices in one process."""

    def __init__(self, cluster, static_mps=False):
        self.seats = (Seat(devices=tuple(range(cluster.num_devices))),)
        self.inventory = GpuInventory()

    def release(self):
        pass


def unbound(problem):
    devices = tuple(dataclasses.replace(d, cores=()) for d in problem.cluster.devices)
    return dataclasses.replace(
        problem, cluster=dataclasses.replace(problem.cluster, devices=devices)
    )
