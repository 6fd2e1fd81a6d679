"""All-reduces spelled out as ops on real workers: plans and switches change no bit."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from test_job_for_real import parameters_after, random_plan
from test_job_on_tensors import parameters_after as parameters_on_tensors

from doppler.config import JOBS
from doppler.core.layout import per_core_layout
from doppler.jobs import build_job
from doppler.simple_plans import job_problem, single_plan, spread_plan
from executor.probe import probe

sys.path.append(str(Path(__file__).parent / "executor"))
from core_clusters import unbound

pytestmark = pytest.mark.timeout(180)
SETTINGS = dataclasses.replace(
    JOBS["ppo_pendulum"],
    num_shards=2,
    envs_per_shard=4,
    hidden=[32, 16],
    num_trainers=4,
    trainer_groups=2,
    num_segments=3,
)


def make(all_reduce):
    job = build_job(dataclasses.replace(SETTINGS, all_reduce=all_reduce), seed=1)
    hardware = probe().hardware
    cpu = hardware.processors[0]
    if cpu.num_units < 2:
        pytest.skip("needs two usable cores")
    return job, job_problem(job, hardware, per_core_layout(cpu))


def floats(policy):
    return np.frombuffer(policy[: 4 * (len(policy) // 4 // 2)], np.float32)


@pytest.mark.parametrize("name", ["ring", "multi_ring"])
def test_plans_and_switches_change_no_bit_of_what_a_composition_trains(name):
    job, problem = make(name)
    first, rewards = parameters_after(job, problem, (single_plan(problem), 3))
    switched = [(spread_plan(problem), 1), (random_plan(problem, 2), 2)]
    assert parameters_after(job, problem, *switched) == (first, rewards)


def test_devices_with_tensors_of_their_own_add_up_the_same():
    job, problem = make("multi_ring")
    problem = unbound(problem)
    whole = parameters_on_tensors(job, problem, (single_plan(problem), 3))
    spread = [(spread_plan(problem), 1), (random_plan(problem, 2), 2)]
    assert parameters_on_tensors(job, problem, *spread) == whole
    on_cores, _ = parameters_after(job, problem, (spread_plan(problem), 3))
    np.testing.assert_allclose(floats(whole[0]), floats(on_cores), rtol=2e-2, atol=2e-3)
