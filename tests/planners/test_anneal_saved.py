"""Walks that go on from saved states make the moves, and end with the plans, of whole runs."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.errors import CapacityError, PlanError
from doppler.core.problem import Objective, Problem
from doppler.planners.annealing import anneal
from doppler.planners.base import Budget
from simulator.engine.jit import COUNT_BYTES
from simulator.scorer import CompiledScorer
from tests.policies.problems import layered
from tests.random_problems import (
    problems_with_costs,
    random_cluster,
    random_costs,
    random_graph,
)


class Stateless(CompiledScorer):
    """A scorer whose compiled runs save no states."""

    def kernel(self):
        return super().kernel()._replace(marks=0)


def end_of(scorer, seed, calls=400):
    """What an annealing run ends with, or the kind of its error."""
    try:
        found = anneal(scorer.problem, scorer, Budget(calls), np.random.default_rng(seed))
    except (CapacityError, PlanError) as error:
        return type(error), scorer.num_calls
    return found.placement, found.priority, scorer.num_calls


@given(problems_with_costs(max_ops=14, max_devices=4), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_walks_from_saved_states_end_as_walks_of_whole_runs(case, seed):
    problem, costs = case
    if problem.objective is Objective.p95:
        return
    assert end_of(CompiledScorer(problem, costs), seed) == end_of(Stateless(problem, costs), seed)


@pytest.mark.parametrize("loops", [True, False])
def test_on_graphs_of_twenty_ops_with_and_without_loops(loops):
    for seed in range(3):
        problem, costs = layered(seed, loops=loops)
        ends = [end_of(kind(problem, costs), seed, 1_500) for kind in (CompiledScorer, Stateless)]
        assert ends[0] == ends[1]


@pytest.mark.parametrize("penalty", [None, 1 << 30])
def test_where_memory_is_tight_too(penalty):
    counted = 0
    for seed in range(15):
        problem, costs = tight_problem(seed)
        ends = []
        for kind in (CompiledScorer, Stateless):
            scorer = kind(problem, costs, memory_penalty_ns_per_mib=penalty)
            counted += scorer.kernel().mode & COUNT_BYTES
            ends.append(end_of(scorer, seed))
        assert ends[0] == ends[1]
    assert counted > 15


def tight_problem(seed):
    """A random problem where many plans do not fit in memory."""
    rng = random.Random(seed)
    cluster = random_cluster(rng, num_devices=3)
    devices = tuple(replace(device, memory_bytes=60) for device in cluster.devices)
    problem = Problem(
        graph=random_graph(rng, 12, groups=False, inputs=False),
        cluster=replace(cluster, devices=devices),
    )
    return problem, random_costs(rng, problem)
