"""What every pair of policies must do; `check_policy` raises AssertionError with the rule."""

import dataclasses

import numpy as np

from doppler.core.cluster import Cluster
from doppler.core.costs import make_costs
from doppler.core.graph import DataflowGraph, Edge
from doppler.core.problem import Problem
from doppler.policies.build import build_assignment
from doppler.policies.dual import policy_inputs
from doppler.policies.sampling import SampleMode, Temperature
from tests.policies.problems import layered

TOLERANCE = 1e-5


def check_policy(policy):
    """Checks shapes, candidates, masks, equal log-probabilities, and relabelling."""
    for seed, groups, num_devices in ((0, 0, 3), (1, 2, 2), (2, 0, 1), (3, 1, 5)):
        pair = layered(seed, groups=groups, num_devices=num_devices)
        inputs = policy_inputs(build_assignment(*pair), policy.config)
        rollouts = policy.sample(
            inputs,
            6,
            np.random.default_rng(seed),
            temperature=Temperature(select=0.7, place=1.3),
        )
        check_episodes(inputs.assignment, rollouts)
        check_log_probs(policy, inputs, rollouts)
        check_op_relabelling(policy, pair, rollouts, seed)
        check_device_relabelling(policy, pair, rollouts, seed)
        greedy = policy.sample(inputs, 2, np.random.default_rng(0), mode=SampleMode.greedy)
        again = policy.replay(inputs, greedy.orders, greedy.devices)
        check_episodes(inputs.assignment, again)
        assert (again.spans == greedy.spans).all(), "a plan is as long as its replay"
        assert (greedy.orders[0] == greedy.orders[1]).all(), "greedy episodes are equal"


def check_episodes(assignment, rollouts):
    """Every op once, after its producers, on an allowed device; candidates are what they say."""
    batch, num_ops = rollouts.orders.shape
    for row in range(batch):
        order = rollouts.orders[row].tolist()
        assert sorted(order) == list(range(num_ops)), "every op is selected once"
        step_of = {op: step for step, op in enumerate(order)}
        for op in range(num_ops):
            sources = assignment.in_src[assignment.in_ptr[op] : assignment.in_ptr[op + 1]]
            arrival = max((step_of[src] + 1 for src in sources.tolist()), default=0)
            assert rollouts.arrivals[row, op] == arrival, "a candidate has all producers placed"
            assert step_of[op] >= arrival, "probability 0 outside the candidate set"
        for step, op in enumerate(order):
            device = rollouts.devices[row, step]
            assert rollouts.masks[row, step, device], "the device is in the mask"
            assert assignment.allowed[op, device], "kinds and pins are obeyed"
            assert not (rollouts.teacher[row, step] & ~rollouts.masks[row, step]).any()
            assert rollouts.teacher[row, step].any(), "the teacher has a label"
        homes = {}
        for step, op in enumerate(order):
            group = int(assignment.group[op])
            if group >= 0:
                assert (
                    homes.setdefault(group, rollouts.devices[row, step])
                    == (rollouts.devices[row, step])
                ), "a group shares a device"
    assert np.allclose(rollouts.teacher_select.sum(axis=1), num_ops), "one label per step"


def check_log_probs(policy, inputs, rollouts):
    """Sampler and network agree on every decision (trap 13)."""
    decisions = policy.decide(inputs, policy.encode(inputs), rollouts)
    for label, ours, theirs in (
        ("SEL", decisions.select, rollouts.select_log_probs),
        ("PLC", decisions.place, rollouts.place_log_probs),
    ):
        difference = np.abs(ours.detach().numpy() - theirs).max()
        assert difference < TOLERANCE, f"{label}: sampler and network differ by {difference}"


def check_op_relabelling(policy, pair, rollouts, seed):
    """Renaming the ops changes no log-probability."""
    problem, costs = pair
    graph = problem.graph
    new_id = np.random.default_rng(seed).permutation(graph.num_ops)
    ops = [None] * graph.num_ops
    op_ns = [None] * graph.num_ops
    for op, new in enumerate(new_id):
        ops[new], op_ns[new] = graph.ops[op], costs.op_ns[op]
    edges = tuple(
        Edge(int(new_id[e.src]), e.output, int(new_id[e.dst]), e.distance, e.mode)
        for e in reversed(graph.edges)
    )
    other = DataflowGraph(name="other", ops=tuple(ops), edges=edges, groups=graph.groups)
    renamed = Problem(graph=other, cluster=problem.cluster)
    inputs = policy_inputs(
        build_assignment(renamed, make_costs(renamed, tuple(op_ns))), policy.config
    )
    _check_same(policy, inputs, new_id[rollouts.orders], rollouts.devices, rollouts, "op")


def check_device_relabelling(policy, pair, rollouts, seed):
    """Renaming the devices changes no log-probability."""
    problem, costs = pair
    cluster = problem.cluster
    new_id = np.random.default_rng(seed + 9).permutation(cluster.num_devices)
    devices = [None] * cluster.num_devices
    for device, new in enumerate(new_id):
        devices[new] = cluster.devices[device]
    other = Cluster(name="other", devices=tuple(devices), links=cluster.links)
    renamed = Problem(graph=problem.graph, cluster=other)
    old_id = np.argsort(new_id)
    op_ns = tuple(tuple(row[old] for old in old_id) for row in costs.op_ns)
    inputs = policy_inputs(build_assignment(renamed, make_costs(renamed, op_ns)), policy.config)
    _check_same(policy, inputs, rollouts.orders, new_id[rollouts.devices], rollouts, "device")


def _check_same(policy, inputs, orders, devices, rollouts, label):
    again = policy.replay(inputs, orders, devices, rollouts.temperature)
    for field in dataclasses.fields(rollouts):
        if field.name in ("select_log_probs", "place_log_probs"):
            ours, theirs = getattr(again, field.name), getattr(rollouts, field.name)
            difference = np.abs(ours - theirs).max()
            assert difference < TOLERANCE, f"{label} names change {field.name} by {difference}"
