"""Compositions and batches that are chosen by simulating and measuring."""

import gmi_classes
import numpy as np
import pytest
from test_gmi import cluster_of, expected_total, manager_of, no_process_left, summers

from doppler import gmi_batch, gmi_choice
from doppler.core.cluster import Device
from doppler.core.errors import ConfigError
from doppler.gmi import AUTO, CollectiveKernel, Package
from doppler.gmi_batch import analytic_batch, cache_bytes, measured_batch
from doppler.gmi_choice import (
    CompositionChoice,
    CompositionRow,
    choose_composition,
    compositions,
    simulated_compositions,
)
from doppler.gmi_duel import Block, Verdict
from doppler.gmi_trial import Measured, TrialOptions, block_of
from doppler.graphs.collectives import direct, ring, tree
from executor.gmi.trials import Timed

pytestmark = pytest.mark.timeout(120)


def measured_of(*medians, chosen=0, num_quiet=6, is_decided=True, foreign_cores=0.0):
    verdict = Verdict(
        chosen=chosen,
        is_decided=is_decided,
        medians_ns=medians,
        num_blocks=8,
        num_quiet=num_quiet,
        num_calls=60,
    )
    return Measured(verdict=verdict, seconds=0.72, foreign_cores=foreign_cores)


def choice_of(measured):
    rows = tuple(
        CompositionRow(schedule=schedule, simulated_ns=1000 * (1 + index), measured_ns=ns)
        for index, (schedule, ns) in enumerate(
            zip([direct(4), ring(4), tree(4)], [*measured.verdict.medians_ns, None], strict=True)
        )
    )
    return CompositionChoice(rows=rows, measured=measured)


def test_the_figures_of_a_choice_can_be_read():
    choice = choice_of(measured_of(5000.0, 4000.0, chosen=1, num_quiet=8))
    assert choice.schedule.name == "ring"
    assert choice.describe().splitlines() == [
        "ring, of 3, medians of 60 calls in 8 blocks, 0.7 s",
        "  direct (4 steps): simulated 1, measured 5 us",
        "  ring (20 steps): simulated 2, measured 4 us",
        "  tree (3 steps): simulated 3 us",
    ]


def test_what_has_disturbed_a_choice_is_said():
    disturbed = choice_of(measured_of(5000.0, 4000.0, num_quiet=6, foreign_cores=1.26))
    assert disturbed.describe().splitlines()[0] == (
        "direct, of 3, medians of 60 calls in 6 blocks, 0.7 s; disturbed: 2 of 8 blocks, left out; "
        "other programs kept 1.3 cores busy"
    )
    hopeless = choice_of(measured_of(5000.0, 4000.0, num_quiet=0, is_decided=False))
    assert hopeless.describe().splitlines()[0] == (
        "direct, of 3, medians of 60 calls in 8 blocks, 0.7 s; disturbed: 8 of 8 blocks, all that "
        "there is; undecided: the first by simulation that is not proven slower"
    )


def timed(spans, scheduled):
    return Timed(spans=np.array(spans, np.int64), scheduled=np.array(scheduled, np.int64))


def test_times_are_from_the_last_start_to_the_last_end_and_the_first_round_does_not_count():
    first = timed([[[0, 900]], [[10, 30]], [[10, 40]], [[10, 80]]], [[100, 100, 0]] * 4)
    other = timed([[[0, 900]], [[15, 20]], [[5, 45]], [[20, 50]]], [[100, 100, 0]] * 4)
    block = block_of([first, other], num_cores=2)
    assert block == Block(medians_ns=(35.0,), num_calls=3)  # 30 - 15, 45 - 10, 80 - 20
    alone = [timed(m.spans[:1], m.scheduled[:1]) for m in (first, other)]
    assert block_of(alone, num_cores=2).medians_ns == (900.0,)


