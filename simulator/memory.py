"""Bytes in use and their peaks, per device."""

from collections.abc import Sequence

from doppler.core.graph import InputResidency
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.program import Program


class Memory:
    """Counts what is allocated; peaks are taken when a round is over.

    Attributes:
        used_bytes, peak_bytes: Per device.
    """

    def __init__(self, problem: Problem, plan: Plan, program: Program) -> None:
        self._outputs = [op.outputs for op in problem.graph.ops]
        self.used_bytes = _resident_bytes(problem, plan)
        self.peak_bytes = [0] * len(self.used_bytes)
        for device, table in enumerate(program.devices):
            for (op, output), count in table.initial_versions.items():
                self.used_bytes[device] += count * self._outputs[op][output]

    def allocate(self, device: int, op: int, outputs: Sequence[int]) -> None:
        """Adds the bytes of some outputs of an op."""
        self.used_bytes[device] += sum(self._outputs[op][output] for output in outputs)

    def allocate_all(self, device: int, op: int) -> None:
        """Adds the bytes of all outputs of an op that starts."""
        self.allocate(device, op, range(len(self._outputs[op])))

    def free(self, device: int, op: int, output: int) -> None:
        """Takes the bytes of one output away."""
        self.used_bytes[device] -= self._outputs[op][output]

    def end_round(self) -> None:
        """Takes the peaks."""
        self.peak_bytes = [
            max(peak, used) for peak, used in zip(self.peak_bytes, self.used_bytes, strict=True)
        ]


def _resident_bytes(problem: Problem, plan: Plan) -> list[int]:
    """Group state, and inputs that are resident everywhere once per device that reads them."""
    graph = problem.graph
    used = [0] * problem.cluster.num_devices
    for group in graph.groups:
        if members := graph.group_members[group.name]:
            used[plan.placement[members[0]]] += group.state_bytes
    if graph.inputs is InputResidency.everywhere:
        reads = {
            (edge.src, edge.output, plan.placement[edge.dst])
            for edge in graph.edges
            if graph.ops[edge.src].is_input
        }
        for op, output, device in reads:
            used[device] += graph.ops[op].outputs[output]
    return used
