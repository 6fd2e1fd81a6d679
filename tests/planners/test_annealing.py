"""Annealing: never worse than its starts, finds what list schedules cannot, legal moves only."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import CapacityError, PlanError
from doppler.core.graph import INPUT_KIND, DataflowGraph, Edge, Op
from doppler.core.problem import Objective, Problem
from doppler.planners import exhaustive
from doppler.planners.anneal_chains import spread_keys
from doppler.planners.anneal_core import make_move_tables
from doppler.planners.anneal_moves import propose
from doppler.planners.annealing import anneal, plan
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import make_mask
from doppler.planners.watched import run_within
from simulator.engine.jit import WRITE_LOG
from simulator.scorer import CompiledScorer
from tests.planners.slow_scorer import SlowScorer
from tests.planners.test_bounds import num_plans
from tests.random_problems import problems, problems_with_costs


def join_of_eight(transfer_ns):
    """8 unit sources, one unit join, 4 equal devices: optimum 9, every key order 3 + transfer."""
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent=f"p{i}") for i in range(4))
    links = tuple(
        Link(src=a.name, dst=b.name, latency_ns=transfer_ns)
        for a in devices
        for b in devices
        if a is not b
    )
    graph = DataflowGraph(
        name="join",
        ops=tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(9)),
        edges=tuple(Edge(i, 0, 8) for i in range(8)),
    )
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices, links=links))
    return problem, make_costs(problem, ((1,) * 4,) * 9)


def test_finds_the_join_that_no_list_order_can():
    problem, costs = join_of_eight(10)
    scorer = SlowScorer(problem, costs)
    best = plan(problem, scorer, Budget(300), np.random.default_rng(0))
    assert scorer.score([best.placement], [best.priority]) == [9]


@given(problems_with_costs(max_ops=5, max_devices=2))
@settings(max_examples=15, deadline=None)
def test_tiny_problems_are_solved(case):
    problem, costs = case
    if not problem.graph.placeable or num_plans(problem) > 300:
        return
    if problem.objective is not Objective.makespan:
        return
    scorer = SlowScorer(problem, costs)
    rng = np.random.default_rng(0)
    best = exhaustive.plan(problem, scorer, Budget(300), rng)
    found = anneal(problem, scorer, Budget(600), rng)
    best_ns, found_ns = scorer.score(
        [best.placement, found.placement], [best.priority, found.priority]
    )
    assert found_ns == best_ns


def test_starts_from_given_plans_and_names_its_source():
    problem, costs = join_of_eight(10)
    scorer = SlowScorer(problem, costs)
    seed = plan(problem, scorer, Budget(300), np.random.default_rng(0))
    again = anneal(
        problem, scorer, Budget(1), np.random.default_rng(0), seeds=(seed,), source="polish"
    )
    assert again.placement == seed.placement
    assert again.source == "polish"


@given(problems(max_ops=10, max_devices=4, full_links=False))
@settings(max_examples=60, deadline=None)
def test_moves_are_legal_and_change_something(problem):
    mask = make_mask(problem)
    if not mask.num_units:
        return
    rng = np.random.default_rng(mask.num_units)
    try:
        devices_U = mask.complete(mask.prefer_random(rng))
    except ValueError:
        return
    chains = 8
    devices = np.tile(devices_U, (chains, 1))
    keys = np.tile(np.arange(problem.graph.num_ops) * 1024, (chains, 1))
    new_devices, new_keys = devices.copy(), keys.copy()
    placements = np.zeros_like(keys)
    states = rng.integers(1, 2**63 - 1, size=chains, dtype=np.uint64)
    changed = 0
    for _ in range(20):
        propose(make_move_tables(mask), states, devices, keys, new_devices, new_keys, placements)
        for chain in range(chains):
            assert mask.is_legal(new_devices[chain])
            assert (mask.placement(new_devices[chain]) == placements[chain]).all()
            changed += (new_devices[chain] != devices[chain]).any()
            changed += (new_keys[chain] != keys[chain]).any()
        devices[:] = new_devices
        keys[:] = new_keys
    assert changed > 0


def test_chains_do_not_depend_on_their_neighbours():
    problem, _ = join_of_eight(1)
    mask = make_mask(problem)
    tables = make_move_tables(mask)
    keys = np.tile(np.arange(9) * 1024, (3, 1))
    devices = np.zeros((3, 9), dtype=np.int64)

    def run(chains):
        states = np.array([11, 22, 33], dtype=np.uint64)[chains]
        new_devices, new_keys = devices[chains].copy(), keys[chains].copy()
        placements = np.zeros_like(new_keys)
        propose(tables, states, devices[chains], keys[chains], new_devices, new_keys, placements)
        return new_devices, new_keys

    for whole, alone in zip(run([0, 1, 2]), run([1]), strict=True):
        assert (whole[1] == alone[0]).all()


@given(problems_with_costs(max_ops=10, max_devices=4), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_compiled_walks_end_with_the_plans_of_stepwise_ones(case, seed):
    problem, costs = case
    if problem.objective is Objective.p95:
        return
    ends = []
    for scorer in (Logless(problem, costs), Kernelless(CompiledScorer(problem, costs))):
        try:
            found = anneal(problem, scorer, Budget(400), np.random.default_rng(seed))
        except (CapacityError, PlanError) as error:
            ends.append((type(error), scorer.num_calls))
        else:
            ends.append((found.placement, found.priority, scorer.num_calls))
    assert ends[0] == ends[1]


class Logless(CompiledScorer):
    """A scorer whose compiled runs write no log: nothing tells what is critical."""

    def kernel(self):
        kernel = super().kernel()
        return kernel._replace(mode=kernel.mode & ~WRITE_LOG)


class Kernelless:
    """A scorer that only scores: compiled searches cannot look behind it."""

    def __init__(self, scorer):
        self.problem, self.costs = scorer.problem, scorer.costs
        self.score = scorer.score
        self._scorer = scorer

    @property
    def num_calls(self):
        return self._scorer.num_calls


def test_a_watched_search_tells_its_watcher_the_best_plan():
    problem, costs = join_of_eight(10)
    scorer = CompiledScorer(problem, costs)
    evaluator = Evaluator(problem, scorer, Budget(600), "outer")
    found = run_within(plan, problem, scorer, evaluator, 500, np.random.default_rng(0))
    assert scorer.num_calls <= 500
    assert evaluator.best_ns == scorer.score([found.placement], [found.priority])[0] == 9
    assert evaluator.plan().placement == found.placement


def test_a_graph_of_inputs_alone_has_nothing_to_move():
    """Every op is an input that lies everywhere: there are neither units nor keys to draw from."""
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent=f"p{i}") for i in range(2))
    links = tuple(Link(src=a, dst=b) for a, b in (("d0", "d1"), ("d1", "d0")))
    ops = tuple(Op(kind=INPUT_KIND, name=f"x{i}", outputs=(8,)) for i in range(2))
    problem = Problem(
        graph=DataflowGraph(name="g", ops=ops),
        cluster=Cluster(name="c", devices=devices, links=links),
    )
    costs = make_costs(problem, ((0, 0), (0, 0)))
    scorer = CompiledScorer(problem, costs)
    found = plan(problem, scorer, Budget(50), np.random.default_rng(0))
    assert scorer.score_plans([found]) == [0]


def test_chains_keep_the_order_of_equal_priorities():
    """Of equal priorities the op that comes first in the graph runs first: it gets more."""
    assert spread_keys(np.array([3, 3, 7, 3, 1])).tolist() == [3072, 2048, 4096, 1024, 0]