@pytest.mark.parametrize(
    ("members", "num_cores", "granted"),
    [
        ([[100, 100, 0], [100, 100, 0]], 2, 1.0),
        ([[100, 50, 50], [100, 50, 50]], 2, 0.5),  # two on one core take turns
        ([[100, 50, 50], [100, 50, 50]], 1, 1.0),  # and there is no other core for them
        ([[100, 100, 0], [100, 20, 0]], 2, 1.0),  # one sleeps
        ([[100, 50, 50]] * 4, 2, 1.0),  # four on two cores
        ([[100, 25, 75]] * 4, 2, 0.5),  # somebody else has the other half
        ([[100, 0, 0]] * 2, 2, 1.0),  # the kernel does not count
    ],
)
def test_a_block_knows_how_much_of_the_cores_its_members_were_granted(members, num_cores, granted):
    rounds = [timed([[[0, 100]]], [scheduled]) for scheduled in members]
    assert block_of(rounds, num_cores=num_cores).granted == granted


def test_every_schedule_is_a_candidate_once_over_processors_and_halves():
    found = compositions(["cpu"] * 4)
    names = [schedule.name for schedule in found]
    assert {"direct", "ring", "tree", "local_leader", "multi_ring"} == set(names)
    assert names.count("local_leader") == 2  # of all members, and of two halves
    keys = {(tuple((s.home, frozenset(s.inputs)) for s in f.steps), f.results) for f in found}
    assert len(keys) == len(found)
    halves = {f.steps for f in compositions(["a", "a", "b", "b"])}
    assert halves == {f.steps for f in found}  # two processors are the two halves
    assert len(compositions(["a", "b", "b"])) > len(compositions(["cpu"] * 3))


def test_more_bytes_and_fewer_cores_take_longer_in_the_simulation():
    def times(num_bytes, *cores):
        devices = [
            Device(name=f"d{i}", kind="cpu", parent="cpu", cores=own) for i, own in enumerate(cores)
        ]
        return {s.name: ns for s, ns in simulated_compositions(devices, num_bytes)}

    few, many = times(1 << 10, (0,), (1,)), times(1 << 24, (0,), (1,))
    crowded = times(1 << 24, (0,), (0,))
    assert all(few[name] < many[name] < crowded[name] for name in few)


def test_members_take_turns_on_the_cores_that_they_share(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5})
    devices = [
        Device(name=f"d{i}", kind="cpu", parent="cpu", cores=own)
        for i, own in enumerate([(7, 8), (5,), (7, 8), (), ()])  # the last ones: 5 and 3, in turns
    ]
    assert gmi_choice._places(devices) == [0, 1, 0, 1, 2]


def test_one_member_has_nothing_to_choose(monkeypatch):
    monkeypatch.setattr(gmi_choice, "run_trial", None)
    choice = choose_composition(cluster_of(1).devices, 8, "float32")
    assert choice.schedule.num_members == 1
    assert choice.measured is None
    assert choice.describe().splitlines()[0] == "direct, of 1"


def test_a_collective_takes_the_composition_that_was_the_fastest_here():
    manager = summers(3, schedule=AUTO)
    choice = manager.choices["gradient"]
    measured = [row for row in choice.rows if row.measured_ns is not None]
    assert len(measured) == gmi_choice.TOP
    assert measured == list(choice.rows[: gmi_choice.TOP])
    assert choice.measured.verdict.num_blocks >= 1
    assert choice.schedule == choice.rows[choice.measured.verdict.chosen].schedule
    assert min(row.measured_ns for row in measured) > 0
    assert manager.communication.links[0].layout.schedule == choice.schedule
    assert f"    {choice.describe().splitlines()[0]}" in manager.describe()
    assert list(manager.run(5, 0)) == [expected_total(3, 5)] * 3
    assert no_process_left()


def test_measuring_ends_when_its_time_is_up():
    devices = cluster_of(2).devices
    choice = choose_composition(devices, 8, "float64", TrialOptions(seconds=0.0))
    assert choice.measured.verdict.num_calls == 1
    assert choice.measured.verdict.num_blocks == 1
    assert no_process_left()


