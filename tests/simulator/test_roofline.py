"""The roofline: launch plus the longer bound, saturation of small ops, missing rates."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.cluster import Device
from doppler.core.errors import ClusterError
from doppler.core.graph import INPUT_KIND, Op
from doppler.core.hardware import Hardware, Processor
from simulator.costs.roofline import RooflineModel, Saturation, saturation_of
from tests.simulator.cost_samples import entry, problem_of, table


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
