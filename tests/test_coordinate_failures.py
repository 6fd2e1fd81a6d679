"""Rows and profiles that are not possible do not end `doppler coordinate`."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_coordinate import HARDWARE, OWN, SETTINGS, Simulated, calibration

from doppler import coordination
from doppler.api import simulate
from doppler.console import View
from doppler.coordinate_config import CoordinateConfig, ProfileSource
from doppler.coordinate_cut import core_cut
from doppler.coordinate_rows import Batch
from doppler.coordinate_search import show_searches
from doppler.coordination import Coordination
from doppler.coordinator.search import NoSample
from doppler.core.errors import CapacityError, ConfigError
from doppler.core.job_mode import JobMode
from doppler.measure import MIN_RATIOS


def with_trainers(**changed):
    settings = dataclasses.replace(SETTINGS, **changed)
    tables = {fused: calibration(fused).table() for fused in (True, False)}
    return Coordination(settings, HARDWARE, tables, seed=0)


@pytest.mark.parametrize("windows_before", [0, 3])
def test_a_row_that_cannot_run_does_not_end_the_comparison(monkeypatch, windows_before):
    """Two GMIs, the fastest row, have no memory: at once, or after some windows."""
    coordinator, calls = with_trainers(), []

    class Scarce(Simulated):
        def run(self, problem, plan, iterations):
            if problem.cluster.num_devices == 2:
                calls.append(plan)
                if len(calls) > windows_before:
                    raise CapacityError("device 'gmi1' is full")
            return super().run(problem, plan, iterations)

    monkeypatch.setattr(coordination, "open_executor", Scarce(coordinator))
    templates, _ = coordinator.templates(OWN)
    fast = next(row for row in templates if row.variant.problem.cluster.num_devices == 2)
    slow = next(row for row in templates if row.variant.problem.cluster.num_devices == 1)
    found = coordinator.verify([fast, slow], windows=MIN_RATIOS, iterations=5)
    assert found.failed == {0: "device 'gmi1' is full"}
    assert found.rates[0] is None
    assert found.rates[1].value == pytest.approx(slow.steps_per_s, rel=1e-3)
    assert found.chosen == 1
    none = coordinator.verify([fast], windows=MIN_RATIOS, iterations=5)
    assert (none.rates, none.chosen) == ((None,), None)


def test_profiles_have_groups_of_trainers_that_divide():
    """Three trainers in three groups; a profile has other trainers in as many groups as divide."""
    three = with_trainers(num_trainers=3, trainer_groups=3, num_shards=3, all_reduce="multi_ring")
    for trainers, groups in ((3, 3), (2, 2), (4, 2), (6, 3), (1, 1), (5, 1)):
        asked = three.real_settings(OWN, True, trainers)
        assert (asked.num_trainers, asked.trainer_groups) == (trainers, groups)
    for gmis in (1, 2):
        assert not isinstance(three._dp_only(gmis, 4, three._costs_or_units), NoSample)


def test_a_profile_whose_all_reduce_does_not_fit_is_left_out_with_the_reason():
    """Five rings want five trainers, and two GMIs have two each."""
    five = with_trainers(num_trainers=5, num_shards=5, all_reduce="hybrid(5)")
    assert not isinstance(five._dp_only(1, 4, five._costs_or_units), NoSample)
    for found in (five.profile(2, 4), five.measured_profile(2, 4, 5)):
        assert isinstance(found, NoSample)
        assert "rings" in found.reason


def test_the_searches_tell_why_a_point_has_no_profile(capsys):
    five = with_trainers(num_trainers=5, num_shards=5, all_reduce="hybrid(5)")
    config = CoordinateConfig(
        job=five.settings, profiles=ProfileSource.measured, profile_envs=[4, 8]
    )
    seen = []

    def measured(gmis, envs, iterations):
        seen.append((gmis, envs))
        return five._dp_only(gmis, envs, five._costs_or_units) if gmis == 2 else None

    five.measured_profile = measured
    show_searches(config, five, [4], View())
    out = " ".join(capsys.readouterr().out.split())
    assert "no profile (4 environments on each of 2, 8 environments on each of 2" in out
    assert "rings" in out
    assert "no profile (4 environments on each of 1" in out
    assert out.count("memory ran out") == 1  # of one GMI only, where it did
    assert len(seen) == len(set(seen))


def jobs_of(coordinator, monkeypatch):
    """Jobs that profiles of a coordinator build and open, in order; they run in the simulator."""
    built = []
    real_job = coordinator.real_job

    def spied(*args):
        built.append(real_job(*args))
        return built[-1]

    class Opened(Simulated):
        def run(self, problem, plan, iterations):
            return simulate(problem, plan, coordinator._costs_or_units(problem), iterations)

    monkeypatch.setattr(coordinator, "real_job", spied)
    monkeypatch.setattr(coordination, "open_executor", Opened(coordinator))
    return built


@pytest.mark.parametrize("independent", [False, True])
def test_what_a_profile_reports_is_what_was_built(monkeypatch, independent):
    changed = {"mode": JobMode.asynchronous, "staleness": 1, "independent_trainers": True}
    coordinator = with_trainers(**(changed if independent else {}))
    built, graphs = jobs_of(coordinator, monkeypatch), set()
    for gmis in (1, 2):
        for envs in range(1, 8):
            sample = coordinator.measured_profile(gmis, envs, 3)
            assert (sample.gmis, sample.envs) == (gmis, envs)
            steps = built[-1].env_steps_per_iteration  # of the job that ran
            assert steps == gmis * envs * SETTINGS.horizon
            graphs.add((gmis, built[-1].graph.digest))
    assert len(graphs) == 14  # no job twice


@given(
    shards=st.integers(1, 12),
    gmis=st.integers(1, 8),
    processors=st.integers(1, 4),
    envs=st.integers(1, 200),
)
def test_a_profile_has_exactly_the_environments_that_are_asked(shards, gmis, processors, envs):
    settings = dataclasses.replace(SETTINGS, num_shards=shards)
    cut = dataclasses.replace(core_cut(HARDWARE), num_processors=processors)
    coordinator = Coordination(settings, HARDWARE, {}, seed=0, cut=cut)
    batch = coordinator.profile_batch(gmis, envs)
    assert batch.num_shards * batch.envs_per_shard == gmis * envs * processors
    assert batch.num_shards % (gmis * processors) == 0
    own = max(1, round(shards / (gmis * processors)))
    each = batch.num_shards // (gmis * processors)
    assert each <= own
    assert not any(envs % more == 0 for more in range(each + 1, own + 1))


@pytest.mark.parametrize(("envs", "shards"), [(6, 4), (2, 4), (0, 1), (4, 0)])
def test_a_batch_deals_its_environments_out_evenly(envs, shards):
    with pytest.raises(ConfigError, match=f"{envs} environments are in {shards} shards"):
        Batch(num_envs=envs, num_shards=shards)
