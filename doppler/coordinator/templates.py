"""GMI-DRL's mapping templates on the PPO job's graph.

DP-only: every device holds environments, an agent and a trainer; the gradient all-reduce is the
only traffic between devices.

Source: GMI-DRL, mapping templates (table of DP-only, synchronous training).
"""

import re

import numpy as np

from doppler.core.errors import PlanError
from doppler.core.graph import DataflowGraph, Op
from doppler.graphs.collective_ops import FORWARD_KIND, REDUCE_KIND
from doppler.planners.mask import Ints, Mask

# Which coordinate of "kind[a,b,c]" is the shard that is dealt out to the devices: environment
# shards by their first coordinate, gradient parts and segments by their last. Where an all-reduce
# is spelled out, the last one is the trainer where it wants the op. None = device 0.
SHARD_COORDINATE: dict[str, int | None] = {
    "rollout": 0,
    "infer": 0,
    "env_step": 0,
    "advantage": 0,
    "grad": -1,
    REDUCE_KIND: -1,
    FORWARD_KIND: -1,
    "reduce": -1,
    "adam": -1,
    "collect": None,
    "broadcast": None,
}

_COORDINATES = re.compile(r"\[(\d+(?:,\d+)*)\]$")


def has_roles(graph: DataflowGraph) -> bool:
    """True if templates can map a graph: every op is of a kind of a deep-RL job."""
    return all(graph.ops[op].kind in SHARD_COORDINATE for op in graph.placeable)


def dp_only_devices(mask: Mask) -> Ints:
    """Returns the DP-only device per unit, int64[U]: shard s of every role on its device s mod D.

    D counts the devices that the unit may use, so pins and device kinds hold.

    Raises:
        PlanError: If an op has no role in the template, or a link is missing.
        CapacityError: If the mapping puts more state on a device than it may hold.
    """
    problem = mask.problem
    devices_U = np.zeros(mask.num_units, dtype=np.int64)
    for unit, members in enumerate(mask.members):
        shards = {shard_of(problem.graph.ops[op]) for op in members}
        if len(shards) > 1:
            names = ", ".join(repr(problem.graph.ops[op].name) for op in members[:4])
            raise PlanError(
                f"template 'dp_only' gives a colocation group to one shard, and ops {names} of one "
                f"group are shards {sorted(shards)}"
            )
        allowed = np.flatnonzero(mask.allowed_UD[unit])
        devices_U[unit] = allowed[shards.pop() % len(allowed)]
    if not mask.is_legal(devices_U):
        problem.check_resident_memory(tuple(mask.placement(devices_U).tolist()))
        raise PlanError(
            f"template 'dp_only' joins devices without a link in cluster {problem.cluster.name!r}"
        )
    return devices_U


def shard_of(op: Op) -> int:
    """Returns the shard of its role that an op belongs to.

    Raises:
        PlanError: If the op is of no kind of a deep-RL job, or its name has no coordinates.
    """
    if op.kind not in SHARD_COORDINATE:
        raise PlanError(
            f"mapping templates take deep-RL jobs (kinds {', '.join(SHARD_COORDINATE)}), and op "
            f"{op.name!r} is of kind {op.kind!r}"
        )
    coordinate = SHARD_COORDINATE[op.kind]
    match = _COORDINATES.search(op.name)
    if coordinate is None:  # one for all; where every trainer has its own, that of the trainer
        return int(match.group(1).split(",")[-1]) if match else 0
    if match is None:
        raise PlanError(
            f"mapping templates read the shard in an op's name, and {op.name!r} has none"
        )
    return int(match.group(1).split(",")[coordinate])
