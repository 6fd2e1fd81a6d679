"""Critical moves: the path leads from the last op back to time 0, and moves on it are legal."""

import random
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Objective, Problem
from doppler.planners.anneal_chains import Walk
from doppler.planners.anneal_core import make_move_tables
from doppler.planners.anneal_critical import (
    ANYWHERE,
    EXCHANGE_KEYS,
    THERE,
    find_path,
    propose_critical,
    room,
)
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import make_mask
from simulator.engine.jit import IDLE, TRANSFERS, WRITE_LOG
from simulator.engine.lanes import Engine, Lane
from simulator.scorer import CompiledScorer
from tests.planners.test_annealing import join_of_eight
from tests.random_problems import (
    problems_with_costs,
    random_cluster,
    random_costs,
    random_graph,
)


@njit
def path_of(tab, log, num_transfers, t, devices_U, moves_N3):
    return find_path(tab, log, num_transfers, t, devices_U, moves_N3)


@njit
def move_of(t, state, moves_N3, count, devices_U, keys_V):
    return propose_critical(t, state, moves_N3, count, devices_U, keys_V)


def critical_moves(problem, costs, devices_U, keys_V):
    """(Rows of the path's moves, the log of the run that they were read from)."""
    mask = make_mask(problem)
    lane = Lane(Engine(problem, costs), 1, traced=True)
    lane.run(
        mask.placement(devices_U)[None], keys_V[None], np.full(1, IDLE), WRITE_LOG, np.zeros(1, int)
    )
    kernel = lane.kernel(WRITE_LOG, None, stops_early=False)
    moves_N3 = np.zeros((room(problem.graph.num_ops), 3), np.int64)
    transfers = int(lane.workspace.scalars[TRANSFERS])
    count = path_of(
        kernel.tables, kernel.log, transfers, make_move_tables(mask), devices_U, moves_N3
    )
    return moves_N3[:count], lane.log


def test_a_join_waits_for_a_transfer_between_the_devices_of_source_and_join():
    problem, costs = join_of_eight(10)
    devices_U = np.array([1, 0, 0, 0, 0, 0, 0, 0, 0])
    moves, _ = critical_moves(problem, costs, devices_U, np.arange(9)[::-1].copy())
    # 1 ns of source 0 on device 1, 10 ns on the wire, 1 ns of the join on device 0.
    assert moves.tolist() == [[ANYWHERE, 8, 0], [THERE, 8, 1], [THERE, 0, 0], [ANYWHERE, 0, 0]]


def test_ops_that_were_ready_together_may_exchange_their_keys():
    graph = DataflowGraph(
        name="two",
        ops=tuple(Op(kind="k", name=f"o{i}", outputs=(0,)) for i in range(3)),
        edges=(Edge(0, 0, 2),),
    )
    problem = Problem(graph=graph, cluster=join_of_eight(1)[0].cluster)
    costs = make_costs(problem, ((3,) * 4, (5,) * 4, (2,) * 4))
    # Op 1 runs first, then 0, then 2, all on one device; 0 could have begun in the place of 1.
    moves, _ = critical_moves(problem, costs, np.zeros(3, np.int64), np.array([1, 2, 0]))
    assert [EXCHANGE_KEYS, 0, 1] in moves.tolist()
    assert [row[1] for row in moves.tolist() if row[0] == ANYWHERE] == [2, 0, 1]


def test_paths_lead_back_to_the_beginning_and_follow_what_was_waited_for():
    waits = 0
    for seed in range(100):
        rng = random.Random(seed)
        problem = Problem(
            graph=random_graph(rng, rng.randint(1, 12), groups=False, inputs=False),
            cluster=random_cluster(rng),
        )
        costs = random_costs(rng, problem)
        numbers = np.random.default_rng(seed)
        devices_V = numbers.integers(problem.cluster.num_devices, size=problem.graph.num_ops)
        keys_V = numbers.permutation(problem.graph.num_ops)
        moves, log = critical_moves(problem, costs, devices_V, keys_V)
        start, end, ready = log.op_start[0], log.op_end[0], log.op_ready[0]
        path = moves[moves[:, 0] == ANYWHERE, 1]
        assert end[path[0]] == end.max()
        assert ready[path[-1]] == 0
        for op, before in pairwise(path):
            device = devices_V[op]
            now = start[op] - costs.dispatch_ns[device]
            freed = (end == now) & (devices_V == device)
            freed[op] = False
            if ready[op] < now and freed.any():
                assert freed[before]
                waits += 1
            else:
                assert end[before] <= ready[op]
    assert waits > 20


@given(problems_with_costs(max_ops=10, max_devices=4, full_links=False), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_critical_moves_are_legal(case, seed):
    problem, costs = case
    mask, rng = make_mask(problem), np.random.default_rng(seed)
    if problem.objective is not Objective.makespan or not mask.num_units:
        return
    try:
        devices_U = mask.complete(mask.prefer_random(rng))
    except ValueError:
        return
    keys_V = rng.permutation(problem.graph.num_ops) * 1024
    moves, _ = critical_moves(problem, costs, devices_U, keys_V)
    state = np.uint64(seed)
    for _ in range(30):
        new_U, new_V = devices_U.copy(), keys_V.copy()
        state, moved = move_of(make_move_tables(mask), state, moves, len(moves), new_U, new_V)
        state = np.uint64(state)
        assert mask.is_legal(new_U)
        changed = (new_U != devices_U).any() or (new_V != keys_V).any()
        assert changed == moved


def test_a_walk_that_knows_its_critical_path_ends_at_the_optimum():
    problem, costs = join_of_eight(10)
    mask = make_mask(problem)
    for seed in range(5):
        evaluator = Evaluator(problem, CompiledScorer(problem, costs), Budget(400), "walk")
        start = (14, np.arange(9) % 4, np.arange(9)[::-1] * 1024)
        walk = Walk(make_move_tables(mask), evaluator, np.random.default_rng(seed), [start])
        walk.run(400, 1.0, 0.1)
        assert evaluator.best_ns == 9
