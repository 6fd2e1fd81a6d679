"""Rows and profiles that are not possible do not end `doppler coordinate`."""

import dataclasses

import pytest
from test_coordinate import HARDWARE, OWN, SETTINGS, Simulated, calibration

from doppler import coordination
from doppler.coordination import Coordination
from doppler.core.errors import CapacityError
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
        assert three._dp_only(gmis, 4, three._costs_or_units) is not None
    assert three.not_profiled == {}


def test_a_profile_whose_all_reduce_does_not_fit_is_left_out_with_the_reason():
    """Five rings want five trainers, and two GMIs have two each."""
    five = with_trainers(num_trainers=5, num_shards=5, all_reduce="hybrid(5)")
    assert five._dp_only(1, 4, five._costs_or_units) is not None
    assert five.profile(2, 4) is None
    assert five.measured_profile(2, 4, 5) is None
    assert list(five.not_profiled) == [2]
    assert "rings" in five.not_profiled[2]
