"""Outputs that are kept: one value per iteration, whatever the plan, across segments."""

import numpy as np
import pytest
from core_clusters import plan_of, problem_of
from toy_job import toy_graph

from executor.job_spec import JobSpec
from executor.options import ExecutorOptions
from executor.runtime import CoreExecutor

pytestmark = pytest.mark.timeout(60)
KEPT = (3, 0)


def recorded(*segments):
    problem = problem_of(toy_graph())
    options = ExecutorOptions(record=(KEPT,))
    with CoreExecutor(JobSpec(path="toy_job:ToyJob"), problem, options) as executor:
        for placement, iterations in segments:
            executor.run(problem, plan_of(problem, *placement), iterations)
        values = executor.take_records()[KEPT]
        assert executor.take_records() == {KEPT: []}
        return values, executor.read_output(*KEPT)


def test_every_iteration_is_kept_once_and_the_last_is_the_newest():
    values, newest = recorded(((0,) * 8, 4), ((0, 0, 1, 1, 0, 1, 0, 1), 3))
    assert [iteration for iteration, _ in values] == list(range(7))
    assert np.array_equal(values[-1][1], newest)
    assert len({value.tobytes() for _, value in values}) > 1


def test_placement_does_not_change_what_is_kept():
    alone, _ = recorded(((0,) * 8, 6))
    split, _ = recorded(((0, 1, 1, 0, 1, 0, 1, 0), 6))
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(alone, split, strict=True))
