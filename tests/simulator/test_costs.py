"""Cost models: the roofline, and tables of measured times, corrected by the running job."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import ClusterError, DopplerError
from doppler.core.graph import INPUT_KIND, DataflowGraph, Op
from doppler.core.hardware import Hardware, Processor
from doppler.core.problem import Problem
from simulator.calibrate import Observation
from simulator.costs.measured import CostEntry, CostTable, fit_entries
from simulator.costs.roofline import RooflineModel, Saturation, saturation_of

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


def problem_of(ops: tuple[Op, ...], devices: tuple[Device, ...] | None = None) -> Problem:
    """Independent ops on two cores, or on the devices given."""
    cores = tuple(
        Device(name=f"core{c}", kind="cpu", parent="cpu", cores=(c,), copy_engines=0)
        for c in (0, 1)
    )
    return Problem(
        graph=DataflowGraph(name="loose", ops=ops, edges=()),
        cluster=Cluster(name="two", devices=cores if devices is None else devices),
    )


def walk(flop: int) -> Problem:
    return problem_of((Op(kind="walk", name="w", flop=flop),))


def entry(flop: int, median: int, slowdown: int = 0, kind: str = "walk") -> CostEntry:
    return CostEntry(
        kind=kind,
        flop=flop,
        device_kind="cpu",
        cores=1,
        median_ns=median,
        spread_ns=0,
        slowdown_permille=slowdown,
        count=3,
    )


def table(*entries: CostEntry) -> CostTable:
    return CostTable(entries=entries, dispatch_ns={("cpu", 1): 7}, provenance={})


def gpu(flops: int, bandwidth: int, launch: int = 0, name: str = "gpu0") -> Device:
    return Device(
        name=name,
        kind="cuda",
        parent=name,
        flop_per_s=flops,
        memory_bytes_per_s=bandwidth,
        launch_ns=launch,
    )


@pytest.mark.parametrize(
    ("flop", "num_bytes", "expected"),
    [
        (2000, 0, 50 + 1000),  # 2 flop per ns
        (0, 30, 50 + 10),  # 3 bytes per ns
        (2000, 30, 50 + 1000),  # bound by arithmetic
        (20, 300, 50 + 100),  # bound by memory
        (2001, 0, 50 + 1001),  # rounded up
        (0, 31, 50 + 11),
        (0, 0, 50),  # nothing but the launch
    ],
)
def test_roofline_is_launch_plus_the_longer_bound(flop: int, num_bytes: int, expected: int) -> None:
    op = Op(kind="matmul", name="m", flop=flop, bytes_moved=num_bytes)
    problem = problem_of((op,), (gpu(2 * 10**9, 3 * 10**9, launch=50),))
    assert RooflineModel().costs(problem).op_ns == ((expected,),)


def test_roofline_reads_the_rates_of_each_device() -> None:
    devices = (gpu(10**9, 10**9), gpu(4 * 10**9, 10**9, launch=5, name="gpu1"))
    op = Op(kind="matmul", name="m", flop=800)
    assert RooflineModel().costs(problem_of((op,), devices)).op_ns == ((800, 205),)


def test_inputs_take_no_time() -> None:
    ops = (Op(kind=INPUT_KIND, name="x", flop=9, bytes_moved=9), Op(kind="walk", name="w"))
    assert RooflineModel().costs(problem_of(ops, (gpu(0, 0, launch=50),))).op_ns == ((0,), (50,))
    assert table(entry(0, 30)).costs(problem_of(ops)).op_ns == ((0, 0), (30, 30))


@pytest.mark.parametrize(
    ("share", "flop", "num_bytes", "expected"),
    [
        (1.0, 1000, 0, 50 + (1000 + 400) // 2),  # 2 flop per ns, half of it at 400 flop
        (1.0, 400, 0, 50 + 400),  # 400 ns instead of 200: half of the peak
        (0.5, 1000, 0, 50 + (1000 + 200)),  # half of the rate, half of the size
        (1.0, 0, 60, 50 + (60 + 30) // 3),  # 3 bytes per ns
        (0.25, 0, 60, 50 + (60 + 8) * 4 // 3 + 1),  # 7.5 rounds to 8; 90.67 ns rounded up
        (1.0, 0, 0, 50),  # no work saturates nothing
    ],
)
def test_small_ops_do_not_reach_the_peak(
    share: float, flop: int, num_bytes: int, expected: int
) -> None:
    part = replace(gpu(round(2 * 10**9 * share), round(3 * 10**9 * share), launch=50), share=share)
    model = RooflineModel(saturation={"gpu0": Saturation(half_flop=400, half_bytes=30)})
    op = Op(kind="matmul", name="m", flop=flop, bytes_moved=num_bytes)
    assert model.costs(problem_of((op,), (part,))).op_ns == ((expected,),)


@given(
    flop=st.integers(1, 10**12),
    more=st.integers(1, 10**12),
    half=st.integers(0, 10**9),
    share=st.floats(0.05, 1.0),
)
def test_larger_ops_take_longer_and_reach_more_of_the_peak(
    flop: int, more: int, half: int, share: float
) -> None:
    model = RooflineModel(saturation={"gpu0": Saturation(half_flop=half, half_bytes=0)})
    device = replace(gpu(round(10**9 * share), 1), share=share)
    small, large = (
        model.op_time(Op(kind="m", name="m", flop=work), device).time_ns
        for work in (flop, flop + more)
    )
    assert small <= large
    assert flop * (large - 1) <= (flop + more) * small  # times are rounded up to 1 ns
    assert small >= flop  # never above the peak of the whole processor, 1 flop per ns


def test_gpus_saturate_and_cores_do_not() -> None:
    hardware = Hardware(
        name="h",
        processors=(
            Processor(
                name="gpu0",
                kind="gpu",
                model="g",
                num_units=10,
                memory_bytes=1,
                memory_bytes_per_s=10**12,
            ),
            Processor(name="cpu0", kind="cpu", model="c", num_units=2, memory_bytes=1),
        ),
    )
    assert saturation_of(hardware) == {
        "gpu0": Saturation(half_flop=10 * 1_048_576, half_bytes=500_000)
    }


@pytest.mark.parametrize(
    ("device", "op", "rate"),
    [
        (gpu(0, 10**9), Op(kind="m", name="m", flop=1), "flop_per_s"),
        (gpu(10**9, 0), Op(kind="m", name="m", bytes_moved=1), "memory_bytes_per_s"),
    ],
)
def test_roofline_names_the_rate_that_is_missing(device: Device, op: Op, rate: str) -> None:
    with pytest.raises(ClusterError, match=f"needs {rate} of every device, and 'gpu0'"):
        RooflineModel().costs(problem_of((op,), (device,)))


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
