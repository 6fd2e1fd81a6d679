"""Ways for GMIs to communicate, chosen by simulation and then by measuring the best of them.

What is measured runs in processes of its own, on the devices of the GMIs that will communicate,
before any of these starts (`doppler.gmi_trial`), until the fastest is surely that
(`doppler.gmi_duel`), or for `TrialOptions.seconds`; what is not decided then is left to the
simulation, which also decides among equals.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.collective import AllReduceSchedule
from doppler.core.costs import make_costs
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.gmi_trial import Measured, TrialOptions, run_trial
from doppler.graphs.collective_ops import FORWARD_KIND, REDUCE_KIND, PlanScore, rank_compositions
from doppler.graphs.collectives import candidates, direct
from executor.collectives.shared import AllReduceLayout
from executor.gmi.communication import Collective
from executor.gmi.trials import ReduceTrial
from simulator.runtime import SimPyRuntime

TOP = 3
"""Compositions that are measured, the best simulated ones."""
STEP_NS = 3000
"""What a step of a schedule costs beside its bytes, in the simulation."""
LINK_NS = 1000
COST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionRow:
    """A composition with its times.

    Attributes:
        schedule: The composition.
        simulated_ns: Simulated time of a call.
        measured_ns: Median time of a call, None if it is not among the best simulated ones.
    """

    schedule: AllReduceSchedule
    simulated_ns: int
    measured_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionChoice:
    """Which composition an all-reduce takes, and why.

    Attributes:
        rows: All that were looked at, best simulated first.
        measured: How the first of them were measured; None where there was nothing to choose.
    """

    rows: tuple[CompositionRow, ...]
    measured: Measured | None

    @property
    def schedule(self) -> AllReduceSchedule:
        """The fastest that was measured (see `gmi_duel.judge`); the only one if none was."""
        chosen = 0 if self.measured is None else self.measured.verdict.chosen
        return self.rows[chosen].schedule

    def describe(self) -> str:
        """Returns the figures as text, one composition per line."""
        lines = [f"{self.schedule.name}, of {len(self.rows)}"]
        if self.measured is not None:
            lines[0] += f", {self.measured.describe()}"
            if not self.measured.verdict.is_decided:
                lines[0] += "; undecided: the first by simulation that is not proven slower"
        for row in self.rows:
            measured = "" if row.measured_ns is None else f", measured {row.measured_ns / 1e3:.0f}"
            lines.append(
                f"  {row.schedule.name} ({len(row.schedule.steps)} steps): simulated "
                f"{row.simulated_ns / 1e3:.0f}{measured} us"
            )
        return "\n".join(lines)


def compositions(parents: Sequence[str]) -> tuple[AllReduceSchedule, ...]:
    """Returns what runs in shared memory between members, each schedule once.

    Args:
        parents: Processor of each member. Members of one processor are a group; beside that all
            are taken for one group, and an even number of them for two halves.
    """
    members = list(range(len(parents)))
    half = len(members) // 2
    cuts = [[members], [[m for m in members if parents[m] == p] for p in dict.fromkeys(parents)]]
    if len(members) % 2 == 0 and half > 1:
        cuts.append([members[:half], members[half:]])
    found: dict[object, AllReduceSchedule] = {}
    for groups in cuts:
        for schedule in candidates(groups):
            steps = tuple((step.home, frozenset(step.inputs)) for step in schedule.steps)
            found.setdefault((steps, schedule.results), schedule)
    return tuple(found.values())


def simulated_compositions(
    devices: Sequence[Device], num_bytes: int
) -> tuple[tuple[AllReduceSchedule, int], ...]:
    """Returns every composition with its simulated time in ns, fastest first.

    The cost of a byte is measured, in a few ms, on the core that this process is on. Members that
    are bound to the same cores, or that are more than there are cores, take turns on them.

    Args:
        devices: Device of each member.
        num_bytes: Bytes of one member's part.
    """
    schedules = compositions([device.parent or device.name for device in devices])
    places = _places(devices)
    cluster, score = _host_cluster(max(places) + 1), _simulator(_ns_per_byte())
    ranked = rank_compositions(schedules, cluster, places, num_bytes, score)
    return tuple((choice.schedule, choice.time_ns) for choice in ranked if choice.time_ns)


def choose_composition(
    devices: Sequence[Device],
    num_elements: int,
    dtype: str,
    options: TrialOptions | None = None,
) -> CompositionChoice:
    """Returns the composition for an all-reduce: simulated, then the best measured in turns.

    One member has nothing to choose and starts no process.

    Args:
        devices: Device of each member.
        num_elements: Length of every member's array.
        dtype: numpy's name of its type.
        options: How the best are measured.

    Raises:
        CapacityError: If memory or shared memory do not suffice.
        WorkerDiedError, WorkerHungError: If a process of the trial fails.
    """
    if len(devices) == 1:
        row = CompositionRow(schedule=direct(1), simulated_ns=0, measured_ns=None)
        return CompositionChoice(rows=(row,), measured=None)
    ranked = simulated_compositions(devices, num_elements * np.dtype(dtype).itemsize)
    members = tuple(range(len(devices)))
    links = {
        str(index): Collective(
            name=str(index),
            members=members,
            layout=AllReduceLayout(schedule=schedule, num_elements=num_elements, dtype=dtype),
        )
        for index, (schedule, _) in enumerate(ranked[:TOP])
    }
    settings = {"num_elements": num_elements, "dtype": dtype}
    measured = run_trial(
        ReduceTrial, devices, links, settings, lambda verdict: verdict.is_decided, options
    )
    medians = measured.verdict.medians_ns
    rows = tuple(
        CompositionRow(
            schedule=schedule,
            simulated_ns=simulated_ns,
            measured_ns=medians[index] if index < len(medians) else None,
        )
        for index, (schedule, simulated_ns) in enumerate(ranked)
    )
    return CompositionChoice(rows=rows, measured=measured)


def _simulator(ns_per_byte: float) -> PlanScore:
    # Few plans, so the engine that every GMI can load in little time, with the user's module.
    def score(problem: Problem, plan: Plan) -> int:
        rows = []
        for op in problem.graph.ops:
            moved = op.bytes_moved
            if op.kind not in (REDUCE_KIND, FORWARD_KIND):
                moved = 2 * max(sum(op.outputs), moved)  # a part is copied in, a sum out
            rows.append((round(STEP_NS + ns_per_byte * moved),) * problem.cluster.num_devices)
        costs = make_costs(problem, tuple(rows))
        return SimPyRuntime(costs).run(problem, plan, 1).makespan_ns

    return score


def _ns_per_byte() -> float:
    """Time per byte that an addition reads or writes."""
    data = np.ones((3, COST_BYTES // 4), np.float32)
    times = []
    for _ in range(50):
        start = time.perf_counter_ns()
        np.add(data[0], data[1], out=data[2])
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / data.nbytes


def _places(devices: Sequence[Device]) -> list[int]:
    """Where each member computes, 0 to n - 1; a member that is not bound takes a core in turns."""
    usable = sorted(os.sched_getaffinity(0))
    cores = [d.cores or (usable[m % len(usable)],) for m, d in enumerate(devices)]
    places = list(dict.fromkeys(cores))
    return [places.index(own) for own in cores]


def _host_cluster(count: int) -> Cluster:
    """Places that share the memory of one host."""
    devices = tuple(
        Device(name=f"place{p}", kind="cpu", parent="cpu", copy_engines=0) for p in range(count)
    )
    links = tuple(
        Link(src=a.name, dst=b.name, latency_ns=LINK_NS) for a in devices for b in devices if a != b
    )
    return Cluster(name="host", devices=devices, links=links)
