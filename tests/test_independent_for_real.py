"""Trainers that do not wait for each other, on real workers: they learn, and lag as allowed."""

import dataclasses

import numpy as np
import pytest
from episodes import steps_per_end

from doppler.config import JOBS
from doppler.core.graph import EdgeMode
from doppler.core.job_mode import JobMode
from doppler.core.layout import per_core_layout
from doppler.core.validate import check_trace
from doppler.jobs import build_job
from doppler.session import JobSession
from doppler.simple_plans import job_problem, spread_plan
from executor.drl.importance import Importance
from executor.options import ExecutorOptions
from executor.probe import probe

pytestmark = pytest.mark.timeout(180)
SETTINGS = dataclasses.replace(
    JOBS["ppo_pendulum"],
    mode=JobMode.asynchronous,
    staleness=2,
    independent_trainers=True,
    num_shards=2,
    num_trainers=2,
    envs_per_shard=8,
    horizon=32,
    chunk=16,
)
TOLERANCE_NS = 2_000_000_000  # a loaded machine; what came before what has no tolerance


def make(**changes):
    settings = dataclasses.replace(SETTINGS, **changes)
    job = build_job(settings, seed=1)
    hardware = probe().hardware
    cpu = hardware.processors[0]
    if cpu.num_units < 2:
        pytest.skip("needs two usable cores")
    return job, job_problem(job, hardware, per_core_layout(cpu))


def updates_of(job, iterations):
    """Updates that every segment has seen after so many iterations."""
    config = job.config
    return iterations * config.num_trainers * config.epochs * config.minibatches


def last_counts(job, problem, session):
    """The most updates behind any version of each segment."""
    counts = [0] * job.config.num_segments
    for op, index in problem.graph.op_ids.items():
        if op.startswith("adam["):
            tensor = session.executor.read_output(index, 0)
            j = int(op.rstrip("]").split(",")[-1])
            counts[j] = max(counts[j], int(tensor[-8:].view(np.int64)[0]))
    return counts


@pytest.mark.parametrize("importance", [Importance.none, Importance.vtrace])
def test_trainers_that_do_not_wait_learn_and_lag_no_more_than_the_staleness(importance):
    job, problem = make(importance=importance)
    graph, plan, iterations = problem.graph, spread_plan(problem), 60
    with JobSession(job, problem, ExecutorOptions(mark_unwritten=True)) as session:
        trace = session.run(plan, iterations)
        check_trace(problem, plan, trace, tolerance_ns=TOLERANCE_NS)
        assert last_counts(job, problem, session) == [updates_of(job, iterations)] * 2
        rewards = session.rewards
    ages = []
    for span in trace.op_spans:
        edges = [graph.edges[edge] for edge in graph.in_edges[span.op]]
        newest = [edge for edge in edges if edge.mode is EdgeMode.latest]
        ages += [span.iteration - 1 - version for version in span.versions]
        assert len(newest) == len(span.versions)
    assert max(ages) <= 2
    lengths = steps_per_end(rewards, 15)
    assert max(lengths[1:]) > lengths[0]


def test_devices_with_tensors_of_their_own_share_weights_too():
    job, problem = make(num_segments=3)
    options = ExecutorOptions(mark_unwritten=True, own_tensors=True)
    with JobSession(job, problem, options) as session:
        session.run(spread_plan(problem), 2)
        session.run(spread_plan(problem), 2)
        assert last_counts(job, problem, session) == [updates_of(job, 4)] * 3
        policy = session.executor.read_output(problem.graph.op_ids["broadcast[1]"], 0)
        assert np.isfinite(policy[: 4 * (len(policy) // 8)].view(np.float32)).all()
