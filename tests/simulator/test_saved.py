"""Runs that go on from a saved state return and log what a whole run does."""

import random

import numpy as np
from numba import njit

from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.planners.mask import make_mask
from simulator.engine.jit import IDLE, NOW, TRANSFERS, WRITE_LOG
from simulator.engine.lanes import Engine, Lane
from simulator.engine.saved import complete_log, first_effect
from simulator.engine.saved_run import run_saved
from tests.random_problems import random_cluster, random_costs, random_graph

MARKS = 5


@njit
def run(tab, ws, log, base, places_1V, keys_1V, bound, row, rows_M, first):
    return run_saved(tab, ws, log, base, places_1V, keys_1V, bound, row, rows_M, first)


@njit
def effect_of(tab, base, old_V, old_keys_V, new_V, new_keys_V):
    return first_effect(tab, base, old_V, old_keys_V, new_V, new_keys_V)


@njit
def complete(tab, ws, base, log, row):
    complete_log(tab, ws, base, log, row)


class Chain:
    """A plan, the states and the log of its run, and runs of changed plans from them."""

    def __init__(self, problem, costs, devices_U, keys_V):
        self.mask = make_mask(problem)
        engine = Engine(problem, costs)
        self.lane = Lane(engine, 1, traced=True, marks=MARKS)
        self.whole = Lane(engine, 1, traced=True)
        kernel = self.lane.kernel(WRITE_LOG, None, stops_early=True)
        self.tab, self.ws = kernel.tables, kernel.workspace
        self.base, self.log = (kernel.log, self.lane.log), (kernel.base, self.lane.base)
        self.rows_M, self.spare_M = np.arange(MARKS), np.arange(MARKS, 2 * MARKS)
        self.devices_U, self.keys_V = devices_U, keys_V
        self.value = self._run(*self.plan(), IDLE, -1, self.base[0], self.rows_M)

    def plan(self):
        return self.mask.placement(self.devices_U), self.keys_V

    def _run(self, placement_V, keys_V, bound, mark, log, rows_M):
        row = self.rows_M[mark] if mark >= 0 else -1
        base = self.base[0]
        return run(
            self.tab,
            self.ws,
            log,
            base,
            placement_V[None],
            keys_V[None],
            bound,
            row,
            rows_M,
            mark + 1,
        )

    def usable(self, placement_V, keys_V):
        """Marks whose states were saved before the plan's first effect."""
        effect = effect_of(self.tab, self.base[0], *self.plan(), placement_V, keys_V)
        times = self.lane.workspace.saved[self.rows_M, NOW]
        return [mark for mark in range(MARKS) if times[mark] < effect]

    def run_from(self, mark, placement_V, keys_V, bound=IDLE):
        """(Value, log) of a run that goes on from a mark."""
        value = self._run(placement_V, keys_V, bound, mark, self.log[0], self.spare_M)
        if mark >= 0 and value <= bound:
            complete(self.tab, self.ws, self.base[0], self.log[0], self.rows_M[mark])
        return value, logged(self.lane, self.log[1])

    def run_whole(self, placement_V, keys_V):
        """(Value, log) of a run that saves nothing."""
        out = np.zeros(1, np.int64)
        bounds = np.full(1, IDLE)
        self.whole.run(placement_V[None], keys_V[None], bounds, WRITE_LOG, out)
        return int(out[0]), logged(self.whole, self.whole.log)

    def accept(self, mark, devices_U, keys_V):
        """The plan that was run last is the chain's."""
        rows_M, spare_M = self.rows_M.copy(), self.spare_M.copy()
        self.rows_M[mark + 1 :], self.spare_M[mark + 1 :] = spare_M[mark + 1 :], rows_M[mark + 1 :]
        self.base, self.log = self.log, self.base
        self.devices_U, self.keys_V = devices_U, keys_V


def logged(lane, log):
    """What a log holds of the last run, its transfers included."""
    transfers = log.transfers[: int(lane.workspace.scalars[TRANSFERS])]
    parts = (log.op_ready, log.op_start, log.op_end, log.op_stream, transfers)
    return [part.tolist() for part in parts]


