"""`doppler coordinate` with layouts of GPUs: made-up drivers, simulated runs, and real ones.

The layouts, their memory, what is measured where and when workers are started are those of a
machine with GPUs; devices that keep tensors of their own run for real on cores.
"""

import dataclasses
import os

import pytest
from test_coordinate import HARDWARE, OWN, SETTINGS, calibration

from doppler import calibration_bench, coordinate_cut, coordination
from doppler import coordinate as module
from doppler.api import simulate
from doppler.calibration import calibrate, calibration_key
from doppler.cli import main
from doppler.config import CalibrationSettings
from doppler.console import View
from doppler.coordinate_cut import make_cut
from doppler.coordination import Coordination
from doppler.coordinator.layouts import even_layouts, instance_layouts
from doppler.coordinator.resource_model import Occupancy, Template, predict
from doppler.core.costs import make_costs
from doppler.core.errors import ClusterError, ConfigError
from doppler.core.layout import Backend
from doppler.core.problem import Problem
from doppler.jobs import build_job
from doppler.measure import MIN_RATIOS
from executor import probe as probe_module
from executor.launch.seats import Seating, plan_seats
from executor.options import ExecutorOptions
from executor.preflight import _device_memory
from executor.probe import ProbeResult, host_links, probe, probe_gpus, verify_backends
from simulator.costs.measured import CostTable
from tests.executor.fake_nvml import FakeNvml

GIB = 1 << 30
PRESENT = {"GPU", "MPS", "MIG", "green contexts", "static MPS partitions"}


def machine(nvml):
    """What a probe finds where all back ends work."""
    gpus, findings, inventory = probe_gpus(nvml)
    names = ["cpu", *(gpu.name for gpu in gpus)]
    hardware = dataclasses.replace(
        HARDWARE, processors=(*HARDWARE.processors, *gpus), links=host_links(names)
    )
    present = tuple(dataclasses.replace(f, is_present=f.name in PRESENT) for f in findings)
    return ProbeResult(hardware=hardware, findings=present, inventory=inventory)


@pytest.fixture
def two_gpus(monkeypatch):
    found = machine(FakeNvml(count=2))
    monkeypatch.setattr(probe_module, "look_from_inside", lambda seat: {"text": "fine"})
    monkeypatch.setattr(coordinate_cut, "host_gpus", lambda: found.inventory)
    return found


@pytest.fixture
def mps_daemon(tmp_path, monkeypatch):
    """A control program in place of a daemon's; called, it tells what it was told so far."""
    log, program = tmp_path / "log", tmp_path / "nvidia-cuda-mps-control"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def daemon(answer="Partition ${1%% *}/$$ created"):
        lines = log.read_text().splitlines() if log.exists() else []
        program.write_text(
            f'#!/bin/sh\nread line\necho "$line" >> {log}\n'
            f'case "$line" in "sm_partition add"*) set -- "${{line#sm_partition add }}"\n'
            f'echo "{answer}";; esac\n'
        )
        program.chmod(0o755)
        return lines

    daemon()
    return daemon


@pytest.mark.parametrize(
    ("backend", "gmis"),
    [
        (Backend.whole, [1]),
        (Backend.mps, [1, 2, 3, 4]),
        (Backend.green_context, [1, 2, 3, 4]),
    ],
)
def test_gpus_are_cut_by_their_free_memory(two_gpus, backend, gmis):
    cut = make_cut(two_gpus, backend, 4)
    assert list(cut.layouts) == gmis
    assert cut.num_processors == 2
    assert cut.memory_bytes == 140 * GIB
    for count, layout in cut.layouts.items():
        cluster = layout.apply(two_gpus.hardware)
        assert len(cluster.devices) == 2 * count
        assert plan_seats(cluster, two_gpus.inventory, os.environ)  # every one can be started
        for name in ("gpu0", "gpu1"):
            need = _device_memory(cluster, two_gpus.inventory, name)
            assert need.fits  # all memory of the GPU would not: the driver keeps a part
            assert need.needed > 0.94 * 140 * GIB


def test_all_memory_of_a_gpu_is_more_than_is_free(two_gpus):
    cluster = even_layouts(two_gpus.hardware, Backend.whole, 1)[1].apply(two_gpus.hardware)
    assert not _device_memory(cluster, two_gpus.inventory, "gpu0").fits


