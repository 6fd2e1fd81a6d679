"""JSON of a plan: op name -> device name, op name -> priority."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from doppler.core.codecs.digests import check_digests
from doppler.core.codecs.fields import (
    decode_scalar,
    expect_list,
    expect_object,
    look_up,
)
from doppler.core.errors import FormatError, PlanError
from doppler.core.graph import InputResidency
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Problem

KEYS = ("source", "graph_digest", "cluster_digest", "placement", "priority", "holds")


def encode_plan(plan: Plan, problem: Problem) -> dict[str, Any]:
    """Returns the body of a plan document.

    Inputs that are resident everywhere have no device, so they stand in it only if they hold
    something else than 0.

    Raises:
        PlanError: If the plan does not fit the problem.
    """
    check_plan(problem, plan)
    graph, devices = problem.graph, problem.cluster.devices
    unread = _unread_inputs(problem)
    placement = {
        op.name: devices[plan.placement[index]].name
        for index, op in enumerate(graph.ops)
        if index not in unread or plan.placement[index]
    }
    priority = {
        op.name: plan.priority[index]
        for index, op in enumerate(graph.ops)
        if index not in unread or plan.priority[index]
    }
    return {
        "source": plan.source,
        "graph_digest": plan.graph_digest,
        "cluster_digest": plan.cluster_digest,
        "placement": placement,
        "priority": priority,
        "holds": [[graph.ops[before].name, graph.ops[after].name] for before, after in plan.holds],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNames:
    """A plan as its document has it, of whatever graph and cluster.

    Attributes:
        devices: Name of the device by op name.
        priorities: Priority by op name.
    """

    devices: dict[str, str]
    priorities: dict[str, int]


def decode_names(document: Mapping[str, Any], where: str) -> PlanNames:
    """Returns the names of a plan document, checked against nothing.

    Raises:
        FormatError: If a type is wrong.
    """
    return PlanNames(
        devices={
            op: decode_scalar(str, device, f"{where}: placement.{op}")
            for op, device in expect_object(document["placement"], f"{where}: placement").items()
        },
        priorities={
            op: decode_scalar(int, value, f"{where}: priority.{op}")
            for op, value in expect_object(document["priority"], f"{where}: priority").items()
        },
    )


def decode_plan(document: Mapping[str, Any], problem: Problem, where: str) -> Plan:
    """Returns the plan of a document, checked against its problem.

    Raises:
        FormatError: If a key or a type is wrong or a name is unknown.
        PlanError: If the plan is for another graph or cluster, leaves an op out, or breaks a rule.
    """
    check_digests(document, problem, "plan", where)
    ids = problem.graph.op_ids
    placement = {
        look_up(ids, op, "op", f"{where}: placement"): look_up(
            problem.cluster.device_ids, device, "device", f"{where}: placement.{op}"
        )
        for op, device in expect_object(document["placement"], f"{where}: placement").items()
    }
    priority = {
        look_up(ids, op, "op", f"{where}: priority"): decode_scalar(
            int, value, f"{where}: priority.{op}"
        )
        for op, value in expect_object(document["priority"], f"{where}: priority").items()
    }
    unread = _unread_inputs(problem)
    for index, op in enumerate(problem.graph.ops):
        for label, values in (("placement", placement), ("priority", priority)):
            if index not in values and index not in unread:
                raise PlanError(f"{where}: {label} has every op, and it lacks {op.name!r}")
    plan = Plan(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        placement=tuple(placement.get(op, 0) for op in range(problem.graph.num_ops)),
        priority=tuple(priority.get(op, 0) for op in range(problem.graph.num_ops)),
        holds=_decode_holds(document["holds"], ids, f"{where}: holds"),
        source=decode_scalar(str, document["source"], f"{where}: source"),
    )
    check_plan(problem, plan)
    return plan


def _unread_inputs(problem: Problem) -> frozenset[int]:
    if problem.graph.inputs is not InputResidency.everywhere:
        return frozenset()
    return frozenset(index for index, op in enumerate(problem.graph.ops) if op.is_input)


def _decode_holds(value: Any, ids: Mapping[str, int], where: str) -> tuple[tuple[int, int], ...]:
    holds: list[tuple[int, int]] = []
    for index, row in enumerate(expect_list(value, where)):
        pair = expect_list(row, f"{where}[{index}]")
        if len(pair) != 2:
            raise FormatError(
                f"{where}[{index}] is [before, after], and it has {len(pair)} entries"
            )
        before, after = (look_up(ids, name, "op", f"{where}[{index}]") for name in pair)
        holds.append((before, after))
    return tuple(holds)
