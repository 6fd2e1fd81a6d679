"""The PPO job on real workers: placement and switches change nothing but time."""

import dataclasses

import numpy as np
import pytest

from doppler.config import JOBS
from doppler.core.layout import all_cores_layout, per_core_layout
from doppler.core.plan import make_plan
from doppler.core.validate import check_trace
from doppler.jobs import build_job
from doppler.session import JobSession
from doppler.simple_plans import job_problem, single_plan, spread_plan
from executor.options import ExecutorOptions
from executor.probe import probe

pytestmark = pytest.mark.timeout(180)
ITERATIONS = 5
TOLERANCE_NS = 50_000_000


@pytest.fixture(scope="module")
def job():
    settings = dataclasses.replace(
        JOBS["ppo_ant"], num_shards=3, envs_per_shard=4, hidden=[32, 16], num_trainers=3
    )
    return build_job(settings, seed=1)


@pytest.fixture(scope="module")
def problem(job):
    hardware = probe().hardware
    cpu = hardware.processors[0]
    if cpu.num_units < 2:
        pytest.skip("needs two usable cores")
    return job_problem(job, hardware, per_core_layout(cpu))


def random_plan(problem, seed):
    rng = np.random.default_rng(seed)
    placement = rng.integers(problem.cluster.num_devices, size=problem.graph.num_ops)
    for members in problem.graph.group_members.values():
        placement[list(members)] = placement[members[0]]
    priority = rng.permutation(problem.graph.num_ops)
    return make_plan(problem, tuple(placement), tuple(priority), f"random {seed}")


def parameters_after(job, problem, *segments):
    """The policy vector after running (plan, iterations) pairs, and the rewards on the way."""
    with JobSession(job, problem, ExecutorOptions(mark_unwritten=True)) as session:
        for plan, iterations in segments:
            trace = session.run(plan, iterations)
            check_trace(problem, plan, trace, tolerance_ns=TOLERANCE_NS)
        policy = session.executor.read_output(problem.graph.op_ids["broadcast"], 0)
        return policy.tobytes(), session.rewards


def test_any_two_plans_and_a_switch_half_way_give_bitwise_equal_parameters(job, problem):
    first = parameters_after(job, problem, (single_plan(problem), ITERATIONS))
    assert np.isfinite(np.frombuffer(first[0], dtype=np.float32)[:1000]).all()
    for segments in (
        [(spread_plan(problem), ITERATIONS)],
        [(random_plan(problem, 1), ITERATIONS)],
        [(spread_plan(problem), 2), (random_plan(problem, 2), ITERATIONS - 2)],
    ):
        assert parameters_after(job, problem, *segments) == first


def test_the_unrolled_form_trains_the_same_policy(job, problem):
    unrolled = build_job(
        dataclasses.replace(
            JOBS["ppo_ant"],
            num_shards=3,
            envs_per_shard=4,
            hidden=[32, 16],
            num_trainers=3,
            fused=False,
        ),
        seed=1,
    )
    other = dataclasses.replace(problem, graph=unrolled.graph)
    first, _ = parameters_after(job, problem, (spread_plan(problem), 2))
    second, _ = parameters_after(unrolled, other, (spread_plan(other), 2))
    assert first == second


def test_one_device_with_all_cores_runs_the_job_too(job):
    hardware = probe().hardware
    problem = job_problem(job, hardware, all_cores_layout(hardware.processors[0]))
    _, rewards = parameters_after(job, problem, (single_plan(problem), 3))
    assert [record.iteration for record in rewards] == [0, 1, 2]
    assert all(np.isfinite(record.reward_per_step) for record in rewards)