def test_mig_layouts_are_the_instances_that_exist(monkeypatch):
    monkeypatch.setattr(probe_module, "look_from_inside", lambda seat: {"text": "fine"})
    small, large = ("1g.18gb", 16, 18 << 10), ("3g.71gb", 60, 71 << 10)
    found = machine(FakeNvml(count=1, mig=1, instances={0: large, 2: small, 4: small}))
    cut = make_cut(found, Backend.mig, 10)
    assert {gmis: len(layout.slices) for gmis, layout in cut.layouts.items()} == {1: 1, 2: 2}
    (part, _) = cut.layouts[2].slices
    assert (part.units, part.memory_bytes) == (16, 18 * GIB)
    with pytest.raises(ConfigError, match="needs MPS on this machine: absent: every GPU is in MIG"):
        make_cut(found, Backend.mps, 10)
    _, findings, inventory = probe_gpus(FakeNvml(count=1, mig=0))
    off = dataclasses.replace(found, findings=findings, inventory=inventory)
    with pytest.raises(ConfigError, match="needs MIG on this machine: gpu0: absent: supported and"):
        make_cut(off, Backend.mig, 10)
    with pytest.raises(ClusterError, match="instances of one size on every GPU"):
        instance_layouts({"gpu0": [(16, GIB)], "gpu1": [(60, GIB)]})


def test_a_back_end_that_is_absent_is_refused_with_the_reason_of_the_probe(capsys, monkeypatch):
    gpus, findings, inventory = probe_gpus(None)
    found = ProbeResult(hardware=HARDWARE, findings=findings, inventory=inventory)
    assert not gpus
    with pytest.raises(ConfigError, match="backend=mps needs MPS on this machine: absent: the pac"):
        make_cut(found, Backend.mps, 4)
    monkeypatch.setattr(module, "probe", lambda shm_dir: found)
    assert main(["coordinate", "job=ppo_pendulum", "backend=whole"]) == 2
    assert "backend=whole needs GPU on this machine" in capsys.readouterr().err
    words = ["coordinate", "job=ppo_pendulum", "backend=whole", "job.all_reduce=auto"]
    assert main(words) == 2
    assert "all_reduce=auto compares on cores" in capsys.readouterr().err


def test_a_worker_that_would_refuse_to_run_is_a_reason_too(monkeypatch):
    found = machine(FakeNvml(count=1))
    error = {"error": "it runs without MPS"}
    monkeypatch.setattr(probe_module, "look_from_inside", lambda seat: error)
    with pytest.raises(ConfigError, match="needs MPS on this machine: absent: it runs without MPS"):
        make_cut(found, Backend.mps, 4)


def test_mps_percentages_bound_a_client_and_reserve_nothing(two_gpus):
    assert make_cut(two_gpus, Backend.mps, 2).occupancy is Occupancy.time_weighted
    assert make_cut(two_gpus, Backend.green_context, 2).occupancy is Occupancy.reserved


def test_static_partitions_are_tried_cut_in_chunks_and_reserved(
    two_gpus, mps_daemon, monkeypatch, capsys
):
    """Each of an H200's 132 SMs by 8: 128, 2 x 64, 3 x 40, 4 x 32; percentages would be refused."""
    tried = []

    def look(seat):
        tried.append(seat.mps)
        return {"text": "64 SMs"}

    monkeypatch.setattr(probe_module, "look_from_inside", look)
    cut = make_cut(two_gpus, Backend.mps, 4, static_mps=True)
    assert [(mps.percentage, bool(mps.partition)) for mps in tried] == [(None, True)]
    assert [{part.units for part in cut.layouts[n].slices} for n in (1, 2, 3, 4)] == [
        {128},
        {64},
        {40},
        {32},
    ]
    assert cut.occupancy is Occupancy.reserved
    for layout in cut.layouts.values():  # every one can be started
        seating = Seating(layout.apply(two_gpus.hardware), True, inventory=two_gpus.inventory)
        assert all(seat.mps.partition for seat in seating.seats)
        seating.release()
    added = [line for line in mps_daemon() if "add" in line]
    assert len(added) == 1 + 2 * (1 + 2 + 3 + 4)
    assert len([line for line in mps_daemon() if "rm" in line]) == len(added)
    assert make_cut(two_gpus, Backend.mps, 64, static_mps=True).layouts.keys() == set(range(1, 17))
    keys = {
        calibration_key(
            SETTINGS, two_gpus.hardware, CalibrationSettings(), cut.measured, static_mps=static
        )
        for static in (False, True)
    }
    assert len(keys) == 2


def test_a_daemon_without_static_partitions_is_a_reason(two_gpus, mps_daemon):
    mps_daemon(answer="Failed to fulfill the request")
    with pytest.raises(
        ConfigError, match=r"needs static MPS partitions on this machine: absent: .*Failed to fulf"
    ):
        make_cut(two_gpus, Backend.mps, 4, static_mps=True)


@pytest.mark.parametrize("backend", [b for b in Backend if b is not Backend.mps])
def test_static_partitions_are_of_mps_clients_only(capsys, backend):
    words = ["job=ppo_pendulum", f"backend={backend.value}", "executor.static_mps=true"]
    assert main(["coordinate", *words]) == 2
    assert f"and a layout of backend={backend.value} has none" in capsys.readouterr().err


