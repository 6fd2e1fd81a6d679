"""Asynchronous and serving jobs on real workers: edges differ, code paths do not."""

import dataclasses

import pytest
from episodes import steps_per_end

from doppler.config import JOBS
from doppler.core.errors import ConfigError
from doppler.core.graph import EdgeMode
from doppler.core.job_mode import JobMode
from doppler.core.layout import per_core_layout
from doppler.core.validate import check_trace
from doppler.jobs import build_job
from doppler.measure import NO_MARGINS, Margins
from doppler.run_report import RunHistory
from doppler.session import JobSession
from doppler.simple_plans import job_problem, single_plan, spread_plan
from executor.drl.importance import Importance
from executor.options import ExecutorOptions
from executor.probe import probe

pytestmark = pytest.mark.timeout(180)
SETTINGS = dataclasses.replace(JOBS["ppo_pendulum"], envs_per_shard=8, horizon=32, chunk=16)
TOLERANCE_NS = 2_000_000_000  # a loaded machine; what came before what has no tolerance


def job_in(mode, staleness=0, **changes):
    settings = dataclasses.replace(SETTINGS, mode=mode, staleness=staleness, **changes)
    return build_job(settings, seed=1)


def problem_of(job):
    hardware = probe().hardware
    cpu = hardware.processors[0]
    if cpu.num_units < 2:
        pytest.skip("needs two usable cores")
    return job_problem(job, hardware, per_core_layout(cpu))


def run(job, problem, plan, iterations):
    with JobSession(job, problem, ExecutorOptions(mark_unwritten=True)) as session:
        trace = session.run(plan, iterations)
        check_trace(problem, plan, trace, tolerance_ns=TOLERANCE_NS)
        return trace, session.rewards


@pytest.mark.parametrize(
    ("importance", "rise"),
    # Runs differ, and some fall back again later, with V-trace within these 60 iterations.
    [(Importance.none, 1.5), (Importance.vtrace, 1.0)],
)
def test_asynchronous_rollouts_read_weights_within_the_staleness_and_the_job_learns(
    importance, rise
):
    job = job_in(JobMode.asynchronous, staleness=2, importance=importance)
    problem = problem_of(job)
    graph = problem.graph
    # Environments on one core, training on the other: rollouts need not wait for it.
    plan = spread_plan(problem)
    placement = [int(op.kind not in ("rollout", "infer", "env_step")) for op in graph.ops]
    plan = dataclasses.replace(plan, placement=tuple(placement))
    trace, rewards = run(job, problem, plan, 60)
    ages = []
    for span in trace.op_spans:
        edges = [graph.edges[edge] for edge in graph.in_edges[span.op]]
        newest = [edge for edge in edges if edge.mode is EdgeMode.latest]
        for _, version in zip(newest, span.versions, strict=True):
            ages.append(span.iteration - 1 - version)
    assert ages
    assert 0 <= min(ages) <= max(ages) <= 2
    lengths = steps_per_end(rewards, 15)
    assert max(lengths[1:]) > rise * lengths[0]


@pytest.mark.parametrize("fused", [True, False])
def test_serving_collects_with_a_fixed_policy_and_says_what_it_was_paid(fused):
    job = job_in(JobMode.serving, fused=fused)
    problem = problem_of(job)
    kinds = {op.kind for op in problem.graph.ops}
    assert kinds == {"input", *(("rollout",) if fused else ("infer", "env_step"))}
    results = [run(job, problem, plan(problem), 4)[1] for plan in (single_plan, spread_plan)]
    assert results[0] == results[1]
    assert [record.env_steps for record in results[0]] == [512, 1024, 1536, 2048]
    assert all(record.reward_per_step == 1.0 for record in results[0])  # what a pendulum pays
    assert sum(record.num_episodes for record in results[0]) > 0


def test_the_first_iteration_of_all_modes_is_the_same():
    rewards = []
    for mode, staleness in (
        (JobMode.synchronous, 0),
        (JobMode.asynchronous, 1),
        (JobMode.serving, 0),
    ):
        job = job_in(mode, staleness)
        problem = problem_of(job)
        rewards.append(run(job, problem, spread_plan(problem), 1)[1])
    assert rewards[0] == rewards[1] == rewards[2]


def test_windows_leave_out_as_much_as_iterations_may_run_ahead():
    assert job_in(JobMode.synchronous, 0).margins == NO_MARGINS
    assert job_in(JobMode.asynchronous, 5).margins == Margins(head=2, tail=7)  # window 5 + 2
    assert job_in(JobMode.serving, 0).margins == Margins(head=2, tail=3)


def test_a_run_counts_what_lies_between_the_margins():
    job = job_in(JobMode.asynchronous, 1)
    problem = problem_of(job)
    plan = spread_plan(problem)
    trace, _ = run(job, problem, plan, 8)
    history = RunHistory(margins=job.margins)
    history.add(problem, plan, trace)
    ends = trace.iteration_ends_ns()
    assert history.periods_ns == [(ends[4] - ends[1]) / 3]


@pytest.mark.parametrize(
    ("mode", "staleness", "message"),
    [
        (JobMode.synchronous, 1, r"staleness must lie in \[0, 0\] in synchronous mode, but is 1"),
        (JobMode.asynchronous, 0, r"staleness must lie in \[1, 64\] in asynchronous mode"),
        (JobMode.serving, 2, r"staleness must lie in \[0, 0\] in serving mode, but is 2"),
    ],
)
def test_a_staleness_that_the_mode_cannot_have_is_refused(mode, staleness, message):
    with pytest.raises(ConfigError, match=message):
        job_in(mode, staleness)
