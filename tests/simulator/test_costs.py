"""Cost models: the roofline, and tables of measured times, corrected by the running job."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from doppler.core.cluster import Device
from doppler.core.errors import DopplerError
from doppler.core.graph import Op
from doppler.core.trace import OpSpan, Trace
from simulator.calibrate import Observation, observe
from simulator.costs.measured import fit_entries
from tests.simulator.cost_samples import entry, problem_of, table, walk

BASE = Observation(
    kind="walk",
    flop=100,
    device="core0",
    device_kind="cpu",
    cores=1,
    busy=0,
    siblings=1,
    overlap=0.0,
    duration_ns=1000,
)


@pytest.mark.parametrize(
    ("flop", "expected"),
    [
        (100, 1000),
        (200, 3000),
        (150, 2000),  # between neighbours
        (300, 3500),
        (50, 500),  # the first slope (20 ns per flop) would end in 0: in proportion to the size
        (75, 750),
        (400, 4000),
        (800, 6000),  # along the last slope, a factor of 2 outside
    ],
)
def test_times_are_linear_between_measured_sizes(flop: int, expected: int) -> None:
    measured = table(entry(100, 1000), entry(200, 3000), entry(400, 4000))
    assert measured.costs(walk(flop)).op_ns == ((expected, expected),)


def test_ops_that_only_move_bytes_have_their_bytes_for_a_size() -> None:
    """Small and large copies are told apart both when measured and when looked up."""
    ops = tuple(Op(kind="copy", name=f"c{size}", bytes_moved=size) for size in (100, 200, 150))
    spans = tuple(
        OpSpan(op, iteration, 0, 0, at, at, at + ops[op].bytes_moved * 7)
        for iteration in range(3)
        for op, at in ((0, 10_000 * iteration), (1, 10_000 * iteration + 5000))
    )
    problem = problem_of(ops)
    trace = Trace(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        source="",
        runtime="executor",
        iterations=3,
        op_spans=spans,
        transfers=(),
        peak_bytes=(0, 0),
    )
    measured = table(*fit_entries(observe(problem, trace)))
    assert [times[0] for times in measured.costs(problem).op_ns] == [700, 1400, 1050]


def test_a_table_without_sizes_gives_its_time_for_any() -> None:
    copies = problem_of((Op(kind="copy", name="c", bytes_moved=1 << 20),))
    for others in ((), (entry(100, 40, kind="copy"),)):
        found = table(entry(0, 900, kind="copy"), *others).costs(copies)
        assert found.op_ns == ((900, 900),)


def test_a_flat_first_slope_is_followed_below_the_smallest_size() -> None:
    measured = table(entry(100, 1000), entry(200, 1200))
    assert measured.costs(walk(50)).op_ns == ((900, 900),)


def test_times_never_fall_beyond_the_ends_of_a_noisy_table() -> None:
    measured = table(entry(100, 1000), entry(200, 900))
    found = [measured.costs(walk(flop)).op_ns[0][0] for flop in (50, 100, 200, 400)]
    assert found == [1000, 1000, 900, 900]


@given(
    steps=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 60)), min_size=1, max_size=4),
    least=st.integers(1, 20),
)
@example(steps=[(2, 0), (1, 60)], least=1)
def test_times_of_a_monotone_table_are_positive_and_monotone(
    steps: list[tuple[int, int]], least: int
) -> None:
    """Seen to fail with the plain first slope below the smallest size, and without the floor."""
    flop, median, entries = 0, least, []
    for size, time in steps:
        flop, median = flop + size, median + time
        entries.append(entry(flop, median))
    measured = table(*entries)
    low, high = entries[0].flop, entries[-1].flop
    sizes = range(-(-low // 2), 2 * high + 1)
    found = [measured.costs(walk(size)).op_ns[0][0] for size in sizes]
    assert found == sorted(found)
    assert all(time >= 1 for time in found)
    in_proportion = [entries[0].median_ns * min(size, low) / low for size in sizes]
    assert all(time >= part - 0.5 for time, part in zip(found, in_proportion, strict=True))


def test_slowdown_is_linear_inside_and_constant_outside() -> None:
    measured = table(entry(100, 1000, 200), entry(200, 3000, 400))
    found = {f: measured.costs(walk(f)).slowdown_permille[0] for f in (50, 100, 150, 200, 400)}
    assert found == {50: 200, 100: 200, 150: 300, 200: 400, 400: 400}


def test_one_size_stands_for_all_within_a_factor_of_two() -> None:
    assert table(entry(100, 1000)).costs(walk(200)).op_ns == ((1000, 1000),)
    assert table(entry(100, 1000)).costs(walk(50)).op_ns == ((1000, 1000),)


@pytest.mark.parametrize("flop", [49, 401])
def test_sizes_more_than_a_factor_of_two_outside_are_refused(flop: int) -> None:
    measured = table(entry(100, 1000), entry(200, 3000))
    with pytest.raises(
        DopplerError, match=f"from 100 to 200 flop on a cpu device of 1 cores, and {flop} flop"
    ):
        measured.costs(walk(flop))


def test_a_kind_that_was_not_measured_is_refused() -> None:
    with pytest.raises(DopplerError, match="no op kind 'learn' on a cpu device of 1 cores"):
        table(entry(100, 1000)).costs(problem_of((Op(kind="learn", name="l", flop=100),)))


def test_a_place_that_was_not_measured_is_refused() -> None:
    wide = Device(name="cores", kind="cpu", parent="cpu", cores=(0, 1), copy_engines=0)
    problem = problem_of((Op(kind="walk", name="w", flop=100),), (wide,))
    with pytest.raises(DopplerError, match="'walk' on a cpu device of 2 cores"):
        table(entry(100, 1000)).costs(problem)


def wide(cores: int) -> tuple[Device, ...]:
    return (
        Device(name="cores", kind="cpu", parent="cpu", cores=tuple(range(cores)), copy_engines=0),
    )


@pytest.mark.parametrize(
    ("cores", "expected", "slowdown"),
    [
        (1, 1000, 300),
        (4, 400, 0),
        (2, 600, 100),  # 200 ns that no core helps, 800 ns of work: 200 + 800 / 2
        (3, 467, 33),  # 200 + 800 / 3
    ],
)
def test_times_follow_amdahl_between_measured_core_counts(
    cores: int, expected: int, slowdown: int
) -> None:
    four = replace(entry(100, 400), cores=4, share=1.0)
    problem = problem_of((Op(kind="walk", name="w", flop=100),), wide(cores))
    costs = table(entry(100, 1000, slowdown=300), four).costs(problem)
    assert (costs.op_ns[0][0], costs.slowdown_permille[0]) == (expected, slowdown)


def test_core_counts_outside_what_was_measured_are_refused() -> None:
    two = replace(entry(100, 600), cores=2)
    problem = problem_of((Op(kind="walk", name="w", flop=100),), wide(4))
    with pytest.raises(DopplerError, match="cpu device of 4 cores; it was measured at 1, 2, and"):
        table(entry(100, 1000), two).costs(problem)


def mps(share: float) -> Device:
    return Device(name=f"mps{share}", kind="mps", parent="gpu0", share=share)


def test_shares_of_a_gpu_are_interpolated_in_size_and_share() -> None:
    grid = [
        replace(entry(flop, median), device_kind="mps", cores=0, share=share)
        for share, flop, median in (
            (0.25, 100, 4000),
            (0.25, 200, 8000),
            (1.0, 100, 1000),
            (1.0, 200, 2000),
        )
    ]
    op = Op(kind="walk", name="w", flop=150)
    devices = (mps(0.25), mps(0.5), mps(1.0))
    assert table(*grid).costs(problem_of((op,), devices)).op_ns == ((6000, 3000, 1500),)
    with pytest.raises(DopplerError, match=r"mps device of share 0.1; it was measured at 0.25, 1,"):
        table(*grid).costs(problem_of((op,), (mps(0.1),)))


def test_observations_of_shares_become_entries_of_their_own() -> None:
    seen = [
        replace(BASE, device_kind="mps", cores=0, share=share, duration_ns=duration)
        for share, duration in ((0.5, 2000), (1.0, 1000))
    ]
    assert [(e.share, e.median_ns) for e in fit_entries(seen)] == [(0.5, 2000), (1.0, 1000)]


def test_dispatch_of_a_core_count_that_was_not_measured_is_the_nearest() -> None:
    measured = replace(table(entry(0, 1)), dispatch_ns={("cpu", 1): 7, ("cpu", 4): 9})
    found = [measured.dispatch_of(wide(cores)[0]) for cores in (1, 2, 3, 8)]
    assert found == [7, 7, 9, 9]
    assert measured.dispatch_of(mps(1.0)) is None


def test_dispatch_is_that_of_the_kind_of_device() -> None:
    assert table(entry(100, 1000)).costs(walk(100)).dispatch_ns == (7, 7)


def test_factors_scale_one_kind_on_one_device() -> None:
    measured = replace(table(entry(100, 1001)), factors_permille={("walk", "core1"): 1500})
    assert measured.costs(walk(100)).op_ns == ((1001, 1501),)


def rows(durations: list[int], overlap: float, siblings: int = 1) -> list[Observation]:
    return [replace(BASE, duration_ns=d, overlap=overlap, siblings=siblings) for d in durations]


def test_entries_take_the_median_alone_and_the_slowdown_beside() -> None:
    alone, beside = [900, 1000, 1100, 1000], [1200, 1250, 1900]
    found = fit_entries(rows(alone, 0.05) + rows(beside, 0.95) + rows([5000] * 9, 0.5))
    assert [(e.median_ns, e.count) for e in found] == [(1000, 4)]
    assert found[0].slowdown_permille == round(250 / 0.95)
    assert found[0].spread_ns == 50  # quartiles 975 and 1025


def test_slowdown_is_per_sibling_and_needs_all_of_them_busy() -> None:
    alone = rows([1000] * 3, 0.0, siblings=3)
    beside = rows([1600] * 3, 3.0, siblings=3)
    partly = rows([9000] * 9, 1.5, siblings=3)
    assert fit_entries(alone + beside + partly)[0].slowdown_permille == 200
    assert fit_entries(alone + partly)[0].slowdown_permille == 0


def test_a_device_without_siblings_has_no_slowdown() -> None:
    found = fit_entries(rows([1000, 2000, 3000], 0.0, siblings=0))
    assert [(e.median_ns, e.slowdown_permille) for e in found] == [(2000, 0)]


def test_with_fewer_than_three_alone_all_samples_stand_for_the_median() -> None:
    found = fit_entries(rows([100, 200], 0.0) + rows([1000, 1100, 1200], 1.0))
    assert [(e.median_ns, e.slowdown_permille, e.count) for e in found] == [(1000, 0, 5)]


def test_with_fewer_than_three_beside_there_is_no_slowdown() -> None:
    found = fit_entries(rows([1000] * 3, 0.0) + rows([2000] * 2, 1.0))
    assert [(e.median_ns, e.slowdown_permille, e.count) for e in found] == [(1000, 0, 3)]


def test_faster_beside_siblings_is_no_negative_slowdown() -> None:
    assert fit_entries(rows([1000] * 3, 0.0) + rows([800] * 3, 1.0))[0].slowdown_permille == 0


def test_entries_are_apart_by_kind_place_and_size() -> None:
    others = [
        replace(BASE, flop=50),
        replace(BASE, kind="learn"),
        replace(BASE, cores=2),
        replace(BASE, device_kind="cuda", cores=0),
        replace(BASE, device="core1"),  # the same kind of device
    ]
    found = fit_entries([BASE, *others])
    keys = [(e.kind, e.device_kind, e.cores, e.flop) for e in found]
    assert keys == [
        ("learn", "cpu", 1, 100),
        ("walk", "cpu", 1, 50),
        ("walk", "cpu", 1, 100),
        ("walk", "cpu", 2, 100),
        ("walk", "cuda", 0, 100),
    ]
    assert [e.count for e in found] == [1, 1, 2, 1, 1]
    assert all(e.spread_ns == 0 for e in found if e.count == 1)


def test_correction_moves_the_factor_by_six_tenths_of_the_median_ratio() -> None:
    seen = rows([1900, 2000, 9000], 0.0)  # median ratio 2.0
    once = table(entry(100, 1000)).corrected(seen)
    assert once.factors_permille == {("walk", "core0"): 1600}  # 0.4 x 1.0 + 0.6 x 2.0
    assert once.corrected(seen).factors_permille == {("walk", "core0"): 1840}


@pytest.mark.parametrize("siblings", [1, 2, 3])
def test_interference_that_the_table_knows_changes_no_factor(siblings: int) -> None:
    measured = table(entry(100, 1000, slowdown=200))
    duration = 1000 + 200 * siblings
    seen = rows([duration] * 3, float(siblings), siblings)
    assert measured.corrected(seen).factors_permille == {("walk", "core0"): 1000}


def test_fit_and_correction_agree_beside_three_busy_siblings() -> None:
    seen = rows([1000] * 5, 0.0, 3) + rows([1900] * 5, 3.0, 3)
    measured = table(*fit_entries(seen))
    assert measured.costs(walk(100)).slowdown_permille == (300,)
    assert measured.corrected(seen).factors_permille == {("walk", "core0"): 1000}


def test_kinds_without_observation_follow_their_device_alone() -> None:
    measured = table(entry(100, 1000), entry(100, 500, kind="learn"))
    found = measured.corrected(rows([2000] * 3, 0.0)).factors_permille
    assert found == {("walk", "core0"): 1600, ("learn", "core0"): 1600}


def test_followers_take_the_relative_change_and_keep_their_own_factor() -> None:
    measured = table(entry(100, 1000), entry(100, 500, kind="learn"))
    before = {("walk", "core0"): 2000, ("learn", "core0"): 500}
    found = replace(measured, factors_permille=before).corrected(rows([1000] * 3, 0.0))
    assert found.factors_permille == {("walk", "core0"): 1400, ("learn", "core0"): 350}


def test_correction_keeps_entries_and_the_old_table() -> None:
    measured = table(entry(100, 1000))
    corrected = measured.corrected(rows([2000], 0.0))
    assert corrected.entries == measured.entries
    assert measured.factors_permille == {}
    assert measured.corrected([]).factors_permille == {}


def test_correction_refuses_a_kind_that_was_not_measured() -> None:
    with pytest.raises(DopplerError, match="no op kind 'learn'"):
        table(entry(100, 1000)).corrected([replace(BASE, kind="learn")])


@given(ratio=st.floats(0.2, 5.0), overlap=st.floats(0.0, 3.0), slowdown=st.integers(0, 1000))
def test_a_steady_speed_is_learned_whatever_the_siblings_do(
    ratio: float, overlap: float, slowdown: int
) -> None:
    measured = table(entry(100, 10**6, slowdown))
    duration = round(ratio * 10**6 * (1 + slowdown * overlap / 1000))
    for _ in range(12):
        measured = measured.corrected(rows([duration], overlap, siblings=3))
    assert measured.factors_permille["walk", "core0"] == pytest.approx(
        1000 * ratio, abs=2, rel=0.01
    )
