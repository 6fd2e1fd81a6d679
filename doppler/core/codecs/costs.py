"""JSON of costs: one row of times per op name, in the order of the listed devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from doppler.core.codecs.digests import check_digests
from doppler.core.codecs.fields import decode, expect_keys
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import FormatError
from doppler.core.problem import Problem

KEYS = ("graph_digest", "cluster_digest", "devices", "op_ns", "slowdown_permille", "dispatch_ns")


def encode_costs(costs: Costs, problem: Problem) -> dict[str, Any]:
    """Returns the body of a costs document."""
    names = [op.name for op in problem.graph.ops]
    devices = [device.name for device in problem.cluster.devices]
    return {
        "graph_digest": problem.graph.digest,
        "cluster_digest": problem.cluster.digest,
        "devices": devices,
        "op_ns": {name: list(row) for name, row in zip(names, costs.op_ns, strict=True)},
        "slowdown_permille": dict(zip(names, costs.slowdown_permille, strict=True)),
        "dispatch_ns": dict(zip(devices, costs.dispatch_ns, strict=True)),
    }


def decode_costs(document: Mapping[str, Any], problem: Problem, where: str) -> Costs:
    """Returns the costs of a document.

    Raises:
        FormatError: If a key, a name or a type is wrong, or devices stand in another order.
        PlanError: If the costs are for another graph or cluster.
        GraphError: If a row has a wrong length or a time is negative.
    """
    check_digests(document, problem, "table of costs", where)
    names = [op.name for op in problem.graph.ops]
    devices = [device.name for device in problem.cluster.devices]
    if document["devices"] != devices:
        raise FormatError(
            f"{where}: devices lists the devices of the cluster in order ({', '.join(devices)}), "
            f"and the document has {document['devices']!r}"
        )
    return make_costs(
        problem,
        op_ns=_by_name(document, "op_ns", names, tuple[int, ...], where),
        slowdown_permille=_by_name(document, "slowdown_permille", names, int, where),
        dispatch_ns=_by_name(document, "dispatch_ns", devices, int, where),
    )


def _by_name(
    document: Mapping[str, Any], key: str, names: Sequence[str], hint: Any, where: str
) -> tuple[Any, ...]:
    values = expect_keys(document[key], names, f"{where}: {key}")
    return tuple(decode(hint, values[name], f"{where}: {key}.{name}") for name in names)
