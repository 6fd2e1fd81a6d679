"""Runs a job's plans on executors and gathers what their traces say of its parts."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from doppler.config import CalibrationSettings
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Layout, all_cores_layout, per_core_layout
from doppler.core.plan import Plan
from doppler.real_job import RealJob
from doppler.session import JobSession
from doppler.simple_plans import job_problem, single_plan, spread_plan
from executor.options import ExecutorOptions
from simulator.calibrate import Observation, fit_dispatch_ns, fit_latency_ns, observe
from simulator.calibration.links import LinkFit, fit_links
from simulator.costs.alpha_beta import TransferSample, transfer_samples

TURNS = 4
"""Short runs per plan, one plan after the other."""
FOLDS = 2
"""Turns are dealt out to so many folds; each is judged by the table of the others."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchCost:
    """The runtime's own cost per op on one kind of device."""

    device_kind: str
    cores: int
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayouts:
    """Where a job's ops are measured.

    Attributes:
        spread: On its first device alone, and there beside busy siblings, at several sizes of the
            job; None = nowhere.
        single: On its first device, which owns more of the processor, at the job's own size.
    """

    spread: Layout | None
    single: Layout

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [layout.name for layout in (self.spread, self.single) if layout is not None]


def core_layouts(cpu: Processor) -> MeasuredLayouts:
    """Returns where ops are measured on cores: one each, and all together."""
    spread = per_core_layout(cpu) if cpu.num_units > 1 else None
    return MeasuredLayouts(spread=spread, single=all_cores_layout(cpu))


class Bench:
    """Runs plans on executors and gathers what their traces say."""

    def __init__(
        self, settings: CalibrationSettings, options: ExecutorOptions, progress: Progress
    ) -> None:
        self.folds: tuple[list[Observation], ...] = tuple([] for _ in range(FOLDS))
        self._settings = settings
        self._options = options
        self._progress = progress
        self._dispatch: dict[tuple[str, int], list[int]] = {}
        self._latency: list[int] = []
        self._samples: dict[tuple[str, str], list[TransferSample]] = {}

    def measure_spread(self, job: RealJob, hardware: Hardware, layout: Layout) -> None:
        """Measures ops alone on one core, and beside busy siblings, in turns.

        Alternating short runs see the same speed of the machine, which drifts; the slowdown
        beside a busy sibling would otherwise be mixed with it.
        """
        problem = job_problem(job, hardware, layout)
        plans = (single_plan(problem), spread_plan(problem))
        with JobSession(job, problem, self._options) as session:
            session.run(plans[1], max(1, self._settings.warmup))
            for turn in range(TURNS):
                for plan in plans if turn % 2 == 0 else reversed(plans):
                    self._measure(session, plan, job, turn)

    def measure_single(self, job: RealJob, hardware: Hardware, layout: Layout) -> None:
        """Measures ops on the first device of a layout."""
        problem = job_problem(job, hardware, layout)
        plan = single_plan(problem)
        with JobSession(job, problem, self._options) as session:
            session.run(plan, max(1, self._settings.warmup))
            for turn in range(TURNS // 2):
                self._measure(session, plan, job, turn)

    def dispatch(self) -> tuple[DispatchCost, ...]:
        """Returns the dispatch cost per kind of device."""
        return tuple(
            DispatchCost(device_kind=kind, cores=cores, time_ns=round(statistics.median(values)))
            for (kind, cores), values in sorted(self._dispatch.items())
        )

    def links(self) -> tuple[LinkFit, ...]:
        """Returns latency and bandwidth of the links that copied."""
        return fit_links(self._samples)

    def publish_ns(self) -> int:
        """Returns the latency between workers, at least 1; 0 if there was none to measure."""
        return max(1, round(statistics.median(self._latency))) if self._latency else 0

    def _measure(self, session: JobSession, plan: Plan, job: RealJob, turn: int) -> None:
        problem = session.problem
        layout = problem.cluster.name.rpartition("/")[2]
        self._progress(f"{job.size}, {layout}, {plan.source.replace('_', ' ')}")
        count = -(-self._settings.iterations // TURNS)
        trace = session.run(plan, 1 + count)
        self.folds[turn % FOLDS].extend(observe(problem, trace, 1))
        for pair, samples in transfer_samples(problem, trace, 1).items():
            self._samples.setdefault(pair, []).extend(samples)
        device = problem.cluster.devices[0]
        key = (device.kind, len(device.cores))
        if len(set(plan.placement)) == 1:
            self._dispatch.setdefault(key, []).append(fit_dispatch_ns(trace, 1))
        latency = fit_latency_ns(problem, trace, 1)
        if latency is not None:
            self._latency.append(latency)