def test_other_kernels_and_taken_names_are_refused_before_anything_is_measured(monkeypatch):
    manager = summers(2)
    monkeypatch.setattr("doppler.gmi_set.choose_composition", None)
    monkeypatch.setattr("doppler.gmi_set.measured_batch", None)
    with pytest.raises(ConfigError, match="has 'auto' beside kernel 'gloo'"):
        manager.add_collective("g", (0, 1), 8, schedule=AUTO, kernel=CollectiveKernel.gloo)
    with pytest.raises(ConfigError, match="'gradient' is taken"):
        manager.add_collective("gradient", (0, 1), 8, schedule=AUTO)
    with pytest.raises(ConfigError, match="'gradient' is taken"):
        manager.add_channel("gradient", [0], [1], [Package("x", "float32")], batch=AUTO)


def test_the_analytic_batch_fills_half_a_cache_or_takes_64_calls():
    packages = [Package("state", "float32", (60,)), Package("done", "uint8")]  # 241 bytes
    assert analytic_batch(packages, num_slots=4, num_sent=16, cache_bytes=1 << 20) == 512  # 543 fit
    assert analytic_batch(packages, num_slots=4, num_sent=5, cache_bytes=1 << 20) == 256  # 64 x 5
    assert analytic_batch(packages, num_slots=4, num_sent=16, cache_bytes=1000) == 1
    device = Device(name="d", kind="cpu", parent="cpu", cores=(10**6,))  # no such core
    assert cache_bytes(device) == gmi_batch.CACHE_BYTES


def test_a_channel_takes_the_batch_that_was_the_fastest_here(monkeypatch):
    monkeypatch.setattr(gmi_batch, "cache_bytes", lambda device: 1 << 14)
    manager = manager_of("agent", "trainer")
    agent = manager.add_gmi(gmi_classes.Producer, "agent", 0)
    trainer = manager.add_gmi(gmi_classes.Consumer, "trainer", 1, {"producers": 1})
    fields = [
        Package("producer", "int64"),
        Package("number", "int64"),
        Package("weight", "float32", (2,)),
    ]  # 24 bytes
    manager.add_channel("experience", [agent], [trainer], fields, batch=AUTO, num_sent=16)
    choice = manager.choices["experience"]
    assert choice.analytic == 64  # 16,384 / (2 * 4 * 24) = 85
    assert list(choice.records_per_s) == [16, 32, 64, 128, 256]
    enough = (1 - gmi_batch.TOLERANCE) * max(choice.records_per_s.values())
    assert choice.batch == min(b for b, rate in choice.records_per_s.items() if rate >= enough)
    assert choice.top_mov == 4.0  # 16 bytes in 2 packages and 8 in 1, over 2 channels each
    assert manager.communication.links[0].ring.batch.batch == choice.batch
    assert f"    batch {choice.batch} (analytic 64; " in manager.describe()
    manager.add_weights("policy", trainer, [agent], num_bytes=16)
    assert manager.run(num_episodes=2, num_steps=32)[trainer] == {agent: list(range(64))}
    assert no_process_left()
    with pytest.raises(ConfigError, match="at least one record, and it has 0"):
        measured_batch(*manager.cluster.devices, fields, 4, num_sent=0)


@pytest.mark.parametrize("num_sent", [1, 16, 1023, 1 << 20])
def test_what_is_moved_per_measurement_is_whole_calls_and_has_a_limit(monkeypatch, num_sent):
    asked = {}

    def run_trial(trial, devices, links, settings, is_enough, options):
        asked.update(settings)
        return measured_of(*[1e9] * len(links))

    monkeypatch.setattr(gmi_batch, "run_trial", run_trial)
    devices = cluster_of(2).devices
    choice = measured_batch(*devices, [Package("x", "float32")], 4, num_sent)
    largest = max(choice.records_per_s)
    assert asked["num_received"] >= largest
    assert asked["num_records"] % num_sent == 0
    assert asked["num_records"] % asked["num_received"] == 0
    assert asked["num_records"] < gmi_batch.MOVED_BATCHES * (largest + num_sent)


def test_a_batch_is_measured_though_calls_do_not_fill_it(monkeypatch):
    monkeypatch.setattr(gmi_batch, "cache_bytes", lambda device: 1 << 10)
    options = TrialOptions(seconds=0.0)
    devices = cluster_of(2).devices
    choice = measured_batch(*devices, [Package("x", "float32")], 4, 7, options)
    assert list(choice.records_per_s) == [8, 16, 32, 64, 128]
    assert no_process_left()
