"""The mask: units, legality, and a search that finds a placement whenever there is one."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.errors import CapacityError, ConfigError, DopplerError, PlanError
from doppler.core.graph import DataflowGraph, Edge, Group, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.planners.mask import NO_UNIT, make_mask
from tests.random_problems import pinned_inputs, problems


def cluster(memory=(100, 100), links=None, kinds=("cpu", "cpu")):
    devices = tuple(
        Device(name=f"d{i}", kind=kind, parent="p", memory_bytes=size)
        for i, (size, kind) in enumerate(zip(memory, kinds, strict=True))
    )
    pairs = itertools.permutations(range(len(devices)), 2) if links is None else links
    joined = tuple(Link(src=f"d{a}", dst=f"d{b}") for a, b in pairs)
    return Cluster(name="c", devices=devices, links=joined)


def graph_of(ops, edges=(), groups=()):
    return DataflowGraph(name="g", ops=tuple(ops), edges=tuple(edges), groups=tuple(groups))


def op(name, group=None, kinds=(), kind="k"):
    return Op(kind=kind, name=name, outputs=(1,), group=group, device_kinds=kinds)


def test_units_are_groups_and_single_ops():
    graph = graph_of(
        [op("x", kind="input"), op("a", "g"), op("b"), op("c", "g")], groups=[Group("g", 7)]
    )
    mask = make_mask(Problem(graph=graph, cluster=cluster()))
    assert mask.members == ((1, 3), (2,))
    assert mask.unit_V.tolist() == [NO_UNIT, 0, 1, 0]
    assert mask.state_U.tolist() == [7, 0]
    assert mask.placement(np.array([1, 0])).tolist() == [0, 1, 0, 1]
    assert mask.placement(np.array([[1, 0], [0, 1]])).tolist() == [[0, 1, 0, 1], [0, 0, 1, 0]]
    assert mask.devices_of((0, 1, 0, 1)).tolist() == [1, 0]
    assert mask.devices_of(np.array([[0, 1, 0, 1], [0, 0, 1, 0]])).tolist() == [[1, 0], [0, 1]]


def test_pinned_inputs_are_units_with_one_device():
    graph = pinned_inputs(graph_of([op("x", kind="input"), op("a")], [Edge(0, 0, 1)]))
    mask = make_mask(Problem(graph=graph, cluster=cluster(), pins={"x": "d1"}))
    assert mask.allowed_UD.tolist() == [[False, True], [True, True]]
    assert mask.movable.tolist() == [1]


def test_kinds_of_a_group_must_agree():
    graph = graph_of([op("a", "g", ("cpu",)), op("b", "g", ("cuda",))], groups=[Group("g")])
    problem = Problem(graph=graph, cluster=cluster(kinds=("cpu", "cuda")))
    with pytest.raises(PlanError, match="group 'g' has no device"):
        make_mask(problem)


def test_state_that_needs_backtracking_is_packed():
    # first fit puts 5 + 4 on d0, 4 + 3 + 2 on d1 and has no room for 2: 5 + 3 + 2 and 4 + 4 + 2
    ops = [op(f"o{i}", f"g{i}") for i in range(6)]
    groups = [Group(f"g{i}", size) for i, size in enumerate((2, 4, 5, 3, 4, 2))]
    mask = make_mask(Problem(graph=graph_of(ops, groups=groups), cluster=cluster((10, 10))))
    devices = mask.complete(mask.prefer_device(0))
    assert mask.is_legal(devices)
    assert devices[1] == devices[4] != devices[2] == devices[3]
    assert not mask.is_legal(np.array([0, 0, 0, 1, 1, 1]))


def test_state_that_fits_nowhere_is_refused():
    ops = [op("a", "g0"), op("b", "g1"), op("c", "g2")]
    groups = [Group(f"g{i}", 6) for i in range(3)]
    mask = make_mask(Problem(graph=graph_of(ops, groups=groups), cluster=cluster((10, 10))))
    with pytest.raises(CapacityError, match="exists: 18 bytes of state, 20 bytes of memory"):
        mask.complete(mask.prefer_device(0))


def test_bytes_beyond_63_bits_are_refused():
    large = graph_of(
        [op("a", "g"), op("b", "h")], groups=[Group("g", 1 << 62), Group("h", 1 << 62)]
    )
    with pytest.raises(ConfigError, match=r"the state of groups fits in 63 bits, .* 9\.22e\+18"):
        make_mask(Problem(graph=large, cluster=cluster()))
    with pytest.raises(ConfigError, match=r"the memory of a device fits in 63 bits"):
        make_mask(Problem(graph=graph_of([op("a")]), cluster=cluster((1, 1 << 63))))
    most = make_mask(Problem(graph=graph_of([op("a")]), cluster=cluster((1, (1 << 63) - 1))))
    assert most.limit_D.tolist() == [1, (1 << 63) - 1]


def test_missing_links_keep_joined_ops_together():
    graph = graph_of([op("a"), op("b"), op("c")], [Edge(0, 0, 1), Edge(2, 0, 1)])
    mask = make_mask(Problem(graph=graph, cluster=cluster(links=[(0, 1)])))
    assert mask.is_legal(np.array([0, 1, 1]))
    assert not mask.is_legal(np.array([1, 0, 0]))
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert mask.is_legal(mask.complete(mask.prefer_random(rng)))


def test_links_that_leave_nothing_are_refused():
    graph = graph_of([op("a"), op("b")], [Edge(0, 0, 1)])
    problem = Problem(graph=graph, cluster=cluster(links=[]), pins={"a": "d0", "b": "d1"})
    mask = make_mask(problem)
    with pytest.raises(PlanError, match=r"no placement of graph 'g' on cluster 'c' .* exists"):
        mask.complete(mask.prefer_device(0))


def legal_by_check_plan(problem, mask, devices):
    placement = tuple(mask.placement(np.asarray(devices)).tolist())
    try:
        make_plan(problem, placement, (0,) * problem.graph.num_ops, "test")
    except DopplerError:
        return False
    return True


@given(problems(max_ops=6, max_devices=3, full_links=False))
@settings(max_examples=80, deadline=None)
def test_mask_agrees_with_check_plan_on_every_placement(problem):
    mask = make_mask(problem)
    assume(mask.num_units)
    choices = list(itertools.product(range(mask.num_devices), repeat=mask.num_units))
    legal = {c for c in choices if legal_by_check_plan(problem, mask, c)}
    assert {c for c in choices if mask.is_legal(np.asarray(c))} == legal
    preference = mask.prefer_random(np.random.default_rng(len(choices)))
    if not legal:
        with pytest.raises(PlanError):
            mask.complete(preference)
        return
    found = tuple(mask.complete(preference).tolist())
    assert found in legal
    first = tuple(preference[:, 0].tolist())
    if first in legal:
        assert found == first


@given(problems(max_ops=8, max_devices=3))
@settings(max_examples=60, deadline=None)
def test_tight_state_is_packed_whenever_it_can_be(problem):
    rng = random.Random(problem.graph.num_ops)
    ops = [op(f"o{i}", f"g{i}") for i in range(rng.randint(1, 5))]
    groups = [Group(f"g{i}", rng.randint(1, 9)) for i in range(len(ops))]
    memory = [rng.randint(5, 15) for _ in range(2)]
    mask = make_mask(Problem(graph=graph_of(ops, groups=groups), cluster=cluster(memory)))
    choices = itertools.product(range(2), repeat=len(ops))
    possible = any(mask.is_legal(np.asarray(choice)) for choice in choices)
    try:
        assert mask.is_legal(mask.complete(mask.prefer_device(1)))
        assert possible
    except CapacityError:
        assert not possible
