"""DP-only: shards dealt out to devices, pins and kinds obeyed, nothing bent to fit."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.coordinator.templates import dp_only_devices, has_roles
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.errors import CapacityError, PlanError
from doppler.core.graph import DataflowGraph, Group, Op
from doppler.core.problem import Problem
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize
from doppler.planners.mask import make_mask

OUTPUTS = {
    "rollout": (64, 16),
    "infer": (32, 8),
    "env_step": (16, 8),
    "advantage": (64, 8),
    "collect": (8, 8),
    "grad": (8, 8, 32),
    "reduce": (8, 8),
    "adam": (8,),
    "broadcast": (16,),
}


def job(memory=1 << 30, links=True, pins=None, kinds=("cpu", "cpu"), state=5, **shape):
    graph = build_drl_job(
        "job",
        DRLJobShape(**{"num_shards": 5, "num_trainers": 3, **shape}),
        lambda kind, at: OpSize(outputs=OUTPUTS[kind], state_bytes=state),
    )
    devices = tuple(
        Device(name=f"d{i}", kind=kind, parent="p", memory_bytes=memory)
        for i, kind in enumerate(kinds)
    )
    joined = tuple(
        Link(src=a.name, dst=b.name) for a in devices for b in devices if a is not b and links
    )
    cluster = Cluster(name="c", devices=devices, links=joined)
    return Problem(graph=graph, cluster=cluster, pins=pins or {})


def devices_by_name(problem):
    mask = make_mask(problem)
    placement = mask.placement(dp_only_devices(mask))
    return {op.name: int(device) for op, device in zip(problem.graph.ops, placement, strict=True)}


@pytest.mark.parametrize("fused", [True, False])
def test_every_role_is_dealt_out_by_its_shard(fused):
    found = devices_by_name(job(fused=fused))
    for k in range(5):
        front = [f"rollout[{k},0]"] if fused else [f"env_step[{k},3]", f"infer[{k},3]"]
        for name in (*front, f"advantage[{k}]"):
            assert found[name] == k % 2
    for m in range(3):
        assert found[f"grad[2,1,{m}]"] == m % 2
    for j in range(2):
        assert found[f"reduce[0,0,{j}]"] == found[f"adam[3,1,{j}]"] == j
    assert found["collect"] == found["broadcast"] == 0


def test_one_op_of_another_kind_makes_a_graph_no_job():
    graph = job().graph
    assert has_roles(graph)
    assert not has_roles(replace(graph, ops=(*graph.ops, Op(kind="matmul", name="m"))))


def test_pins_hold():
    assert devices_by_name(job(pins={"collect": "d1"}))["collect"] == 1


def test_other_graphs_are_refused():
    problem = job()
    graph = DataflowGraph(name="g", ops=(Op(kind="matmul", name="a"),))
    with pytest.raises(PlanError, match="op 'a' is of kind 'matmul'"):
        dp_only_devices(make_mask(Problem(graph=graph, cluster=problem.cluster)))
    graph = DataflowGraph(name="g", ops=(Op(kind="grad", name="grad"),))
    with pytest.raises(PlanError, match="'grad' has none"):
        dp_only_devices(make_mask(Problem(graph=graph, cluster=problem.cluster)))
    ops = tuple(Op(kind="rollout", name=f"rollout[{k},0]", group="all") for k in range(2))
    graph = DataflowGraph(name="g", ops=ops, groups=(Group("all"),))
    with pytest.raises(PlanError, match=r"are shards \[0, 1\]"):
        dp_only_devices(make_mask(Problem(graph=graph, cluster=problem.cluster)))


def test_what_does_not_fit_is_refused():
    with pytest.raises(CapacityError, match="the state of the groups on device 'd0'"):
        dp_only_devices(make_mask(job(memory=12)))
    with pytest.raises(PlanError, match="without a link"):
        dp_only_devices(make_mask(job(links=False)))
    assert np.unique(dp_only_devices(make_mask(job()))).tolist() == [0, 1]