def test_an_all_reduce_has_the_gmis_of_all_gpus(coordinator, monkeypatch):
    members = []

    def spied(*args, num_gmis, **options):
        members.append(num_gmis)
        return predict(*args, num_gmis=num_gmis, **options)

    monkeypatch.setattr(module, "predict", spied)
    module._show_model(coordinator, SETTINGS.envs_per_shard, View())
    assert set(members) == {8}  # two GPUs of four


def unit_costs(problem):
    """A millisecond per op of a whole GPU's share, more on less."""
    return make_costs(
        problem,
        tuple(
            tuple(0 if op.is_input else round(1e6 / d.share) for d in problem.cluster.devices)
            for op in problem.graph.ops
        ),
    )


class SimulatedSession:
    """Runs plans in the simulator where calibration would run them on workers."""

    layouts: list = []  # noqa: RUF012

    def __init__(self, job, problem, options):
        self.problem = problem
        self.layouts.append(problem.cluster.name.rpartition("/")[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def run(self, plan, iterations):
        return simulate(self.problem, plan, unit_costs(self.problem), iterations)


def test_op_times_are_measured_on_the_smallest_and_the_largest_gmi(two_gpus, monkeypatch):
    monkeypatch.setattr(calibration_bench, "JobSession", SimulatedSession)
    SimulatedSession.layouts.clear()
    cut = make_cut(two_gpus, Backend.mps, 4)
    found = calibrate(
        SETTINGS,
        two_gpus.hardware,
        CalibrationSettings(),
        seed=0,
        options=ExecutorOptions(),
        progress=lambda note: None,
        layouts=cut.measured,
    )
    assert set(SimulatedSession.layouts) == {"mpsx1", "mpsx4"}
    entries = {(e.device_kind, round(e.share, 2)) for e in found.entries}
    assert entries == {("mps", 0.25), ("mps", 1.0)}
    # What lies between is linear in 1 / share, so here exact.
    job = build_job(SETTINGS, 0)
    cluster = cut.layouts[2].apply(found.hardware(two_gpus.hardware, "gpu"))
    problem = Problem(graph=job.graph, cluster=cluster, objective=job.objective)
    times = {row[0] for row in found.table().costs(problem).op_ns if row[0]}
    assert times == {2_000_000}
    keys = [
        calibration_key(SETTINGS, two_gpus.hardware, CalibrationSettings(), layouts)
        for layouts in (None, cut.measured)
    ]
    assert keys[0] != keys[1] == found.key


def gpu_table(fused):
    """The table made by hand for cores, for MPS clients of a quarter and of a whole GPU."""
    of_cores = calibration(fused).table()
    entries = {}
    for entry in of_cores.entries:
        for share in (0.25, 1.0):
            changed = dataclasses.replace(
                entry, device_kind="mps", cores=0, share=share, median_ns=round(1e6 / share)
            )
            entries[entry.kind, entry.flop, share] = changed
    rows = tuple(sorted(entries.values(), key=lambda e: (e.kind, e.share, e.flop)))
    return CostTable(entries=rows, dispatch_ns={("mps", 0): 0}, provenance={})


@pytest.fixture
def coordinator(two_gpus):
    cut = make_cut(two_gpus, Backend.mps, 4)
    tables = {fused: gpu_table(fused) for fused in (True, False)}
    return Coordination(SETTINGS, two_gpus.hardware, tables, 0, cut)


def test_templates_are_mapped_to_every_gmi_of_every_gpu(coordinator):
    rows, refused = coordinator.templates(OWN)
    assert not refused
    devices = {
        len(row.variant.problem.cluster.devices)
        for row in rows
        if row.variant.template is Template.dp_only
    }
    assert devices == {2, 4, 6, 8}
    assert {row.variant.problem.cluster.devices[0].kind for row in rows} == {"mps"}


class Opened:
    """Executors that simulate; counts how many are open at once, and takes memory while it is."""

    def __init__(self, bytes_taken=0):
        self.now = self.most = self.times = 0
        self.bytes_taken = bytes_taken

    def __call__(self, spec, problem, options):
        self.problem = problem
        return self

    def __enter__(self):
        self.now += 1
        self.times += 1
        self.most = max(self.most, self.now)
        return self

    def __exit__(self, *_):
        self.now -= 1

    def run(self, problem, plan, iterations):
        return simulate(problem, plan, unit_costs(problem), iterations)

    def free_bytes(self):
        return {"gpu0": 100 * GIB - self.now * self.bytes_taken, "gpu1": 100 * GIB}


def test_workers_of_two_layouts_never_own_the_gpus_at_once(coordinator, monkeypatch):
    opened = Opened()
    monkeypatch.setattr(coordination, "open_executor", opened)
    rows, _ = coordinator.templates(OWN)
    found = coordinator.verify(rows[:3], windows=MIN_RATIOS, iterations=5)
    assert opened.most == 1
    assert opened.times == 3 * MIN_RATIOS
    for row, rate in zip(rows, found.rates, strict=False):
        assert rate.value == pytest.approx(row.steps_per_s, rel=1e-3)


def test_a_profile_counts_all_memory_that_the_run_takes_of_a_gpu(two_gpus, monkeypatch):
    opened = Opened(bytes_taken=8 * GIB)
    monkeypatch.setattr(coordination, "open_executor", opened)
    cut = dataclasses.replace(make_cut(two_gpus, Backend.mps, 4), free_bytes=opened.free_bytes)
    tables = {fused: gpu_table(fused) for fused in (True, False)}
    coordinator = Coordination(SETTINGS, two_gpus.hardware, tables, 0, cut)
    sample = coordinator.measured_profile(4, 4, 5)
    assert sample.memory_bytes == 2 * GIB  # a quarter of what the fuller GPU lost
    # Two GPUs of 4 GMIs with 4 environments each, a shard and a trainer on every GMI.
    graph = opened.problem.graph
    assert sum(op.kind == "advantage" for op in graph.ops) == 8
    assert sum(op.kind == "grad" for op in graph.ops) == 8
    # Sizes that no table knows are measured all the same.
    assert coordinator.measured_profile(4, 4096, 5).steps_per_s > sample.steps_per_s


def test_the_command_coordinates_gpus(two_gpus, monkeypatch, capsys, tmp_path):
    opened = Opened(bytes_taken=GIB)
    monkeypatch.setattr(coordination, "open_executor", opened)
    monkeypatch.setattr(module, "probe", lambda shm_dir: two_gpus)
    seen = []

    def by_hand(settings, *_, layouts, **__):
        seen.append(layouts.names)
        table = gpu_table(settings.fused)
        return dataclasses.replace(calibration(settings.fused), entries=table.entries), True

    monkeypatch.setattr(module, "load_or_calibrate", by_hand)
    names = ("num_shards", "num_trainers", "envs_per_shard", "horizon", "chunk", "hidden")
    words = [f"job.{name}={getattr(SETTINGS, name)}" for name in (*names, "epochs", "minibatches")]
    words += ["backend=mps", "max_gmis=4", "templates=[dp_only]", "verify=2"]
    words += ["profiles=measured", "profile_envs=[4,8]", f"output={tmp_path / 'out'}"]
    assert main(["coordinate", "job=ppo_pendulum", *words]) == 0
    out = capsys.readouterr().out
    assert seen == [["mpsx4", "mpsx1"]] * 2
    assert "dp_only(4+0+0)" in out
    assert "R, part of a gpu" in out
    assert "exhaustive" in out
    assert opened.now == 0
    assert (tmp_path / "out" / "envs_16" / "plan.json").exists()
    assert main(["coordinate", "job=ppo_pendulum", "profile_envs=[8,4]"]) == 2
    assert "profile_envs are counts from 1 on, ascending" in capsys.readouterr().err


@pytest.mark.timeout(180)
def test_devices_with_tensors_of_their_own_are_profiled_for_real():
    """What a profile of GPUs runs, on cores: tensors and optimizers on the device."""
    found = probe()
    if found.hardware.processors[0].num_units < 2:
        pytest.skip("needs two usable cores")
    tables = {fused: calibration(fused).table() for fused in (True, False)}
    options = ExecutorOptions(own_tensors=True)
    coordinator = Coordination(SETTINGS, found.hardware, tables, 0, options=options)
    sample = coordinator.measured_profile(2, 8, 3)
    assert sample.steps_per_s > 0
    assert 0 < sample.memory_bytes < GIB


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        pytest.param("whole", "GPU", id="whole"),
        pytest.param("mps", "MPS", id="mps", marks=pytest.mark.mps),
        pytest.param("mig", "MIG", id="mig", marks=pytest.mark.mig),
        pytest.param(
            "green_context", "green contexts", id="green", marks=pytest.mark.green_context
        ),
    ],
)
def test_gpus_are_coordinated_for_real(tmp_path, capsys, backend, name):
    found = verify_backends(probe())
    finding = next(f for f in found.findings if f.name == name)
    if not finding.is_present:
        pytest.skip(finding.detail)
    words = ["job.envs_per_shard=8", "job.horizon=16", "job.chunk=8", "job.hidden=[32,16]"]
    words += [f"backend={backend}", "max_gmis=2", "templates=[dp_only]", "verify=1"]
    words += ["calibration.env_counts=[1.0]"]
    words += ["profiles=measured", "profile_envs=[64,128,256]", f"cost_cache={tmp_path}"]
    assert main(["coordinate", "job=ppo_pendulum", *words]) == 0
    assert "dp_only(1+0+0)" in capsys.readouterr().out
