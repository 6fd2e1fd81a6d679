"""Algorithm 1 and the exhaustive search on rates made by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.coordinator.reading import Reading
from doppler.coordinator.search import (
    NoSample,
    Sample,
    SearchSpace,
    algorithm_1,
    at_fixed_batch,
    exhaustive,
    project_memory,
    saturation,
    whole_system,
)
from doppler.core.errors import ConfigError

ENVS = (128, 256, 512, 1024)


def profile_of(rates, memory=lambda envs: 100 + envs, limit=10**9):
    """Returns a profile from rates[gmis][position], and the list of its calls."""
    calls = []

    def profile(gmis, envs):
        calls.append((gmis, envs))
        if memory(envs) * gmis > limit:
            return None
        return Sample(gmis, envs, rates[gmis][ENVS.index(envs)], memory(envs))

    return profile, calls


def space(**options):
    return SearchSpace(
        **{"gmis": (2, 1), "envs": ENVS, "gpu_memory_bytes": 10**9, "sat_threshold": 0.1, **options}
    )


def rate(sample):
    return sample.steps_per_s


def test_the_first_point_can_win_only_in_the_corrected_search():
    rates = {2: [900.0, 500.0, 400.0, 300.0], 1: [100.0, 190.0, 200.0, 201.0]}
    profile, calls = profile_of(rates)
    found = algorithm_1(profile, rate, space())
    assert (found.best.gmis, found.best.envs) == (2, 128)
    assert calls == [(2, 128), (2, 256), (1, 128), (1, 256), (1, 512)]
    assert [p.note for p in found.points] == ["", "saturated", "", "", "saturated"]
    printed = algorithm_1(profile, rate, space(), Reading.printed)
    assert (printed.best.gmis, printed.best.envs) == (1, 256)
    assert printed.best.total == 190.0
    assert exhaustive(profile, rate, space()).best.total == 900.0


def test_the_point_that_saturates_counts_although_the_row_ends():
    """Memory grows by 56 % from 128 to 256, the rate by 5 %: saturation 0.09."""
    rates = {1: [100.0, 105.0, 300.0, 400.0]}
    profile, _ = profile_of(rates)
    assert algorithm_1(profile, rate, space(gmis=(1,))).best.total == 105.0
    assert algorithm_1(profile, rate, space(gmis=(1,)), Reading.printed).best is None


def test_projection_stops_before_memory_runs_out_and_a_real_overflow_is_survived():
    rates = {2: [100.0, 200.0, 400.0, 800.0], 1: [10.0, 20.0, 40.0, 80.0]}
    profile, calls = profile_of(rates)
    found = algorithm_1(profile, rate, space(gpu_memory_bytes=1300))
    assert (2, 512) in calls  # 612 of 617.5
    assert (2, 1024) not in calls
    assert [p.note for p in found.points if p.gmis == 2][-1] == "projected memory does not fit"
    tight = space(gpu_memory_bytes=1240)  # 612 of 620, and of 589 with the margin
    assert (2, 512) not in [(p.gmis, p.envs) for p in algorithm_1(profile, rate, tight).points[:2]]
    assert algorithm_1(profile, rate, tight).points[2].note == "projected memory does not fit"
    stepped = {128: 100, 256: 110, 512: 120, 1024: 5000}
    profile, _ = profile_of(rates, memory=stepped.__getitem__, limit=6000)
    found = algorithm_1(profile, rate, space())
    assert [p.note for p in found.points if p.gmis == 2] == ["", "", "", "memory ran out"]
    assert found.best.total == 400.0
    assert found.num_profiles == 8


def test_a_point_that_cannot_be_profiled_is_passed_over_with_its_reason():
    """What a job does not allow is no lack of memory: a larger point of the row may be allowed."""
    rates = {2: [100.0, 200.0, 400.0, 800.0], 1: [10.0, 20.0, 40.0, 80.0]}
    known, _ = profile_of(rates)

    def profile(gmis, envs):
        return NoSample("it ran out of rings") if (gmis, envs) == (2, 256) else known(gmis, envs)

    for found in (algorithm_1(profile, rate, space()), exhaustive(profile, rate, space())):
        assert [p.note for p in found.points if p.gmis == 2] == ["", "it ran out of rings", "", ""]
        assert (found.best.gmis, found.best.envs) == (2, 1024)
        assert found.num_profiles == 7


def test_a_gain_of_just_the_threshold_is_not_saturated():
    """Memory doubles and the rate grows by a half at each step: the gain is 0.5."""
    rates = {1: [64.0, 96.0, 144.0, 216.0]}
    profile, _ = profile_of(rates, memory=lambda envs: envs)
    exact = algorithm_1(profile, rate, space(gmis=(1,), sat_threshold=0.5))
    assert [p.note for p in exact.points] == ["", "", "", ""]
    above = algorithm_1(profile, rate, space(gmis=(1,), sat_threshold=0.5000001))
    assert [p.note for p in above.points] == ["", "saturated"]


@pytest.mark.parametrize(
    ("steps_per_s", "memory_bytes"),
    [(0.0, 1), (-1.0, 1), (float("nan"), 1), (float("inf"), 1), (1.0, -1)],
)
def test_a_sample_is_a_rate_and_a_size(steps_per_s, memory_bytes):
    with pytest.raises(ConfigError, match="that of 2 x 8 has"):
        Sample(2, 8, steps_per_s, memory_bytes)


@pytest.mark.parametrize(
    "fields", [{"gpu_memory_bytes": -1}, {"margin": 1.0}, {"margin": float("nan")}]
)
def test_memory_of_a_search_is_in_range(fields):
    with pytest.raises(ConfigError, match=r"at least 0 and margin lies in \[0, 1\)"):
        space(**fields)


def test_memory_that_does_not_grow():
    assert saturation(Sample(1, 1, 10, 50), Sample(1, 2, 11, 50)) == float("inf")
    assert saturation(Sample(1, 1, 10, 50), Sample(1, 2, 10, 40)) == float("-inf")
    assert saturation(Sample(1, 1, 10, 50), Sample(1, 2, 12, 60)) == pytest.approx(1.0)


def test_projection_by_hand():
    """Eq. 4 through (128, 100) and (256, 164): 0.5 per environment."""
    row = [Sample(1, 128, 1, 100), Sample(1, 256, 1, 164), Sample(1, 512, 1, 420)]
    assert project_memory(row[:1], 512) is None
    assert project_memory(row[:2], 512) == 292
    assert project_memory(row, 1024, Reading.printed) == 548
    assert project_memory(row, 1024) == 932


@given(
    rates=st.fixed_dictionaries(
        {g: st.lists(st.floats(1, 1e6), min_size=4, max_size=4) for g in (1, 2)}
    ),
    threshold=st.floats(-1, 2),
)
def test_best_is_what_was_measured_and_never_above_the_exhaustive(rates, threshold):
    profile, _ = profile_of(rates)
    found = algorithm_1(profile, rate, space(sat_threshold=threshold))
    everything = exhaustive(profile, rate, space())
    assert found.best.total == max(p.sample.steps_per_s for p in found.points if p.sample)
    assert found.best.total <= everything.best.total
    assert found.num_profiles <= everything.num_profiles == 8


def test_equal_batches_and_the_whole_system():
    calls = []

    def profile(gmis, envs):
        calls.append((gmis, envs))
        return Sample(gmis, envs, 100.0 * gmis, 10)

    found = at_fixed_batch(profile, rate, space(gmis=(3, 2, 1)), 1024)
    assert calls == [(2, 512), (1, 1024)]  # 1024 environments do not divide by 3
    assert found.best.gmis == 2
    assert whole_system(100.0, 4, 3000, 1000) == 300.0
    with pytest.raises(ConfigError, match="ascending"):
        space(envs=(2, 1))
    with pytest.raises(ConfigError, match="at least 1"):
        space(gmis=(0,))
