"""What a copy needs, by hand: three shards of two steps, one trainer."""

import itertools

import pytest

from doppler.coordinator.measured_roles import measured_roles
from doppler.coordinator.resource_model import Dominant
from doppler.core.cluster import Cluster, Device
from doppler.core.costs import make_costs
from doppler.core.errors import PlanError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem

TIMES = {"env_step": 10, "infer": 4, "grad": 6, "broadcast": 3}
OUTPUTS = {"env_step": (40, 5, 1), "infer": (7, 9), "grad": (100,), "broadcast": (64,)}


def job(kinds=("env_step", "infer"), extra=("grad", "broadcast"), memory=10**6, sizes=None):
    """Kinds with coordinates [shard, step], and those that are there once.

    An agent acts on the state of the step before, an environment on the actions, each agent's
    larger output.
    """
    sizes = OUTPUTS if sizes is None else sizes
    names = [(kind, f"{kind}[{k},{t}]") for k in range(3) for t in range(2) for kind in kinds]
    names += [(kind, f"{kind}[0]") for kind in extra]
    ops = [Op(kind="input", name="x", outputs=(8,))]
    ops += [Op(kind=kind, name=name, outputs=sizes.get(kind, (1,))) for kind, name in names]
    at = {op.name: index for index, op in enumerate(ops)}
    action = sizes["infer"].index(max(sizes["infer"]))
    edges = []
    for k, t in itertools.product(range(3), range(2)):
        env, agent = at.get(f"env_step[{k},{t}]"), at.get(f"infer[{k},{t}]")
        if env is not None and agent is not None:
            edges += [Edge(agent, action, env), Edge(env, 0, agent, 1)]
    graph = DataflowGraph(name="job", ops=tuple(ops), edges=tuple(edges))
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent="p", memory_bytes=memory) for i in "01")
    problem = Problem(graph=graph, cluster=Cluster(name="c", devices=devices))
    rows = tuple((TIMES.get(op.kind, 0), 999) for op in ops)
    return problem, make_costs(problem, rows)


def test_a_copy_is_one_shard_with_its_part_of_the_training():
    """Per shard: 2 x 10 of environment, 2 x 4 of agent, (6 + 3) / 3 of training, on device 0."""
    found = measured_roles(*job(), num_cores=4)
    profile = found.profile
    assert found.num_copies == 3
    assert (profile.t_sim_ns, profile.t_agent_ns, profile.t_train_ns) == (20, 8, 3)
    assert (profile.state_bytes, profile.action_bytes, profile.reward_bytes) == (40, 9, 6)
    assert (profile.policy_bytes, profile.horizon) == (64, 2)
    assert profile.share_agent == 8 / 20
    assert profile.share_train == 3 / 28
    assert found.dominant is Dominant.compute
    assert (profile.r_sim, profile.r_agent, profile.r_train) == (0.25, 0.25, 0.25)


def test_actions_are_what_environments_read_wherever_they_stand():
    sizes = {**OUTPUTS, "infer": (9,)}
    assert measured_roles(*job(sizes=sizes), num_cores=4).profile.action_bytes == 9
    sizes = {**OUTPUTS, "infer": (9, 7)}
    assert measured_roles(*job(sizes=sizes), num_cores=4).profile.action_bytes == 9


def test_where_memory_is_scarce_it_is_what_counts():
    """A copy holds 2 x 46, 2 x 16 and 164 / 3 bytes of the 500 of both devices: over a third."""
    found = measured_roles(*job(memory=250), num_cores=4)
    assert found.dominant is Dominant.memory
    expected = (92 / 500, 32 / 500, 164 / 3 / 500)
    profile = found.profile
    assert (profile.r_sim, profile.r_agent, profile.r_train) == pytest.approx(expected)


def test_without_a_policy_to_send_none_is_counted():
    assert measured_roles(*job(extra=("grad",)), num_cores=4).profile.policy_bytes == 0


@pytest.mark.parametrize("kinds", [("env_step",), ("infer",)])
def test_environments_and_agents_are_both_needed(kinds):
    with pytest.raises(PlanError, match="environments and agents as ops of their own"):
        measured_roles(*job(kinds), num_cores=4)


def test_an_op_without_a_role_is_refused():
    with pytest.raises(PlanError, match=r"op 'matmul\[0\]' of kind 'matmul' has no role"):
        measured_roles(*job(extra=("matmul",)), num_cores=4)
