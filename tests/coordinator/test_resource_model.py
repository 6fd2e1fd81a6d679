"""The model by the derived golden values: Rs, Ra, Rt = 10, 1, 2; Ts, Ta, Tt = 6, 1, 2."""

import dataclasses
from fractions import Fraction

import pytest

from doppler.coordinator.collective_model import hybrid_ns, ip_only_ns, ring_cost_ns, rp_only_ns
from doppler.coordinator.reading import Reading
from doppler.coordinator.resource_model import (
    Dominant,
    Occupancy,
    RoleProfile,
    Template,
    Traffic,
    copy_resource,
    dominant,
    predict,
    rank,
    templates_for,
    traffic,
)
from doppler.core.errors import ConfigError
from doppler.core.job_mode import JobMode

T = Template
SERVING, TRAINING = JobMode.serving, JobMode.synchronous
PAPER = RoleProfile(
    r_sim=10,
    r_agent=1,
    r_train=2,
    t_sim_ns=6000,
    t_agent_ns=1000,
    t_train_ns=2000,
    state_bytes=600,
    action_bytes=80,
    reward_bytes=10,
    policy_bytes=5000,
    horizon=32,
)
RESERVED = Occupancy.reserved


@pytest.mark.parametrize(
    ("template", "mode", "options", "expected"),
    [
        (T.dp_only, SERVING, {}, 10),
        (T.mp_dp, SERVING, {}, 8.6),
        (T.dp_mp, SERVING, {}, 61 / 7),
        (T.dp_only, TRAINING, {}, 10),
        (T.ea_t, TRAINING, {"reading": Reading.printed}, 6.8222),
        (T.ea_t, TRAINING, {}, 6.9111),
        (T.e_at, TRAINING, {}, 6.8222),
        (T.dp_mp, TRAINING, {}, 65 / 9),
        (T.dp_only, TRAINING, {"occupancy": RESERVED}, 10),
        (T.mp_dp, SERVING, {"occupancy": RESERVED}, 10.2),
        (T.ea_t, TRAINING, {"occupancy": RESERVED}, 10.6),
        (T.e_at, TRAINING, {"occupancy": RESERVED}, 10.8),
        (T.dp_mp, SERVING, {"occupancy": RESERVED}, 11),
        (T.dp_mp, TRAINING, {"occupancy": RESERVED}, 13),
    ],
)
def test_resource_of_a_copy(template, mode, options, expected):
    assert copy_resource(template, PAPER, mode, **options) == pytest.approx(expected, abs=1e-4)


def test_traffic_of_a_copy():
    """2 (n - 1) / n of 5,000 bytes for n = 4 is 7,500."""
    assert traffic(T.dp_only, PAPER, SERVING) == Traffic(0, 0)
    assert traffic(T.mp_dp, PAPER, SERVING) == traffic(T.dp_mp, PAPER, SERVING) == Traffic(3, 1290)
    assert traffic(T.dp_only, PAPER, TRAINING, 4) == Traffic(6, 7500)
    assert traffic(T.dp_only, PAPER, TRAINING, 1) == Traffic(0, 0)
    assert traffic(T.ea_t, PAPER, TRAINING, 4) == Traffic(8, 7500 + 32 * 690 + 5000)
    assert traffic(T.e_at, PAPER, TRAINING, 4) == Traffic(102, 7500 + 32 * 1290)
    assert traffic(T.dp_mp, PAPER, TRAINING, 4) == Traffic(104, 7500 + 32 * 1980 + 5000)
    assert Traffic(3, 100).time_ns(7, 10**9) == 121
    assert Traffic(3, 100).time_ns(7, None) == 21


