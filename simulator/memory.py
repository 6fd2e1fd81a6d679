"""Bytes in use and their peaks, per device, and what happens above a limit."""

import enum
from collections.abc import Sequence

from doppler.core.errors import CapacityError
from doppler.core.plan import Plan, resident_bytes
from doppler.core.problem import Problem
from doppler.core.program import Program

MIB = 1 << 20


class OverLimit(enum.Enum):
    """What a runtime does with a plan that needs more memory than a device has.

    Attributes:
        error: Raises a `CapacityError` that names op, device and bytes.
        report: Goes on; the trace's peaks tell.
    """

    error = "error"
    report = "report"


class Memory:
    """Counts what is allocated; peaks are taken when a round is over.

    Attributes:
        used_bytes, peak_bytes: Per device.
    """

    def __init__(self, problem: Problem, plan: Plan, program: Program) -> None:
        self._problem = problem
        # Per device the last op whose bytes came in this round.
        self._latest: dict[int, int] = {}
        self._outputs = [op.outputs for op in problem.graph.ops]
        self.used_bytes = resident_bytes(problem, plan)
        self.peak_bytes = [0] * len(self.used_bytes)
        for device, table in enumerate(program.devices):
            for (op, output), count in table.initial_versions.items():
                self.used_bytes[device] += count * self._outputs[op][output]

    def allocate(self, device: int, op: int, outputs: Sequence[int]) -> None:
        """Adds the bytes of some outputs of an op."""
        self._latest[device] = op
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
        self._latest.clear()

    def check(self, now_ns: int) -> None:
        """Checks what is in use at the end of a round.

        Raises:
            CapacityError: Names the device, its limit, the bytes, the time and the op whose
                tensors came last.
        """
        for device, used in enumerate(self.used_bytes):
            limit = self._problem.memory_limit_bytes(device)
            if used > limit:
                last = self._latest.get(device)
                cause = "what lies there from the start"
                if last is not None:
                    cause = f"the outputs of op {last} ({self._problem.graph.ops[last].name!r})"
                raise CapacityError(
                    f"device {self._problem.cluster.devices[device].name!r} has {limit} bytes, and "
                    f"at {now_ns} ns it holds {used} with {cause}"
                )


def overflow_penalty_ns(problem: Problem, peak_bytes: Sequence[int], ns_per_mib: int) -> int:
    """Returns what the bytes above the limits of all devices cost, rounded up to a nanosecond.

    Added to the objective it lets a search pass through plans that do not fit.
    """
    over = sum(
        max(peak - problem.memory_limit_bytes(device), 0) for device, peak in enumerate(peak_bytes)
    )
    return -(-over * ns_per_mib // MIB)
