"""Tensor graphs as jobs: settings, passes, calibration, real runs, resumed runs."""

import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from doppler.calibration import calibrate, save_calibration
from doppler.compose import compose_config, job_choices
from doppler.config import CalibrationSettings, LearnConfig, RunConfig, RunSettings
from doppler.console import View
from doppler.coordinate_config import CoordinateConfig
from doppler.core.errors import ConfigError, GraphError
from doppler.core.layout import per_core_layout
from doppler.core.plan import make_plan
from doppler.core.problem import Objective
from doppler.core.serialize import save
from doppler.core.trace import OpSpan, Trace, TransferSpan
from doppler.core.validate import check_trace
from doppler.jobs import baselines, build_any_job, resolve_any_job
from doppler.measure import measured_period_ns
from doppler.passes import back_to_back
from doppler.results import CLUSTER_FILE, COSTS_FILE, METRICS_FILE, PLAN_FILE, write_settings
from doppler.running import _resolved, load_checkpoint, run_plan
from doppler.session import JobSession
from doppler.simple_plans import job_problem, spread_plan
from doppler.tensor_config import TENSOR_JOBS, ChainJobConfig, LlamaLayerJobConfig
from doppler.tensor_jobs import tensor_program
from executor.options import ExecutorOptions
from executor.probe import probe
from tests.graphs.test_llama import SMALL, plain_block

pytestmark = pytest.mark.timeout(180)
LAYER = LlamaLayerJobConfig(
    name="llama_layer",
    dtype="float64",
    **dataclasses.asdict(SMALL),
)
CHAIN = ChainJobConfig(name="chainmm", size=24)
TOLERANCE_NS = 50_000_000


def problem_of(job):
    hardware = probe().hardware
    cpu = hardware.processors[0]
    if cpu.num_units < 2:
        pytest.skip("needs two usable cores")
    return job_problem(job, hardware, per_core_layout(cpu))


def random_plan(problem, seed):
    rng = np.random.default_rng(seed)
    num_ops = problem.graph.num_ops
    placement = rng.integers(problem.cluster.num_devices, size=num_ops)
    return make_plan(problem, tuple(placement), tuple(rng.permutation(num_ops)), "random")


def test_a_layer_on_two_cores_computes_what_plain_torch_computes():
    job = build_any_job(LAYER, seed=3)
    problem = problem_of(job)
    shapes = tensor_program(LAYER).instructions
    plan = random_plan(problem, 0)
    with JobSession(job, problem, ExecutorOptions(mark_unwritten=True)) as session:
        trace = session.run(plan, 2)
        values = {
            op.name: [
                torch.from_numpy(session.executor.read_output(index, output))
                .view(torch.float64)
                .view(shapes[op.name].out_shapes[output])
                for output in range(len(op.outputs))
            ]
            for index, op in enumerate(problem.graph.ops)
        }
        single = session.executor.run(problem, plan, 1)
    x, norm = plain_block(values, SMALL)
    weights = torch.cat([values[f"Wvocab[{j}]"][0] for j in range(SMALL.shards)], dim=1)
    torch.testing.assert_close(values["output"][0], norm(x, "norm3_weight")[-1:] @ weights)
    check_trace(problem, plan, single, tolerance_ns=TOLERANCE_NS)
    assert (trace.iterations, len(trace.op_spans)) == (2, 2 * len(problem.graph.placeable))
    assert not session.rewards


def test_passes_of_a_trace_do_not_overlap():
    job = build_any_job(CHAIN, seed=0)
    problem = problem_of(job)
    assert problem.objective is Objective.makespan
    with JobSession(job, problem, ExecutorOptions()) as session:
        trace = session.run(random_plan(problem, 1), 3)
    for iteration in (1, 2):
        before = max(s.end_ns for s in trace.op_spans if s.iteration == iteration - 1)
        assert min(s.start_ns for s in trace.op_spans if s.iteration == iteration) == before


def one_pass(start, ends, peak):
    """Two ops, the second on another device after a transfer."""
    return Trace(
        graph_digest="g",
        cluster_digest="c",
        source="s",
        runtime="executor",
        iterations=1,
        op_spans=(
            OpSpan(0, 0, 0, 0, start - 1, start, ends[0]),
            OpSpan(1, 0, 1, 0, ends[0] + 5, ends[0] + 6, ends[1]),
        ),
        transfers=(TransferSpan(0, 0, 0, 0, 1, ends[0], ends[0], ends[0] + 2, ends[0] + 5),),
        peak_bytes=peak,
    )


