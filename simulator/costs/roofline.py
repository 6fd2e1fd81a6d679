"""The roofline model: an op is bound by arithmetic or by memory, whichever takes longer.

Sources: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", CACM 52(4), 2009; saturation: Hockney and Jesshope, "Parallel Computers",
1981, section 1.3 (asymptotic rate and half-performance length).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from doppler.core.cluster import NS_PER_S, Device
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import ClusterError
from doppler.core.graph import Op
from doppler.core.hardware import Hardware
from doppler.core.problem import Problem
from simulator.costs.source import OpTime, UnknownTimeError

TILE_FLOP = 2 * 128 * 128 * 32
"""Work that keeps one multiprocessor half busy: one 128 x 128 output tile over 32 inner steps.

Source of the tile: NVIDIA, "Matrix Multiplication Background User's Guide", section on tiles; the
number of steps is an estimate: calibrate it.
"""
MEMORY_LATENCY_NS = 500
"""Time of a load from device memory. By Little's law latency x bandwidth bytes are in flight before
the bandwidth is reached: Volkov, "Understanding Latency Hiding on GPUs", 2016. An estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Sizes at which an op reaches half of the peak of a whole processor.

    Attributes:
        half_flop: Of the arithmetic rate.
        half_bytes: Of the memory bandwidth.
    """

    half_flop: int
    half_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineModel:
    """Times from each device's peak rates.

    With n flop (or bytes), peak rate r and half-performance size h of the device, the rate reached
    is r * n / (n + h), so that

        time = launch_ns + max((flop + h_flop) / flop_per_s,
                               (bytes + h_bytes) / memory_bytes_per_s),

    each quotient rounded up, and 0 where there is no work. A device with part `share` of its
    processor has that part of the peak and of h: what a small op loses is the same time on any
    share, so that several small devices serve small ops better than one large device.

    Attributes:
        saturation: Processor name -> half-performance sizes; none = peak at any size.
    """

    saturation: Mapping[str, Saturation] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called where its answers are listed."""
        return "roofline"

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
        rows = tuple(
            tuple(
                0 if op.is_input else device.launch_ns + max(self._bounds_ns(op, device))
                for device in problem.cluster.devices
            )
            for op in problem.graph.ops
        )
        return make_costs(problem, rows)

    def op_time(self, op: Op, device: Device) -> OpTime:
        """Returns the time of an op on a device.

        Raises:
            UnknownTimeError: If the device does not name a rate that the op needs.
        """
        for rate, work in (("flop_per_s", op.flop), ("memory_bytes_per_s", op.bytes_moved)):
            if work and not getattr(device, rate):
                raise UnknownTimeError(f"device {device.name!r} names no {rate}")
        compute, memory = self._bounds_ns(op, device)
        bound = "arithmetic" if compute >= memory else "memory"
        if device.launch_ns > max(compute, memory):
            bound = "the launch"
        return OpTime(
            time_ns=device.launch_ns + max(compute, memory),
            slowdown_permille=0,
            detail=f"bound by {bound}",
        )

    def _bounds_ns(self, op: Op, device: Device) -> tuple[int, int]:
        """Time that the arithmetic takes, and time that the memory takes."""
        half = self.saturation.get(device.parent)
        half_flop = 0 if half is None else round(half.half_flop * device.share)
        half_bytes = 0 if half is None else round(half.half_bytes * device.share)
        return (
            _quotient_ns(op.flop, half_flop, device.flop_per_s),
            _quotient_ns(op.bytes_moved, half_bytes, device.memory_bytes_per_s),
        )

    def dispatch_of(self, device: Device) -> int | None:
        """A roofline knows nothing of the runtime."""
        return None


def saturation_of(hardware: Hardware) -> dict[str, Saturation]:
    """Returns the half-performance sizes of the GPUs of some hardware; CPUs saturate at any size.

    half_flop = multiprocessors x TILE_FLOP, half_bytes = MEMORY_LATENCY_NS x bandwidth.
    """
    return {
        processor.name: Saturation(
            half_flop=processor.num_units * TILE_FLOP,
            half_bytes=processor.memory_bytes_per_s * MEMORY_LATENCY_NS // NS_PER_S,
        )
        for processor in hardware.processors
        if processor.kind == "gpu"
    }


def _quotient_ns(work: int, half: int, per_s: int) -> int:
    return -(-(work + half) * NS_PER_S // per_s) if work else 0