def test_paper_nets():
    """Serving: COM = 2 T, so 3 x 8.6 / 10; training: COM = 7 T, so 8 x 6.822 / 10."""
    link = {"latency_ns": 0, "resource_per_gpu": 100.0}
    serving = {
        t: predict(t, PAPER, SERVING, bytes_per_s=1290 * 10**9 // 14_000, **link).iterations_per_s
        for t in templates_for(SERVING)
    }
    assert serving[T.dp_only] / serving[T.mp_dp] == pytest.approx(2.58, abs=0.01)
    com = traffic(T.ea_t, PAPER, TRAINING).num_bytes
    options = {"bytes_per_s": com * 10**9 // 63_000, "reading": Reading.printed, **link}
    training = {
        t: predict(t, PAPER, TRAINING, **options).iterations_per_s for t in templates_for(TRAINING)
    }
    assert training[T.dp_only] / training[T.ea_t] == pytest.approx(5.46, abs=0.01)
    assert training[T.dp_only] == pytest.approx(10 / 9e-6)


def test_with_reservations_no_split_is_cheaper_than_dp_only():
    found = rank(
        [
            predict(
                t,
                PAPER,
                TRAINING,
                resource_per_gpu=100,
                latency_ns=0,
                bytes_per_s=10**15,
                occupancy=RESERVED,
            )
            for t in templates_for(TRAINING)
        ]
    )
    assert [p.template for p in found] == [T.dp_only, T.ea_t, T.e_at, T.dp_mp]


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        (T.ea_t, {"t_sim_ns": 0, "t_agent_ns": 0, "t_train_ns": 0}),
        (T.dp_only, {"t_sim_ns": 0, "t_agent_ns": 0, "t_train_ns": 0}),
        (T.dp_only, {"r_sim": 0, "r_agent": 0, "r_train": 0}),
    ],
)
def test_a_copy_that_takes_nothing_has_no_rate(template, fields):
    profile = dataclasses.replace(PAPER, **fields)
    with pytest.raises(ConfigError, match=r"takes time|none"):
        predict(template, profile, TRAINING, resource_per_gpu=1.0, latency_ns=0, bytes_per_s=None)


def test_an_all_reduce_has_a_member():
    with pytest.raises(ConfigError, match="at least one GMI, and it has 0"):
        traffic(T.dp_only, PAPER, TRAINING, 0)


def test_modes_and_dominant_resource():
    with pytest.raises(ConfigError, match="templates of serving are dp_only, dp_mp, mp_dp"):
        copy_resource(T.ea_t, PAPER, SERVING)
    with pytest.raises(ConfigError, match="templates of training"):
        traffic(T.mp_dp, PAPER, TRAINING)
    assert dominant(0.3, 0.3) is Dominant.compute
    assert dominant(0.2, 0.3) is Dominant.memory


def test_projections_of_hybrid_by_hand():
    """n = 4, m = 3, in units of Cost_ip: printed 3, 2.25, 1.5, 0.75; theory 1.22 1.19 1.11 0.89."""
    one = ring_cost_ns(4, 1200, 10**9)
    fast = 10**30
    printed = [
        hybrid_ns(4, 3, k, 1200, 10**9, fast, reading=Reading.printed) / one for k in range(4)
    ]
    assert [round(float(v), 2) for v in printed] == [3.0, 2.25, 1.5, 0.75]
    theory = [hybrid_ns(4, 3, k, 1200, 10**9, fast) / one for k in range(4)]
    assert [round(float(v), 2) for v in theory] == [1.22, 1.19, 1.11, 0.89]
    assert one == Fraction(2 * 3 * 1200, 4)
    assert ip_only_ns(4, 3, 1200, 10**9) == hybrid_ns(4, 3, 0, 1200, 10**9, 1)
    assert rp_only_ns(4, 3, 1200, 10**9) == 2 * one
    assert rp_only_ns(4, 1, 1200, 10**9) == one
    assert hybrid_ns(1, 1, 1, 1200, 10**9, 10**9) == ring_cost_ns(1, 1200, 10**9) == 0
    for call, text in [
        (lambda: hybrid_ns(4, 3, 4, 1, 1, 1), "0 to 3 rings"),
        (lambda: hybrid_ns(1, 3, 1, 1, 1, 1, reading=Reading.printed), "divides by n - 1"),
        (lambda: rp_only_ns(2, 3, 1, 1), "at most n = 2"),
        (lambda: ring_cost_ns(0, 1, 1), "at least one GPU"),
        (lambda: ip_only_ns(2, 0, 1, 1), "at least one GPU and one GMI each, and n = 2, m = 0"),
        (lambda: rp_only_ns(2, 0, 1, 1), "n = 2, m = 0"),
        (lambda: hybrid_ns(2, 0, 0, 1, 1, 1), "n = 2, m = 0"),
    ]:
        with pytest.raises(ConfigError, match=text):
            call()
