"""The coordinator on two cores, with costs made by hand: variants, equal batches, both searches."""

import contextlib
import dataclasses
import json

import pytest

from doppler import coordinate as module
from doppler import coordinate_search as searches
from doppler import coordination, running
from doppler.api import make_scorer, simulate
from doppler.calibration import Calibration, DispatchCost, load_calibration
from doppler.cli import main
from doppler.config import JOBS, RunConfig
from doppler.coordinate_rows import Batch
from doppler.coordination import Coordination
from doppler.coordinator.resource_model import Dominant, Template
from doppler.coordinator.search import (
    Point,
    Sample,
    SearchResult,
    SearchSpace,
    at_fixed_batch,
    exhaustive,
)
from doppler.core.errors import WorkerDiedError
from doppler.core.hardware import Hardware, Processor
from doppler.core.job_mode import JobMode
from doppler.core.problem import Problem
from doppler.core.serialize import load_cluster, load_plan
from doppler.jobs import build_job
from doppler.measure import MIN_RATIOS
from executor.options import ExecutorOptions
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
OWN = Batch(num_envs=16, num_shards=4)
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


def calibration(fused, settings=SETTINGS):
    """Every op takes 1 ms on one core and as long on two: only GMIs side by side help.

    As by a calibration, single cores are measured at all counts, both together at one.
    """
    sizes = {
        (op.kind, op.flop, cores)
        for count, cores in ((2, 1), (4, 1), (6, 1), (4, 2))
        for op in build_job(
            dataclasses.replace(settings, fused=fused, envs_per_shard=count), 0
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
    return Coordination(SETTINGS, HARDWARE, tables, seed=0)


def test_every_template_that_fits_two_cores_at_equal_batch(coordinator):
    rows, refused = coordinator.templates(OWN)
    assert not refused
    found = {(row.variant.template, len(row.variant.problem.cluster.devices)) for row in rows}
    assert found == {
        (Template.dp_only, 1),
        (Template.dp_only, 2),
        (Template.ea_t, 2),
        (Template.e_at, 2),
    }
    assert {row.batch.num_envs for row in rows} == {16}
    counts = {kind: set() for kind in ("grad", "advantage")}
    for row in rows:
        for kind, values in counts.items():
            values.add(sum(op.kind == kind for op in row.variant.graph.ops))
    assert counts == {"grad": {4}, "advantage": {4}}


def test_two_gmis_beat_one_when_ops_do_not_use_a_second_core(coordinator):
    rows, _ = coordinator.templates(OWN)
    rate = {
        (row.variant.template, len(row.variant.problem.cluster.devices)): row.steps_per_s
        for row in rows
    }
    one, two = rate[Template.dp_only, 1], rate[Template.dp_only, 2]
    # Alone all ops run one by one, each for 1 ms.
    ops = build_job(SETTINGS, 0).graph.num_ops
    assert one == pytest.approx(16 * 4 / (ops * 1e-3), rel=1e-3)
    assert 1.5 * one < two <= 2 * one


def test_a_batch_keeps_its_size_in_half_and_twice_the_shards(coordinator):
    assert coordinator.batches(4) == [
        Batch(num_envs=16, num_shards=2),
        Batch(num_envs=16, num_shards=4),
        Batch(num_envs=16, num_shards=8),
    ]
    assert [batch.num_shards for batch in coordinator.batches(3)] == [2, 4]  # 12 by 8: no
    assert {batch.envs_per_shard for batch in coordinator.batches(4)} == {8, 4, 2}


def test_the_policy_places_every_layout_once_and_counts_its_plans(coordinator):
    rows, _ = coordinator.templates(OWN)
    learned = coordinator.learned(rows, budget=20)
    assert [row.name for row in learned] == ["learned(2 GMIs, fused)", "learned(2 GMIs, split)"]
    for row in learned:
        assert row.is_learned
        assert row.batch == OWN
        assert 0 < row.simulations <= 20
    assert not any(row.is_learned for row in rows)
    fused = [row for row in rows if row.variant.problem == learned[0].variant.problem]
    assert {row.variant.template for row in fused} == {Template.dp_only, Template.ea_t}


def test_sizes_that_were_not_measured_are_refused_with_template_and_reason(coordinator):
    rows, refused = coordinator.templates(Batch(num_envs=128, num_shards=2))
    assert rows == []
    assert {refusal.template for refusal in refused} == {
        Template.dp_only,
        Template.ea_t,
        Template.e_at,
    }
    assert all("more than a factor of 2 outside" in refusal.reason for refusal in refused)


def test_the_resource_model_by_hand(coordinator):
    """A millisecond per op: per shard 4 steps, 4 inferences and an advantage; the rest trains."""
    roles = coordinator.roles(OWN)
    graph = build_job(dataclasses.replace(SETTINGS, fused=False), 0).graph
    assert roles.num_copies == 4
    assert roles.dominant is Dominant.compute
    assert roles.profile.t_sim_ns == 4_000_000
    assert roles.profile.t_agent_ns == 5_000_000
    assert roles.profile.t_train_ns == (graph.num_ops - 4 * 9) * 250_000
    assert (roles.profile.r_sim, roles.profile.r_agent) == (0.5, 0.5)
    assert (roles.profile.share_agent, roles.profile.share_train) == (1.0, 5 / 18)
    assert roles.profile.horizon == 4


def test_a_profile_counts_all_gmis_and_the_peak_of_one(coordinator):
    sample = coordinator.profile(2, 8)
    assert (sample.gmis, sample.envs) == (2, 8)
    rows, _ = coordinator.templates(OWN)
    expected = next(
        row
        for row in rows
        if row.variant.template is Template.dp_only and row.variant.split.environments == 2
    )
    assert sample.steps_per_s == expected.steps_per_s
    assert 0 < sample.memory_bytes < 10**9


def test_what_a_search_finds_is_ranked_among_equal_batches():
    """Twice the environments run at a higher rate, which says nothing of a plan."""
    rates = {(1, 8): 100.0, (2, 4): 130.0, (1, 16): 150.0, (2, 8): 240.0}

    def profile(gmis, envs):
        rate = rates.get((gmis, envs))
        return None if rate is None else Sample(gmis, envs, rate, 10)

    space = SearchSpace(gmis=(1, 2), envs=(4, 8, 16), gpu_memory_bytes=1000)
    rate = searches._rate
    fixed = at_fixed_batch(profile, rate, space, 8)
    best = searches.best_by_batch([exhaustive(profile, rate, space), fixed])
    assert best == {8: 130.0, 16: 240.0}
    one = SearchResult((Point(1, 16, profile(1, 16), 150.0),))
    assert searches._search_cells(one, best) == ("1", "16", "150", "37.5%", "37.5%")
    assert searches._search_cells(fixed, best) == ("2", "4", "130", "0.0%", "45.8%")
    assert searches._search_cells(SearchResult(()), best)[2] == "nothing found"


class Simulated:
    """Runs plans in the simulator where `verify` would run them on workers: no noise at all."""

    def __init__(self, coordinator):
        self.coordinator = coordinator

    def __call__(self, spec, problem, options):
        return contextlib.nullcontext(self)

    def run(self, problem, plan, iterations):
        return simulate(problem, plan, self.coordinator.costs(problem), iterations)


@pytest.mark.parametrize("mode", list(JobMode))
def test_short_windows_are_not_faster_than_the_job(mode, monkeypatch):
    settings = dataclasses.replace(
        SETTINGS, mode=mode, staleness=1 if mode is JobMode.asynchronous else 0
    )
    tables = {fused: calibration(fused, settings).table() for fused in (True, False)}
    coordinator = Coordination(settings, HARDWARE, tables, seed=0)
    monkeypatch.setattr(coordination, "open_executor", Simulated(coordinator))
    rows, _ = coordinator.templates(OWN)
    found = coordinator.verify(rows, windows=MIN_RATIOS, iterations=5)
    for row, rate in zip(rows, found.rates, strict=True):
        assert rate.value == pytest.approx(row.steps_per_s, rel=1e-3), row.name


WORDS = [
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


@pytest.fixture
def by_hand(monkeypatch):
    """The command on a machine of two cores whose op times are made by hand."""
    monkeypatch.setattr(
        module, "probe", lambda shm_dir: ProbeResult(hardware=HARDWARE, findings=())
    )
    monkeypatch.setattr(
        module,
        "load_or_calibrate",
        lambda settings, *_, **__: (calibration(settings.fused), True),
    )


def test_the_learned_plan_is_never_behind_the_templates_of_its_problem(coordinator):
    rows, _ = coordinator.templates(OWN)
    for learned in coordinator.learned(rows, budget=6):
        same = [row for row in rows if row.variant.problem == learned.variant.problem]
        assert learned.steps_per_s >= max(row.steps_per_s for row in same)


def test_the_choices_are_written_and_run_reads_them(by_hand, tmp_path, capsys):
    folder = tmp_path / "chosen"
    words = ["coordinate", "job=ppo_pendulum", *WORDS, "verify=0", "budget=4"]
    words += ["templates=[dp_only,e_at]", f"output={folder}"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "learned(" not in out
    assert "ea_t" not in out.split("resource model")[0]
    assert "e_at" in out
    choices = json.loads((folder / "choices.json").read_text())
    assert [line["num_envs"] for line in choices] == [8, 16, 24]
    best = max(choices, key=lambda line: line["simulated_steps_per_s"])
    assert f"most steps per second of all batches: {best['num_envs']} environments" in out
    text = "".join(out.split())
    assert f"thefastest:dopplerrun{folder / best['folder']}".replace(" ", "") in text
    for line in choices:
        place = folder / line["folder"]
        config = running._resolved(RunConfig(plan=str(place)), ["run", str(place)], place)
        assert config.job.envs_per_shard * config.job.num_shards == line["num_envs"]
        job = build_job(config.job, config.seed)
        problem = Problem(
            graph=job.graph,
            cluster=load_cluster(place / "cluster.json"),
            objective=job.objective,
        )
        plan = load_plan(place / "plan.json", problem)  # refused if it were another graph's
        costs = load_calibration(place / "cost_table.json").table().costs(problem)
        period_ns = int(make_scorer(problem, costs).score_plans([plan])[0])
        steps = line["num_envs"] * SETTINGS.horizon
        assert steps * 1e9 / period_ns == pytest.approx(line["simulated_steps_per_s"])
    assert main(words) == 2
    assert "output is a folder that is new or empty" in capsys.readouterr().err


def test_templates_are_asked_for_by_name(by_hand, capsys):
    assert main(["coordinate", "job=ppo_pendulum", "templates=[dp_onl]"]) == 2
    assert "templates has 'dp_onl'; did you mean 'dp_only'" in capsys.readouterr().err
    assert main(["coordinate", "job=ppo_pendulum", "templates=[learned]"]) == 2
    assert "at least one template beside 'learned'" in capsys.readouterr().err
    assert main(["coordinate", "job=ppo_pendulum", "templates=[mp_dp]"]) == 2
    assert "templates of a synchronous job are dp_mp, dp_only, e_at, ea_t" in (
        capsys.readouterr().err
    )


def test_a_measured_point_is_measured_once_and_a_killed_worker_is_memory(
    by_hand, monkeypatch, capsys
):
    seen = []

    def measured(self, gmis, envs, iterations):
        seen.append((gmis, envs))
        return None if envs > 8 else self.profile(gmis, envs)

    monkeypatch.setattr(Coordination, "measured_profile", measured)
    words = [*WORDS, "verify=0", "budget=4", "templates=[dp_only]", "profiles=measured"]
    assert main(["coordinate", "job=ppo_pendulum", *words]) == 0
    assert len(seen) == len(set(seen)) > 2
    assert "exhaustive" in capsys.readouterr().out


def test_a_worker_that_the_system_ends_is_no_profile(monkeypatch):
    class Killed:
        def run(self, problem, plan, iterations):
            raise WorkerDiedError("the worker of device 'gmi0' (process 7) was killed")

    asked = []

    def open_killed(spec, problem, options):
        asked.append(options.shm_dir)
        return contextlib.nullcontext(Killed())

    monkeypatch.setattr(coordination, "open_executor", open_killed)
    tables = {fused: calibration(fused).table() for fused in (True, False)}
    options = ExecutorOptions(shm_dir="/dev/shm/elsewhere")
    coordinator = Coordination(SETTINGS, HARDWARE, tables, seed=0, options=options)
    assert coordinator.measured_profile(2, 8, 5) is None
    assert asked == ["/dev/shm/elsewhere"]


def test_one_size_of_the_job_is_enough(by_hand, monkeypatch, capsys):
    """Times are then known to twice that size, and a shard of one GMI of two may be larger."""

    def one_size(settings, *_, **__):
        found = calibration(settings.fused)
        own = {op.flop for op in build_job(settings, 0).graph.ops}
        entries = tuple(entry for entry in found.entries if entry.flop in own)
        return dataclasses.replace(found, entries=entries), True

    monkeypatch.setattr(module, "load_or_calibrate", one_size)
    words = [*WORDS, "verify=0", "budget=4", "templates=[dp_only]", "calibration.env_counts=[1.0]"]
    assert main(["coordinate", "job=ppo_pendulum", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "GMI-DRL's search is left out: op times are not known" in out
    assert "16 envs in all" in out


def test_the_command_prints_variants_and_searches(by_hand, capsys):
    assert main(["coordinate", "job=ppo_pendulum", *WORDS, "verify=0", "budget=4"]) == 0
    out = capsys.readouterr().out
    for text in ("dp_only", "ea_t", "e_at", "(1+0+1)", "algorithm 1", "exhaustive"):
        assert text in out
    # One table per global batch: 8, 16 and 24 environments, 4 steps each.
    for batch in (32, 64, 96):
        assert f"global batch {batch}" in out
    # 2, 4 and 8 shards each; 8 environments in 8 shards are smaller than what was measured.
    rows = [line for line in out.splitlines() if "│ learned(2 GMIs, fused)" in line]
    assert len(rows) == 8
    assert "8 environments in 8 shards" in out
    assert "learned placement over the best template" in out
    assert "16 envs in all" in out
    assert "resource model on measured op times (compute decides)" in out
    assert "gap: below the best that was profiled at the same global batch" in out
    assert "printed: the paper's reading" in out
    assert "not possible: " in out
    assert main(["coordinate", "job=ppo_pendulum", "verify=-1"]) == 2
    assert "verify is at least 0" in capsys.readouterr().err
    assert main(["coordinate", "job=ppo_pendulum", "windows=5"]) == 2
    assert "windows is at least 6" in capsys.readouterr().err
