"""A problem of four ops, on which a planner loads what it compiles before its time begins."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph, Edge, Group, Op
from doppler.core.problem import Problem
from doppler.planners.base import Budget, Planner
from doppler.policies.ablations import new_policy
from doppler.policies.config import PolicyConfig
from doppler.training.config import (
    ImitationConfig,
    LearnedMode,
    ReinforceConfig,
    TrainingConfig,
)
from simulator.scorer import CompiledScorer

BUDGET = 120


def tiny_problem() -> tuple[Problem, Costs]:
    """Returns four ops, two of them in a group, and a loop on two devices; and their times."""
    ops = tuple(Op(kind="k", name=f"op{i}", outputs=(8,), group="g" if i else None) for i in (0, 1))
    ops += tuple(Op(kind="k", name=f"op{i}", outputs=(8,)) for i in (2, 3))
    edges = (Edge(0, 0, 1), Edge(0, 0, 2), Edge(1, 0, 3), Edge(2, 0, 3), Edge(3, 0, 0, 1))
    graph = DataflowGraph(name="warm_up", ops=ops, edges=edges, groups=(Group("g", 8),))
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent="p", copy_engines=0) for i in (0, 1))
    links = (Link(src="d0", dst="d1", latency_ns=1), Link(src="d1", dst="d0", latency_ns=1))
    cluster = Cluster(name="two", devices=devices, links=links)
    problem = Problem(graph=graph, cluster=cluster)
    return problem, make_costs(problem, ((3, 4),) * len(ops))


def rehearse(planner: Planner, has_kernel: bool) -> None:
    """Plans once; what is compiled or imported for it is loaded then, and kept on disk.

    Args:
        planner: Whatever it does.
        has_kernel: Plans are scored by the compiled engine, as searches use it; else by a scorer
            that needs none.
    """
    problem, costs = tiny_problem()
    scorer = CompiledScorer(problem, costs) if has_kernel else LoadScorer(problem, costs)
    planner(problem, scorer, Budget(BUDGET), np.random.default_rng(0))


@functools.cache
def load_learned(
    make: Callable[..., Planner],
    mode: LearnedMode,
    config: PolicyConfig,
    is_trained: bool,
    has_kernel: bool,
) -> None:
    """Lets the learned planner, which `make` makes, rehearse; once in a process for each kind."""
    planner = make(
        mode=mode,
        policy=new_policy(config, seed=0) if is_trained else None,
        policy_config=config,
        training=TrainingConfig(
            imitation=ImitationConfig(num_updates=1, num_elite_updates=1, batch=2),
            reinforce=ReinforceConfig(batch=2),
            guide_share=0.1,
            most_episodes=4,
        ),
    )
    rehearse(planner, has_kernel)


class LoadScorer:
    """Scores a plan by the largest load of a device: enough to drive a planner.

    Attributes:
        problem: What is placed.
        costs: Times.
        num_calls: Plans scored.
    """

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.problem = problem
        self.costs = costs
        self.num_calls = 0

    def score(self, placements_BV: Any, priorities_BV: Any, bounds_B: Any = None) -> Any:
        """Returns the largest load per plan in ns, int64[B]."""
        placements = np.asarray(placements_BV)
        self.num_calls += len(placements)
        times_VD = np.array(self.costs.op_ns)
        own = times_VD[np.arange(placements.shape[1]), placements]
        loads = [(own * (placements == device)).sum(axis=1) for device in range(times_VD.shape[1])]
        return np.max(loads, axis=0).astype(np.int64)
