"""The PPO job on devices that keep tensors of their own, as GPUs do: real workers, here on cores.

The kernels, the residence of tensors and the copies where an edge crosses are those of a GPU; the
torch device is the CPU. Devices in one process are what green contexts are, in two what MPS is.
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from test_job_for_real import parameters_after as parameters_on_cores
from test_job_for_real import random_plan

from doppler.config import JOBS
from doppler.core.layout import per_core_layout
from doppler.jobs import build_job
from doppler.session import JobSession
from doppler.simple_plans import job_problem, single_plan, spread_plan
from executor import team
from executor.options import ExecutorOptions
from executor.probe import probe

sys.path.append(str(Path(__file__).parent / "executor"))
from core_clusters import OneProcess, unbound

pytestmark = pytest.mark.timeout(180)
ITERATIONS = 4
SHAPE = {"num_shards": 3, "envs_per_shard": 4, "hidden": [32, 16], "num_trainers": 3}


def make(fused):
    job = build_job(dataclasses.replace(JOBS["ppo_pendulum"], fused=fused, **SHAPE), seed=1)
    hardware = probe().hardware
    cpu = hardware.processors[0]
    if cpu.num_units < 2:
        pytest.skip("needs two usable cores")
    return job, unbound(job_problem(job, hardware, per_core_layout(cpu)))


def parameters_after(job, problem, *segments):
    """The policy vector after (plan, iterations) pairs, and the rewards on the way."""
    options = ExecutorOptions(mark_unwritten=True, own_tensors=True)
    with JobSession(job, problem, options) as session:
        for plan, iterations in segments:
            session.run(plan, iterations)
        policy = session.executor.read_output(problem.graph.op_ids["broadcast"], 0)
        return policy.tobytes(), session.rewards


@pytest.mark.parametrize("fused", [True, False])
def test_plans_and_processes_change_no_bit_of_what_is_trained(fused, monkeypatch):
    job, problem = make(fused)
    whole = [(single_plan(problem), ITERATIONS)]
    switched = [(spread_plan(problem), 2), (random_plan(problem, 2), ITERATIONS - 2)]
    expected = parameters_after(job, problem, *whole)
    assert parameters_after(job, problem, *switched) == expected
    on_cores, rewards = parameters_on_cores(job, problem, *whole)
    size = 4 * (len(on_cores) // 4 // 2)  # the normaliser at the end is float64
    ours, theirs = (np.frombuffer(v[:size], np.float32) for v in (expected[0], on_cores))
    np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=2e-3)  # 4 iterations of rounding
    assert len(expected[1]) == len(rewards) == ITERATIONS
    monkeypatch.setattr(team, "Seating", OneProcess)
    assert parameters_after(job, problem, *switched) == expected
