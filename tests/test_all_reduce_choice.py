"""Which composition adds the gradients of a job: simulated, then measured."""

import dataclasses

import pytest
from test_coordinate import HARDWARE, SETTINGS

from doppler import all_reduce_choice as module
from doppler.all_reduce_choice import compositions, rank_compositions, with_all_reduce
from doppler.api import simulate
from doppler.config import CalibrationSettings
from doppler.console import View
from doppler.core.costs import make_costs
from doppler.core.job_mode import JobMode
from doppler.jobs import build_job
from executor.probe import ProbeResult
from simulator.costs.source import UnknownTimeError

FOUR = dataclasses.replace(SETTINGS, all_reduce="auto", trainer_groups=2, hidden=[64, 64])


def costs_by_hand(per_kind):
    """Op times by kind, 10 us where none is given."""

    def costs(settings, problem):
        rows = [
            (0 if op.is_input else per_kind.get(op.kind, 10_000),) * problem.cluster.num_devices
            for op in problem.graph.ops
        ]
        return make_costs(problem, tuple(rows))

    return costs


def ranked(per_kind, settings=FOUR):
    names = compositions(settings)
    every = [dataclasses.replace(settings, all_reduce=name) for name in names]
    jobs = [(own, build_job(own, 0)) for own in every]
    return rank_compositions(jobs, HARDWARE, costs_by_hand(per_kind))


def test_all_compositions_that_the_trainers_allow_direct_first():
    assert compositions(FOUR) == [
        "direct",
        "ring",
        "tree",
        "local_leader",
        "multi_ring",
        "hybrid(1)",
        "hybrid(2)",
    ]
    uneven = dataclasses.replace(FOUR, num_trainers=3)
    assert compositions(uneven) == ["direct", "ring", "local_leader"]  # a tree of 3 is one sum
    two = dataclasses.replace(FOUR, num_trainers=2)
    assert compositions(two) == ["direct"]  # whoever adds, two parts are added once
    assert compositions(dataclasses.replace(FOUR, num_trainers=1, trainer_groups=1)) == ["direct"]
    assert compositions(dataclasses.replace(FOUR, mode=JobMode.serving)) == ["direct"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"num_trainers": 1, "trainer_groups": 1}, "one trainer, nothing to choose"),
        ({"num_trainers": 2}, "two parts are added once"),
        ({"mode": JobMode.serving}, "a serving job adds no gradients"),
        (
            {"mode": JobMode.asynchronous, "staleness": 1, "independent_trainers": True},
            "independent trainers apply their gradients one by one",
        ),
    ],
)
def test_where_there_is_nothing_to_choose_the_reason_is_shown(tmp_path, capsys, changed, why):
    found = decided(dataclasses.replace(FOUR, **changed), tmp_path)
    assert found.all_reduce == "direct"
    build_job(found, 0)
    assert why in " ".join(capsys.readouterr().out.split())


def test_the_fastest_in_simulation_is_first_and_of_equals_the_one_of_fewer_ops():
    rows, refused = ranked({})
    assert not refused
    assert rows[0].name in ("direct", "through_host")  # every op takes as long: fewer are faster
    keys = [(row.period_ns, row.problem.graph.num_ops) for row in rows]
    assert keys == sorted(keys)


def test_an_op_that_adds_everything_loses_to_groups_that_add_side_by_side():
    """One segment, by the part: direct adds thrice in a row, groups once each, then once more.

    Two more per segment are for the norm: 5 against 1 + 1 + 2.
    """
    settings = dataclasses.replace(FOUR, num_segments=1)

    def by_part(own, problem):
        rows = []
        for op in problem.graph.ops:
            ns = 100 * op.flop if op.kind in ("reduce", "reduce_chunk") else 1
            rows.append((0 if op.is_input else ns,) * problem.cluster.num_devices)
        return make_costs(problem, tuple(rows))

    every = [dataclasses.replace(settings, all_reduce=name) for name in ("direct", "local_leader")]
    jobs = [(own, build_job(own, 0)) for own in every]
    rows, _ = rank_compositions(jobs, HARDWARE, by_part)
    assert [row.name for row in rows] == ["local_leader", "direct"]
    assert rows[0].period_ns / rows[1].period_ns == pytest.approx(4 / 5, rel=0.02)


def test_what_has_no_times_is_refused_by_name():
    def unknown(settings, problem):
        if settings.all_reduce == "tree":
            raise UnknownTimeError("no op kind 'reduce_chunk'")
        return costs_by_hand({})(settings, problem)

    every = [dataclasses.replace(FOUR, all_reduce=name) for name in ("direct", "tree")]
    rows, refused = rank_compositions(
        [(own, build_job(own, 0)) for own in every], HARDWARE, unknown
    )
    assert [row.name for row in rows] == ["direct"]
    assert refused == {"tree": "no op kind 'reduce_chunk'"}


class Simulated:
    """Runs plans in the simulator where workers would run them."""

    costs = staticmethod(costs_by_hand({}))

    def __init__(self, job, problem, options):
        self.problem = problem

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def run(self, plan, iterations):
        return simulate(self.problem, plan, self.costs(None, self.problem), iterations)


class Times:
    """Op times made by hand instead of measured ones."""

    def __init__(self, calibration, cache, seed, options, hardware):
        self.hardware = hardware
        self.costs = costs_by_hand({})

    def measure(self, settings):
        pass


@pytest.fixture
def by_hand(monkeypatch):
    found = ProbeResult(hardware=HARDWARE, findings=())
    monkeypatch.setattr(module, "probe", lambda shm_dir: found)
    monkeypatch.setattr(module, "JobSession", Simulated)
    monkeypatch.setattr(module, "_Times", Times)


def decided(settings, tmp_path):
    return with_all_reduce(
        settings, CalibrationSettings(), tmp_path, seed=0, shm_dir="/dev/shm", view=View()
    )


def test_direct_stays_where_nothing_is_faster(by_hand, tmp_path, capsys):
    chosen = decided(FOUR, tmp_path)
    assert chosen == dataclasses.replace(FOUR, all_reduce="direct")
    out = capsys.readouterr().out
    for name in compositions(FOUR):
        assert name in out
    assert "all-reduce: direct" in out


def test_a_composition_that_is_surely_faster_is_taken(by_hand, monkeypatch, tmp_path):
    """As measured, a tree takes half the time of anything else."""

    class TreeIsFast(Simulated):
        def run(self, plan, iterations):
            trace = super().run(plan, iterations)
            is_tree = self.problem.graph.digest == tree.graph.digest
            return trace if not is_tree else _faster(trace)

    tree = build_job(dataclasses.replace(FOUR, all_reduce="tree"), 0)
    monkeypatch.setattr(module, "JobSession", TreeIsFast)
    monkeypatch.setattr(module, "TOP", 99)
    assert decided(FOUR, tmp_path).all_reduce == "tree"


def _faster(trace):
    halved = tuple(end // 2 for end in trace.iteration_ends_ns())

    class Halved:
        iterations = trace.iterations

        def iteration_ends_ns(self):
            return halved

    return Halved()


def test_a_named_composition_stays_and_one_trainer_has_nothing_to_choose(tmp_path, capsys):
    ring = dataclasses.replace(FOUR, all_reduce="ring")
    assert decided(ring, tmp_path) is ring
    one = dataclasses.replace(FOUR, num_trainers=1, trainer_groups=1)
    assert decided(one, tmp_path).all_reduce == "direct"
    assert "nothing to choose" in capsys.readouterr().out
