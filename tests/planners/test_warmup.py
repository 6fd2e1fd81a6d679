"""The warm-up drives the whole learned planner without the compiled engine."""

import numpy as np

from doppler.core.costs import make_costs
from doppler.planners.tiny import LoadScorer
from doppler.planners.warmup import compile_learned_planner


def test_it_runs_every_part_of_the_planner(monkeypatch):
    seen = []
    original = LoadScorer.score
    monkeypatch.setattr(
        LoadScorer,
        "score",
        lambda self, *rows: seen.append(len(rows[0])) or original(self, *rows),
    )
    compile_learned_planner()
    assert sum(seen) > 60


def test_the_load_is_that_of_the_busiest_device():
    from doppler.core.cluster import Cluster, Device
    from doppler.core.graph import DataflowGraph, Op
    from doppler.core.problem import Problem

    graph = DataflowGraph(name="g", ops=tuple(Op(kind="k", name=n) for n in "abc"))
    devices = tuple(Device(name=n, kind="cpu", parent="p") for n in "xy")
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices))
    scorer = LoadScorer(problem, make_costs(problem, ((1, 9), (2, 9), (4, 5))))
    values = scorer.score(np.array([[0, 0, 0], [0, 0, 1]]), np.zeros((2, 3)))
    assert values.tolist() == [7, 5]
    assert scorer.num_calls == 2
