"""Checks of the instance suite: nothing that a file claims is taken from the file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from doppler.console import View
from doppler.core.errors import DopplerError
from doppler.core.problem import Objective
from doppler.core.schedule import check_schedule
from doppler.graph_config import VerifyConfig
from doppler.instances.suite import SuiteInstance, find_instances, load_instance, shipped_folder
from doppler.planners.bounds import QUICK_BOUNDS, Bound, lower_bounds
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime
from simulator.scorer import CompiledScorer

PERIOD_ITERATIONS = 24
BROKEN = 1


class VerifyError(DopplerError):
    """Raised when a claim of an instance does not hold; names the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found of one file.

    Attributes:
        name: Name of the instance.
        instance: What it holds; None if it cannot be read.
        broken: The broken rule in one sentence, or "" if all hold.
    """

    name: str
    instance: SuiteInstance | None
    broken: str


def verify(config: VerifyConfig, command: Sequence[str]) -> int:
    """Checks instances, shows what was found, returns the exit status."""
    folder = shipped_folder() if config.folder is None else Path(config.folder)
    paths = find_instances(config.names, folder)
    view = View()
    with view.progress("instances", len(paths)) as advance:
        verdicts: list[Verdict] = []
        for path in paths:
            verdicts.append(verify_file(path))
            advance(1, path.stem)
    view.show(verdict_table(verdicts))
    broken = [verdict for verdict in verdicts if verdict.broken]
    for verdict in broken:
        view.line(f"{verdict.name}: {verdict.broken}")
    view.line(f"{len(verdicts) - len(broken)} of {len(verdicts)} instances hold")
    return BROKEN if broken else 0


def verify_file(path: Path) -> Verdict:
    """Reads and checks one file; never raises for what is wrong with it."""
    instance: SuiteInstance | None = None
    try:
        instance = load_instance(path)
        check_instance(instance)
    except DopplerError as error:
        return Verdict(name=path.stem, instance=instance, broken=str(error))
    return Verdict(name=path.stem, instance=instance, broken="")


def check_instance(instance: SuiteInstance) -> None:
    """Checks plan, value, schedule and bound of an instance.

    - Both engines run the plan to the same spans, and its value is the one that is claimed.
    - The schedule obeys every rule of the runtime (`doppler.core.schedule`).
    - The bound is not above the value, and is what is worked out anew where that is quick. A bound
      of `cp_sat` and a published optimum are taken over; they must not be below the quick ones.

    Raises:
        VerifyError: If a claim does not hold.
        TraceError: If the schedule breaks a rule.
        PlanError: If the plan does not fit the problem.
    """
    problem, costs, plan = instance.problem, instance.costs, instance.plan
    is_makespan = problem.objective is Objective.makespan
    iterations = 1 if is_makespan else PERIOD_ITERATIONS
    compiled = CompiledRuntime(costs).run(problem, plan, iterations)
    specified = SimPyRuntime(costs).run(problem, plan, iterations)
    if (compiled.op_spans, compiled.transfers, compiled.peak_bytes) != (
        specified.op_spans,
        specified.transfers,
        specified.peak_bytes,
    ):
        raise VerifyError("both engines run a plan to the same spans, and here they differ")
    check_schedule(problem, costs, plan, compiled)
    value_ns = int(CompiledScorer(problem, costs).score_plans([plan])[0])
    if value_ns != instance.value_ns:
        raise VerifyError(
            f"value_ns is the plan's {problem.objective.value} ({value_ns}), and the file has "
            f"{instance.value_ns}"
        )
    if is_makespan and specified.makespan_ns != value_ns:
        raise VerifyError(
            f"the scorer gives the makespan of the trace ({specified.makespan_ns}), and it gave "
            f"{value_ns}"
        )
    _check_bound(instance)


def _check_bound(instance: SuiteInstance) -> None:
    quick = lower_bounds(instance.problem, instance.costs)
    if instance.bound in {bound.value for bound in QUICK_BOUNDS}:
        found = quick.by_name[Bound(instance.bound)]
        if found != instance.bound_ns:
            raise VerifyError(
                f"bound_ns is the {instance.bound} bound ({found}), and the file has "
                f"{instance.bound_ns}"
            )
    if quick.best_ns > instance.bound_ns:
        raise VerifyError(
            f"the file has the best bound, {instance.bound} of {instance.bound_ns}, and a quick "
            f"one is {quick.best_ns}"
        )
    if instance.bound_ns > instance.value_ns:
        raise VerifyError(
            f"no plan is below a bound, and the plan takes {instance.value_ns} where "
            f"{instance.bound} proves {instance.bound_ns}"
        )


def verdict_table(verdicts: list[Verdict]) -> Table:
    """Returns the table of the verdicts; values and bounds are in ms."""
    table = Table(title="instances (makespan or period in ms)")
    table.add_column("instance", no_wrap=True)
    for heading in ("value", "bound", "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound by")
    table.add_column("claim")
    for verdict in verdicts:
        known = verdict.instance
        cells = ["?"] * 4
        if known is not None:
            cells = [
                f"{known.value_ns / 1e6:.6g}",
                f"{known.bound_ns / 1e6:.6g}",
                f"{known.gap:.1%}",
                known.bound,
            ]
        table.add_row(verdict.name, *cells, "broken" if verdict.broken else "holds")
    return table
