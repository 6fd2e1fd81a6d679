"""What the roles of a job need, from measured op times: the input of the resource model.

A copy is one environment shard with its agent and its part of the training. Its times are those of
its ops on one core, and each of its roles takes one core; resources are parts of the processor.

Source: GMI-DRL, eq. 1 and table 1. Ours is how much of an agent (a trainer) one copy uses where
several share one: its time over the time until the copy needs the agent (the trainer) again.
"""

from dataclasses import dataclass

from doppler.coordinator.resource_model import Dominant, RoleProfile, dominant
from doppler.coordinator.variants import AGENT, ENVIRONMENT, ROLE, TRAINER
from doppler.core.costs import Costs
from doppler.core.errors import PlanError
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Problem


@dataclass(frozen=True, slots=True)
class MeasuredRoles:
    """The profile of one copy on one processor.

    Attributes:
        profile: What its roles need; resources are parts of the processor.
        dominant: The resource that they are parts of.
        num_copies: Copies that the job consists of.
    """

    profile: RoleProfile
    dominant: Dominant
    num_copies: int


def measured_roles(problem: Problem, costs: Costs, num_cores: int) -> MeasuredRoles:
    """Returns what one copy of a job needs.

    Args:
        problem: The job with environment and agent as ops of their own; device 0 is one core.
        costs: Measured times.
        num_cores: Cores of the processor.

    Raises:
        PlanError: If the graph has no `env_step` and `infer` ops that read each other, or an op of
            no role.
    """
    graph = problem.graph
    state_bytes = _bytes_read(graph, "env_step", "infer")
    action_bytes = _bytes_read(graph, "infer", "env_step")
    shards = {op.name.partition("[")[2].split(",")[0] for op in graph.ops if op.kind == "env_step"}
    if not state_bytes or not action_bytes:
        raise PlanError(
            f"the resource model needs environments and agents as ops of their own that read each "
            f"other, and in graph {graph.name!r} 'infer' ops read {state_bytes} bytes of an "
            f"'env_step' op, which reads {action_bytes} bytes of theirs"
        )
    time_ns = dict.fromkeys((ENVIRONMENT, AGENT, TRAINER), 0)
    num_bytes = dict.fromkeys(time_ns, 0)
    for op, row in zip(graph.ops, costs.op_ns, strict=True):
        if op.is_input:
            continue
        if op.kind not in ROLE:
            raise PlanError(f"op {op.name!r} of kind {op.kind!r} has no role in the templates")
        time_ns[ROLE[op.kind]] += row[0]
        num_bytes[ROLE[op.kind]] += sum(op.outputs)
    copies = len(shards)
    sim_ns, agent_ns, train_ns = (t // copies for t in time_ns.values())
    memory = problem.cluster.devices[0].memory_bytes * problem.cluster.num_devices
    parts = {
        Dominant.compute: dict.fromkeys(time_ns, 1 / num_cores),
        Dominant.memory: {role: n / copies / max(1, memory) for role, n in num_bytes.items()},
    }
    which = dominant(max(parts[Dominant.compute].values()), sum(parts[Dominant.memory].values()))
    step = {op.kind: op for op in graph.ops}
    policy = step.get("broadcast")
    return MeasuredRoles(
        profile=RoleProfile(
            r_sim=parts[which][ENVIRONMENT],
            r_agent=parts[which][AGENT],
            r_train=parts[which][TRAINER],
            t_sim_ns=sim_ns,
            t_agent_ns=agent_ns,
            t_train_ns=train_ns,
            state_bytes=state_bytes,
            action_bytes=action_bytes,
            reward_bytes=sum(step["env_step"].outputs) - state_bytes,
            policy_bytes=policy.outputs[0] if policy is not None else 0,
            horizon=sum(op.kind == "env_step" for op in graph.ops) // copies,
            share_agent=min(1.0, agent_ns / max(1, sim_ns)),
            share_train=min(1.0, train_ns / max(1, sim_ns + agent_ns)),
        ),
        dominant=which,
        num_copies=copies,
    )


def _bytes_read(graph: DataflowGraph, kind: str, reader: str) -> int:
    """Bytes of one op of a kind that ops of another kind read; 0 if they read nothing of it."""
    read = {
        (edge.src, edge.output)
        for edge in graph.edges
        if graph.ops[edge.src].kind == kind and graph.ops[edge.dst].kind == reader
    }
    last = max((op for op, _ in read), default=None)
    return sum(graph.ops[op].outputs[output] for op, output in read if op == last)
