"""Choosing the baseline that the learned plan meets."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.core.graph import Op
from doppler.core.plan import make_plan
from doppler.core.trace import OpSpan, Trace
from doppler.learn_run import Candidate
from doppler.measure import Interval
from doppler.trial import FINALIST_WINDOWS, best_baseline
from tests.simulator.cost_samples import problem_of


class Machine:
    """Runs plans whose period is looked up by their source; counts windows by it."""

    def __init__(self, periods):
        self._periods = periods
        self.windows = dict.fromkeys(periods, 0)

    def run(self, plan, iterations):
        self.windows[plan.source] += 1
        period = self._periods[plan.source]
        return Trace(
            graph_digest=plan.graph_digest,
            cluster_digest=plan.cluster_digest,
            source=plan.source,
            runtime="executor",
            iterations=iterations,
            op_spans=tuple(
                OpSpan(0, i, 0, 0, i * period, i * period, (i + 1) * period)
                for i in range(iterations)
            ),
            transfers=(),
            peak_bytes=(0, 0),
        )


class Planned:
    """The one thing that choosing reads of a planner's result."""

    def __init__(self, plan):
        self.plan = plan


@pytest.fixture
def problem():
    return problem_of(tuple(Op(kind="walk", name=f"w{i}", flop=1) for i in range(4)))


def candidates(problem, looks):
    """Candidates by name, each with a plan of its own and the time that the turns showed."""
    found = []
    for number, (name, value) in enumerate(looks.items()):
        placement = tuple(int(op < number) for op in range(4))
        plan = make_plan(problem, placement, (0,) * 4, name)
        found.append(
            Candidate(
                name=name,
                layout="per_core",
                result=Planned(plan),
                measured_ns=Interval(value, value, value),
            )
        )
    return found


def test_a_baseline_that_looked_fast_once_loses_the_race(problem):
    machine = Machine({"lucky": 1300, "fast": 1000, "slow": 2000, "out": 900})
    found = candidates(problem, {"lucky": 990, "slow": 1990, "fast": 1010, "out": 9000})
    chosen = best_baseline(found, machine.run, 3, 5, np.random.default_rng(0))
    assert chosen.name == "fast"
    assert machine.windows["out"] == 0
    assert sum(machine.windows.values()) <= 3 * FINALIST_WINDOWS


def test_without_a_race_the_turns_decide_and_nothing_runs(problem):
    machine = Machine({"lucky": 1300, "fast": 1000})
    found = candidates(problem, {"fast": 1010, "lucky": 990})
    assert best_baseline(found, machine.run, 1, 5, np.random.default_rng(0)).name == "lucky"
    assert not any(machine.windows.values())


def test_equal_plans_take_one_place_in_the_race(problem):
    machine = Machine({"first": 1000, "twin": 1000, "other": 900})
    found = candidates(problem, {"first": 1000, "twin": 1001, "other": 1002})
    found[1] = replace(found[1], result=Planned(replace(found[0].result.plan, source="twin")))
    assert best_baseline(found, machine.run, 2, 5, np.random.default_rng(0)).name == "other"
    assert machine.windows["twin"] == 0
