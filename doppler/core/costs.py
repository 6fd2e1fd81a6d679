"""Costs: how long each op takes on each device, in the form that engines and planners read."""

from dataclasses import dataclass

from doppler.core.errors import GraphError
from doppler.core.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times of one graph on one cluster.

    Attributes:
        op_ns: op_ns[op][device], time from kernel entry to return with idle siblings.
        slowdown_permille: Per op, extra time in 1/1000 for every busy sibling device (a device
            cut from the same parent) when the op starts: duration = op_ns * (1000 +
            busy * slowdown) // 1000. 0 = no interference.
        dispatch_ns: Per device, the runtime's own cost that its stream pays before each op.
    """

    op_ns: tuple[tuple[int, ...], ...]
    slowdown_permille: tuple[int, ...] = ()
    dispatch_ns: tuple[int, ...] = ()


def make_costs(
    problem: Problem,
    op_ns: tuple[tuple[int, ...], ...],
    slowdown_permille: tuple[int, ...] | None = None,
    dispatch_ns: tuple[int, ...] | None = None,
) -> Costs:
    """Returns costs with defaults filled in, checked against the problem.

    Raises:
        GraphError: If a shape is wrong or a time is negative; names op and device.
    """
    num_ops, num_devices = problem.graph.num_ops, problem.cluster.num_devices
    slow = (0,) * num_ops if slowdown_permille is None else slowdown_permille
    dispatch = (0,) * num_devices if dispatch_ns is None else dispatch_ns
    for label, values, expected in (
        ("op_ns", op_ns, num_ops),
        ("slowdown_permille", slow, num_ops),
        ("dispatch_ns", dispatch, num_devices),
    ):
        if len(values) != expected:
            raise GraphError(f"{label} has {expected} entries, and it has {len(values)}")
    for op, row in enumerate(op_ns):
        if len(row) != num_devices:
            raise GraphError(
                f"op_ns has one time per device ({num_devices}), and op "
                f"{problem.graph.ops[op].name!r} has {len(row)}"
            )
        for device, value in enumerate(row):
            if value < 0:
                raise GraphError(
                    f"times are at least 0 ns, and op {problem.graph.ops[op].name!r} takes "
                    f"{value} on {problem.cluster.devices[device].name!r}"
                )
    if min(slow, default=0) < 0 or min(dispatch, default=0) < 0:
        raise GraphError("slowdown_permille and dispatch_ns are at least 0, and one is negative")
    return Costs(op_ns=op_ns, slowdown_permille=slow, dispatch_ns=dispatch)