def changed(chain, rng):
    """A plan with one unit elsewhere, or with two keys exchanged."""
    devices_U, keys_V = chain.devices_U.copy(), chain.keys_V.copy()
    if rng.random() < 0.6:
        devices_U[rng.integers(len(devices_U))] = rng.integers(chain.mask.num_devices)
    else:
        pair = rng.integers(len(keys_V), size=2)
        keys_V[pair] = keys_V[pair[::-1]]
    return devices_U, keys_V


def test_runs_from_saved_states_are_whole_runs():
    resumed = 0
    for seed in range(150):
        rng = random.Random(seed)
        num_ops, cyclic = rng.randint(2, 24), rng.random() < 0.3
        graph = random_graph(rng, num_ops, cyclic=cyclic, groups=False, inputs=False)
        problem = Problem(graph=graph, cluster=random_cluster(rng))
        numbers = np.random.default_rng(seed)
        devices_U = numbers.integers(problem.cluster.num_devices, size=graph.num_ops)
        chain = Chain(
            problem, random_costs(rng, problem), devices_U, numbers.permutation(graph.num_ops)
        )
        assert chain.value == chain.run_whole(*chain.plan())[0]
        for _ in range(8):
            devices_U, keys_V = changed(chain, numbers)
            plan = chain.mask.placement(devices_U), keys_V
            marks = [-1, *chain.usable(*plan)]
            resumed += len(marks) - 1
            whole = chain.run_whole(*plan)
            for mark in marks:
                assert chain.run_from(mark, *plan) == whole
            bound = int(numbers.integers(whole[0] + 2))
            early, _ = chain.run_from(marks[-1], *plan, bound)
            assert early == whole[0] if whole[0] <= bound else early > bound
            if early <= bound:
                chain.accept(marks[-1], devices_U, keys_V)
    assert resumed > 500


def test_the_first_effect_of_a_key_is_when_its_op_is_ready():
    chain = line_of_three()
    placement_V, keys_V = chain.plan()
    assert effect_of(chain.tab, chain.base[0], placement_V, keys_V, placement_V, keys_V) == IDLE
    assert (
        effect_of(
            chain.tab, chain.base[0], placement_V, keys_V, placement_V, keys_V + np.array([0, 0, 1])
        )
        == chain.lane.log.op_ready[0, 2]
    )


def test_the_first_effect_of_a_device_is_when_a_producer_ends():
    chain = line_of_three()
    placement_V, keys_V = chain.plan()
    for op, effect in ((0, 0), (1, chain.lane.log.op_end[0, 0]), (2, chain.lane.log.op_end[0, 1])):
        moved_V = placement_V.copy()
        moved_V[op] = 1
        assert effect_of(chain.tab, chain.base[0], placement_V, keys_V, moved_V, keys_V) == effect


def test_what_has_started_in_a_state_does_not_depend_on_another_devices_dispatch():
    """The last op moves from where it takes 50 ns to where it takes 5 ns and 10 ns of dispatch."""
    problem = problem_of_three()
    costs = make_costs(problem, ((5, 5), (5, 5), (50, 5)), dispatch_ns=(0, 10))
    chain = Chain(problem, costs, np.zeros(3, np.int64), np.arange(3))
    moved = np.array([0, 0, 1]), np.arange(3)
    whole = chain.run_whole(*moved)
    assert chain.value == 60 > whole[0]
    assert chain.usable(*moved)
    for mark in chain.usable(*moved):
        assert chain.run_from(mark, *moved, whole[0]) == whole


def line_of_three():
    """Three ops, one after the other, all on device 0."""
    problem = problem_of_three()
    return Chain(problem, make_costs(problem, ((5, 5),) * 3), np.zeros(3, np.int64), np.arange(3))


def problem_of_three():
    rng = random.Random(0)
    graph = DataflowGraph(
        name="line",
        ops=tuple(Op(kind="k", name=f"o{i}", outputs=(4,)) for i in range(3)),
        edges=(Edge(0, 0, 1), Edge(1, 0, 2)),
    )
    return Problem(graph=graph, cluster=random_cluster(rng, num_devices=2))