def test_the_period_of_joined_passes_is_the_mean_makespan_after_the_first():
    passes = [one_pass(10, (20, 110), (1, 9)), one_pass(7, (20, 57), (5, 2))]
    passes.append(one_pass(3, (20, 33), (4, 4)))
    joined = back_to_back(passes)  # makespans 100, 50, 30
    assert joined.iteration_ends_ns() == (110, 160, 190)
    assert measured_period_ns(joined) == (50 + 30) / 2
    assert joined.peak_bytes == (5, 9)
    second = [s for s in joined.op_spans if s.iteration == 1]
    assert [(s.ready_ns, s.start_ns, s.end_ns) for s in second] == [
        (109, 110, 123),
        (128, 129, 160),
    ]
    sent = joined.transfers[1]
    assert (sent.iteration, sent.request_ns, sent.arrival_ns) == (1, 123, 128)


def test_every_graph_of_tensor_ops_can_be_chosen_with_its_own_settings():
    for name, settings in TENSOR_JOBS.items():
        assert compose_config(LearnConfig, [f"job={name}"]).job == settings
    config = compose_config(LearnConfig, ["job.size=64", "job=chainmm", "seed=2"])
    assert config.job == dataclasses.replace(TENSOR_JOBS["chainmm"], size=64)
    assert "dp_only" not in baselines(config.job)


@pytest.mark.parametrize(
    ("schema", "words", "message"),
    [
        (LearnConfig, ["job=chainmm", "job.sise=3"], "did you mean 'job.size'"),
        (LearnConfig, ["job=chainmm", "job.horizon=3"], "setting 'job.horizon' is unknown"),
        (LearnConfig, ["job.size=3"], "setting 'job.size' is unknown"),
        (LearnConfig, ["job=chainmm", "job.size=0"], "size is at least 1, and it is 0"),
        (LearnConfig, ["job=ffnn", "job.dtype=float23"], "did you mean 'float32'"),
        (LearnConfig, ["job=chainm"], "did you mean 'chainmm'"),
        (CoordinateConfig, ["job=chainmm"], "job 'chainmm' is unknown"),
    ],
)
def test_settings_that_do_not_fit_the_job_are_refused(schema, words, message):
    with pytest.raises(ConfigError, match=message):
        compose_config(schema, words)


def test_only_deep_rl_jobs_are_coordinated():
    assert not set(TENSOR_JOBS) & set(job_choices(CoordinateConfig))
    assert set(TENSOR_JOBS) <= set(job_choices(RunConfig))
    assert not job_choices(RunSettings)


def test_cuts_that_do_not_fit_and_environment_counts_are_refused():
    with pytest.raises(GraphError, match="heads is a divisor of 512, and it is 7"):
        build_any_job(dataclasses.replace(TENSOR_JOBS["llama_block"], heads=7), 0)
    with pytest.raises(ConfigError, match="'ffnn' has none"):
        resolve_any_job(TENSOR_JOBS["ffnn"], ["calibration.env_counts"])


def test_a_stored_tensor_job_is_read_again(tmp_path):
    for settings in (*TENSOR_JOBS.values(), LAYER):
        write_settings(tmp_path, LearnConfig(job=settings, seed=7), ["doppler", "learn"])
        resolved = _resolved(RunConfig(), ["doppler", "run", "x"], tmp_path)
        assert (resolved.job, resolved.seed) == (settings, 7)
    words = ["doppler", "run", "x", "job.horizon=64"]
    config = compose_config(RunConfig, words[3:])
    with pytest.raises(ConfigError, match="'llama_layer', which has no setting 'horizon'"):
        _resolved(config, words, tmp_path)


def test_a_calibrated_tensor_job_runs_under_its_plan_and_is_resumed(tmp_path):
    stored = tmp_path / "stored"
    stored.mkdir()
    hardware = probe().hardware
    calibration = calibrate(
        CHAIN,
        hardware,
        CalibrationSettings(warmup=1, iterations=3),
        seed=0,
        options=ExecutorOptions(),
        progress=lambda note: None,
    )
    job = build_any_job(CHAIN, 0)
    problem = problem_of(job)
    costs = calibration.table().costs(problem)
    assert min(costs.op_ns[op][0] for op in problem.graph.placeable) > 0
    save_calibration(stored / COSTS_FILE, calibration)
    save(problem.cluster, stored / CLUSTER_FILE)
    save(spread_plan(problem), stored / PLAN_FILE, problem)
    write_settings(stored, LearnConfig(job=CHAIN), ["doppler", "learn"])

    def run(**changes):
        config = RunConfig(
            plan=str(stored), run=RunSettings(**changes), results=str(tmp_path / "results")
        )
        view = View(Console(file=io.StringIO(), width=200))
        return run_plan(config, ["doppler", "run", str(stored)], view)

    first = run(iterations=4, adapt=True)
    assert load_checkpoint(run(iterations=3, resume=str(first))).iteration == 7
    records = [json.loads(line) for line in (first / METRICS_FILE).read_text().splitlines()]
    assert [record["record"] for record in records] == ["WindowRecord"]
    with pytest.raises(ConfigError, match="'chainmm' has no reward"):
        run(iterations=3, target_reward=1.0)
