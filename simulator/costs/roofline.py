"""The roofline model: an op is bound by arithmetic or by memory, whichever takes longer."""

from doppler.core.cluster import NS_PER_S
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import ClusterError
from doppler.core.problem import Problem


class RooflineModel:
    """Times from each device's peak rates.

    time = launch_ns + max(flop / flop_per_s, bytes_moved / memory_bytes_per_s), rounded up.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """

    def costs(self, problem: Problem) -> Costs:
        """Returns the times of every op on every device.

        Raises:
            ClusterError: If an op has work of a kind whose rate a device does not name.
        """
        for device in problem.cluster.devices:
            for rate, work in (("flop_per_s", "flop"), ("memory_bytes_per_s", "bytes_moved")):
                needed = any(getattr(op, work) and not op.is_input for op in problem.graph.ops)
                if needed and not getattr(device, rate):
                    raise ClusterError(
                        f"the roofline needs {rate} of every device, and {device.name!r} of "
                        f"cluster {problem.cluster.name!r} names none: add it, or give a cost file"
                    )
        rows = []
        for op in problem.graph.ops:
            row = []
            for device in problem.cluster.devices:
                if op.is_input:
                    row.append(0)
                    continue
                compute = -(-op.flop * NS_PER_S // device.flop_per_s) if op.flop else 0
                memory = (
                    -(-op.bytes_moved * NS_PER_S // device.memory_bytes_per_s)
                    if op.bytes_moved
                    else 0
                )
                row.append(device.launch_ns + max(compute, memory))
            rows.append(tuple(row))
        return make_costs(problem, tuple(rows))
