"""The coordinator on two cores, with costs made by hand: variants, equal batches, both searches."""

import dataclasses

import pytest

from doppler import coordinate as module
from doppler.calibration import Calibration, DispatchCost
from doppler.cli import main
from doppler.config import JOBS
from doppler.coordinate import Coordinator
from doppler.coordinator.resource_model import Template
from doppler.core.hardware import Hardware, Processor
from doppler.jobs import build_job
from executor.probe import ProbeResult
from simulator.costs.measured import CostEntry

SETTINGS = dataclasses.replace(
    JOBS["ppo_pendulum"],
    num_shards=4,
    num_trainers=4,
    envs_per_shard=4,
    horizon=4,
    chunk=2,
    hidden=[8],
    epochs=1,
    minibatches=1,
)
HARDWARE = Hardware(
    name="two",
    processors=(
        Processor(
            name="cpu",
            kind="cpu",
            model="x",
            num_units=2,
            memory_bytes=10**9,
            core_ids=(0, 1),
            publish_ns=1000,
        ),
    ),
)


def calibration(fused):
    """Every op takes 1 ms on one core and as long on two: only GMIs side by side help.

    As by a calibration, single cores are measured at all counts, both together at one.
    """
    sizes = {
        (op.kind, op.flop, cores)
        for count, cores in ((2, 1), (4, 1), (6, 1), (4, 2))
        for op in build_job(
            dataclasses.replace(SETTINGS, fused=fused, envs_per_shard=count), 0
        ).graph.ops
    }
    entries = [
        CostEntry(
            kind=kind,
            flop=flop,
            device_kind="cpu",
            cores=cores,
            median_ns=1_000_000,
            spread_ns=1,
            slowdown_permille=0,
            count=9,
        )
        for kind, flop, cores in sorted(sizes)
    ]
    dispatch = tuple(DispatchCost(device_kind="cpu", cores=c, time_ns=0) for c in (1, 2))
    return Calibration(
        key="k", entries=tuple(entries), dispatch=dispatch, publish_ns=1000, provenance=()
    )


@pytest.fixture
def coordinator():
    tables = {fused: calibration(fused).table() for fused in (True, False)}
    return Coordinator(SETTINGS, HARDWARE, tables, seed=0)


def test_every_template_that_fits_two_cores_at_equal_batch(coordinator):
    rows, refused = coordinator.rows(SETTINGS.envs_per_shard)
    assert not refused
    found = {(row.variant.template, len(row.variant.problem.cluster.devices)) for row in rows}
    assert found == {
        (Template.dp_only, 1),
        (Template.dp_only, 2),
        (Template.ea_t, 2),
        (Template.e_at, 2),
    }
    assert {row.num_envs for row in rows} == {16}
    counts = {kind: set() for kind in ("grad", "advantage")}
    for row in rows:
        for kind, values in counts.items():
            values.add(sum(op.kind == kind for op in row.variant.graph.ops))
    assert counts == {"grad": {4}, "advantage": {4}}


def test_two_gmis_beat_one_when_ops_do_not_use_a_second_core(coordinator):
    rows, _ = coordinator.rows(SETTINGS.envs_per_shard)
    rate = {
        (row.variant.template, len(row.variant.problem.cluster.devices)): row.steps_per_s
        for row in rows
    }
    one, two = rate[Template.dp_only, 1], rate[Template.dp_only, 2]
    # Alone all ops run one by one, each for 1 ms.
    ops = build_job(SETTINGS, 0).graph.num_ops
    assert one == pytest.approx(16 * 4 / (ops * 1e-3), rel=1e-3)
    assert 1.5 * one < two <= 2 * one


def test_a_profile_counts_all_gmis_and_the_peak_of_one(coordinator):
    sample = coordinator.profile(2, 8)
    assert (sample.gmis, sample.envs) == (2, 8)
    rows, _ = coordinator.rows(4)
    expected = next(
        row
        for row in rows
        if row.variant.template is Template.dp_only and row.variant.split.environments == 2
    )
    assert sample.steps_per_s == expected.steps_per_s
    assert 0 < sample.memory_bytes < 10**9


def test_the_command_prints_variants_and_searches(monkeypatch, capsys):
    monkeypatch.setattr(
        module, "probe", lambda shm_dir: ProbeResult(hardware=HARDWARE, findings=())
    )
    monkeypatch.setattr(
        module,
        "load_or_calibrate",
        lambda settings, *_, **__: (calibration(settings.fused), True),
    )
    words = [
        f"job.{name}={getattr(SETTINGS, name)}"
        for name in (
            "num_shards",
            "num_trainers",
            "envs_per_shard",
            "horizon",
            "chunk",
            "hidden",
            "epochs",
            "minibatches",
        )
    ]
    assert main(["coordinate", "job=ppo_pendulum", *words, "verify=0"]) == 0
    out = capsys.readouterr().out
    for text in ("dp_only", "ea_t", "e_at", "(1+0+1)", "algorithm 1", "exhaustive"):
        assert text in out
    assert main(["coordinate", "job=ppo_pendulum", "verify=-1"]) == 2
    assert "verify is at least 0" in capsys.readouterr().err
