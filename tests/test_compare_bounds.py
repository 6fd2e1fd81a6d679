"""Gaps of a comparison are to the largest bound that was asked for, and it is named."""

from doppler.api import compare_problem, plan_problem
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem


def join_case():
    """8 unit sources and a join on 4 devices, transfers of 10: 9 on one device is best."""
    names = [f"d{i}" for i in range(4)]
    links = tuple(Link(src=a, dst=b, latency_ns=10) for a in names for b in names if a != b)
    devices = tuple(Device(name=name, kind="cpu", parent=name) for name in names)
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(9))
    graph = DataflowGraph(name="join", ops=ops, edges=tuple(Edge(i, 0, 8) for i in range(8)))
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices, links=links))
    return problem, make_costs(problem, ((1,) * 4,) * 9)


def test_quick_bounds_leave_transfers_out():
    problem, costs = join_case()
    results = compare_problem(problem, costs, ["single_device", "heft"], 30, 0)
    assert [(r.planner, r.value_ns) for r in results] == [("single_device", 9), ("heft", 13)]
    assert {(r.bound, r.bound_ns) for r in results} == {("area", 3)}
    assert [r.gap for r in results] == [9 / 3 - 1.0, 13 / 3 - 1.0]
    assert plan_problem(problem, costs, "heft", 30, 0).bound == "area"


def test_the_solver_closes_the_gap():
    problem, costs = join_case()
    results = compare_problem(problem, costs, ["single_device", "heft"], 30, 0, bound_effort=2.0)
    assert {(r.bound, r.bound_ns) for r in results} == {("cp_sat", 9)}
    assert [r.gap for r in results] == [0.0, 13 / 9 - 1.0]
