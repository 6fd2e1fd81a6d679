"""Interchangeable devices: all differences count, and relabelling keeps classes."""

import dataclasses

import numpy as np
import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Op
from doppler.core.problem import Problem
from doppler.planners.device_symmetry import device_classes, relabel_by_first_use
from doppler.planners.mask import make_mask


def classes_of(change=None, wires=("out", "out", "out"), op_ns=((3, 3, 3), (5, 5, 5)), pins=None):
    devices = [Device(name=f"d{i}", kind="cpu", parent=f"p{i}") for i in range(3)]
    if change:
        devices[2] = dataclasses.replace(devices[2], **change)
    links = tuple(
        Link(src=a.name, dst=b.name, bytes_per_s=10**9, buses=(f"{wires[i]}_{a.name}",))
        for i, a in enumerate(devices)
        for b in devices
        if a is not b
    )
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(2))
    cluster = Cluster(name="c", devices=tuple(devices), links=links)
    problem = Problem(graph=DataflowGraph(name="g", ops=ops), cluster=cluster, pins=pins or {})
    return device_classes(make_mask(problem), make_costs(problem, op_ns))


def test_equal_devices_are_one_class():
    assert classes_of() == [[0, 1, 2]]


@pytest.mark.parametrize(
    "difference",
    [
        {"change": {"num_streams": 2}},
        {"change": {"memory_bytes": 7}},
        {"op_ns": ((3, 3, 4), (5, 5, 5))},
        {"pins": {"o0": "d2"}},
    ],
)
def test_a_device_that_differs_is_alone(difference):
    assert classes_of(**difference) == [[0, 1], [2]]


def test_siblings_of_one_parent_differ_from_one_alone():
    assert classes_of(change={"parent": "p1"}) == [[0], [1, 2]]


def test_wires_that_are_shared_otherwise_tell_devices_apart():
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent=f"p{i}") for i in range(3))
    links = tuple(
        Link(
            src=a.name,
            dst=b.name,
            bytes_per_s=10**9,
            # d0 and d1 share a wire out, d2 has one of its own: as many users, other partners.
            buses=("shared" if a.name != "d2" else "own",),
        )
        for a in devices
        for b in devices
        if a is not b
    )
    graph = DataflowGraph(name="g", ops=(Op(kind="k", name="o", outputs=(1,)),))
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices, links=links))
    assert device_classes(make_mask(problem), make_costs(problem, ((1, 1, 1),))) == [[0, 1], [2]]


def test_relabelling_uses_each_class_in_ascending_order():
    new = relabel_by_first_use(np.array([3, 1, 3, 2]), [0, 1, 2, 3], [[0, 2, 3], [1]])
    assert new[[3, 1, 3, 2]].tolist() == [0, 1, 0, 2]
    assert sorted(new.tolist()) == [0, 1, 2, 3]
