"""BRKGA, annealing on keys, portfolio, METIS and ENUMOPT: what each can and cannot find."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import CapacityError, ConfigError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS
from doppler.planners import anneal_orders, brkga, enumopt, metis, portfolio
from doppler.planners.annealing import plan_placement
from doppler.planners.base import Budget
from doppler.planners.brkga import BRKGASettings, _children
from doppler.planners.list_schedule import make_list_scheduler
from doppler.planners.mask import make_mask
from doppler.planners.registry import get_planner
from simulator.scorer import CompiledScorer
from tests.planners.test_annealing import join_of_eight
from tests.planners.test_heft import problem_of
from tests.random_problems import problems_with_costs


def value_of(planner, problem, costs, calls, seed=0):
    scorer = CompiledScorer(problem, costs)
    plan = planner(problem, scorer, Budget(calls), np.random.default_rng(seed))
    assert scorer.num_calls <= calls
    return int(scorer.score([plan.placement], [plan.priority])[0]), plan


@pytest.mark.parametrize(("transfer_ns", "by_order"), [(10, 13), (90, 93)])
def test_the_join_that_no_order_decodes_to(transfer_ns, by_order):
    # 8 unit sources, one join, 4 devices: 9 on one device; EFT always spreads the sources
    problem, costs = join_of_eight(transfer_ns)
    for planner in (anneal_orders.plan, brkga.plan):
        assert value_of(planner, problem, costs, 400)[0] == by_order
    assert value_of(plan_placement, problem, costs, 400)[0] == 9
    value, plan = value_of(portfolio.plan, problem, costs, 400)
    assert value == 9
    assert plan.source == "portfolio:annealing_placement"


def test_the_portfolio_names_the_maker_of_its_plan():
    # independent ops, two devices: the order is all that matters, and the first member solves it
    problem, costs = join_of_eight(0)
    _, plan = value_of(portfolio.plan, problem, costs, 300)
    assert plan.source.startswith("portfolio:")
    maker = plan.source.removeprefix("portfolio:")
    assert maker == "polish" or get_planner(maker)


def test_the_portfolio_says_once_that_metis_is_absent(monkeypatch, caplog):
    def absent(*_):
        raise ConfigError("planner 'metis' needs pymetis")

    problem, costs = join_of_eight(10)
    monkeypatch.setattr(portfolio, "RULES", (absent, absent, portfolio.heft.plan))
    portfolio._warn_once.cache_clear()
    for _ in range(2):
        plans = portfolio.rule_plans(
            problem, CompiledScorer(problem, costs), 9, np.random.default_rng(0)
        )
        assert len(plans) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the portfolio goes on without a rule: planner 'metis' needs pymetis"
    ]
    portfolio._warn_once.cache_clear()


@given(problems_with_costs(max_ops=9, max_devices=3))
@settings(max_examples=12, deadline=None)
def test_searches_are_never_worse_than_what_they_start_from(case):
    problem, costs = case
    if not problem.graph.placeable:
        return
    schedule = make_list_scheduler(problem, costs).heft()
    scorer = CompiledScorer(problem, costs)
    placement = make_list_scheduler(problem, costs).mask.placement(schedule.devices_U)
    (heft_ns,) = scorer.score(placement[None], schedule.priority_V[None])
    single_ns, _ = value_of(get_planner("single_device"), problem, costs, 8)
    assert value_of(anneal_orders.plan, problem, costs, 2)[0] <= heft_ns
    for planner in (plan_placement, portfolio.plan):
        assert value_of(planner, problem, costs, 60)[0] <= min(heft_ns, single_ns)


@given(problems_with_costs(max_ops=9, max_devices=3))
@settings(max_examples=8, deadline=None)
def test_the_portfolio_is_never_worse_than_a_list_rule(case):
    problem, costs = case
    if not problem.graph.placeable:
        return
    found, _ = value_of(portfolio.plan, problem, costs, 800)
    for rule in portfolio.RULES[:5]:  # the others draw numbers
        try:
            assert found <= value_of(rule, problem, costs, portfolio.RULE_CALLS)[0]
        except CapacityError:
            continue


def test_searches_start_from_what_fits_where_memory_is_short():
    # every order overflows the fast device unless memory is looked at
    problem = problem_of(8, [(i, i + 4) for i in range(4)], memory=4)
    costs = make_costs(problem, ((1, 30),) * 8)
    for planner in (anneal_orders.plan, brkga.plan, plan_placement, portfolio.plan):
        assert value_of(planner, problem, costs, 60)[0] < INFEASIBLE_NS


def test_the_walk_over_devices_starts_from_m_etf_where_nothing_else_fits():
    # sources of 3, 1, 3, 1 bytes: round robin deals both large ones to d0, HEFT takes d0 for all
    ops = tuple(
        Op(kind="k", name=f"o{i}", outputs=((3, 1, 3, 1)[i] if i < 4 else 1,)) for i in range(8)
    )
    graph = DataflowGraph(name="g", ops=ops, edges=tuple(Edge(i, 0, i + 4) for i in range(4)))
    problem = replace(problem_of(8, [], memory=5), graph=graph)
    costs = make_costs(problem, ((1, 30),) * 8)
    with pytest.raises(CapacityError):
        value_of(get_planner("heft"), problem, costs, 1)
    assert value_of(plan_placement, problem, costs, 60)[0] < INFEASIBLE_NS


def test_brkga_children_take_every_gene_from_a_parent_of_each_kind():
    keys = np.arange(10.0)[:, None] * np.ones((1, 1000))
    shape = BRKGASettings(population=10, elites=3, mutants=2, bias=0.7)
    children = _children(keys, shape, np.random.default_rng(0))
    assert children.shape == (5, 1000)
    for child in children:
        genes = set(child.tolist())
        assert len(genes & {0.0, 1.0, 2.0}) == 1
        assert len(genes) == 2
        assert 0.6 < (child < 3).mean() < 0.8


def two_devices():
    devices = tuple(Device(name=f"d{i}", kind="cuda", parent=f"p{i}") for i in range(2))
    links = tuple(
        Link(src=a, dst=b, bytes_per_s=10**9, buses=(f"{a}-{b}",))
        for a, b in (("d0", "d1"), ("d1", "d0"))
    )
    return Cluster(name="two", devices=devices, links=links)


def test_metis_cuts_where_the_fewest_bytes_cross():
    # two chains of four with heavy tensors, four light rungs: by number of edges the cut is across
    pytest.importorskip("pymetis")
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1000, 1)) for i in range(8))
    edges = tuple(Edge(i, 0, i + 1) for i in (0, 1, 2, 4, 5, 6))
    edges += tuple(Edge(i, 1, i + 4) for i in range(4))
    graph = DataflowGraph(name="chains", ops=ops, edges=edges)
    problem = Problem(graph=graph, cluster=two_devices())
    _, plan = value_of(metis.plan, problem, make_costs(problem, ((100, 100),) * 8), 4)
    assert len(set(plan.placement[:4])) == 1
    assert len(set(plan.placement[4:])) == 1
    assert plan.placement[0] != plan.placement[4]


def sharded(num_shards, reduce=False):
    """Meta-op a of shards without inputs, meta-op b where shard i reads a's shard i; a sum of b."""
    ops = [Op(kind="k", name=f"a{i}", outputs=(50,), meta_op="a") for i in range(num_shards)]
    # b's shards come in the opposite order, so that a deal in id order moves every tensor
    ops += [Op(kind="k", name=f"b{i}", outputs=(50,), meta_op="b") for i in range(num_shards)]
    edges = [Edge(num_shards - 1 - i, 0, num_shards + i) for i in range(num_shards)]
    if reduce:
        ops.append(Op(kind="sum", name="sum", outputs=(1,), meta_op="b"))
        edges += [Edge(num_shards + i, 0, 2 * num_shards) for i in range(num_shards)]
    graph = DataflowGraph(name="sharded", ops=tuple(ops), edges=tuple(edges))
    return Problem(graph=graph, cluster=two_devices())


def test_enumopt_spreads_shards_evenly_and_moves_no_bytes():
    for num_shards in (2, 4, 6):
        problem = sharded(num_shards)
        costs = make_costs(problem, ((10, 10),) * problem.graph.num_ops)
        value, plan = value_of(enumopt.plan, problem, costs, 2)
        first = plan.placement[:num_shards]
        assert sorted(first) == [0] * (num_shards // 2) + [1] * (num_shards // 2)
        assert plan.placement[num_shards:] == first[::-1]
        assert value == 10 * num_shards


def test_enumopt_takes_a_reduction_after_its_shards():
    waves = enumopt._waves(make_mask(sharded(4, reduce=True)))
    assert waves == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
