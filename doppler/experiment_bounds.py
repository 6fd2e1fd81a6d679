"""Bounds that CP-SAT proves for the graphs of a table, stored beside the best known plans."""

from dataclasses import replace
from pathlib import Path

from doppler.api import make_scorer
from doppler.core.errors import ConfigError
from doppler.experiment import Task
from doppler.experiment_best import BestKnown, SolverBound, load_best, store_best
from doppler.experiment_sources import present_sources
from doppler.planners.cp_sat import hint_of, plans_of
from doppler.planners.cp_sat_schedule import ExactSchedule, solve_schedule
from doppler.planners.cp_sat_solver import SolverSettings
from doppler.planners.mask import make_mask


def improve_bound(folder: Path, task: Task, seconds: float, command: str) -> Path | None:
    """Lets CP-SAT work on a best known plan and its bound; returns the file if one got better.

    The solver starts from both. Nothing is solved where the plan is at its bound. What it finds
    depends on the speed of the machine; that a bound is one does not.

    Args:
        folder: Where best known plans lie.
        task: What is solved.
        seconds: Wall-clock seconds that the solver may work.
        command: What is stored beside what it found.

    Raises:
        ConfigError: If no best known plan is stored, or OR-Tools is not installed.
        FormatError: If the bound is above the plan's value, so that one of them is wrong.
    """
    best = load_best(folder, task)
    if best is None:
        raise ConfigError(
            f"a bound is stored beside the best known plan, and {folder} has none of {task.name!r}"
        )
    before = best.bound_ns(task)
    if best.value_ns <= before:
        return None
    mask = make_mask(task.problem)
    hint = hint_of(mask, task.costs, best.plan, best.value_ns)
    settings = SolverSettings(effort=float("inf"), seconds=seconds)
    found = solve_schedule(mask, task.costs, before, settings, 0, hint)
    new = _better_plan(task, best, found, command)
    if found.bound_ns > before:
        bound = SolverBound(
            task=task.key,
            bound_ns=found.bound_ns,
            seconds=seconds,
            command=command,
            revision=present_sources().revision,
        )
        new = replace(new, solver_bound=bound)
    return None if new == best else store_best(folder, task, new)


def _better_plan(task: Task, best: BestKnown, found: ExactSchedule, command: str) -> BestKnown:
    """The best of the solver's schedule, with and without holds, and what was known."""
    plans = plans_of(make_mask(task.problem), task.costs, found, "exact")
    if not plans:
        return best
    values = make_scorer(task.problem, task.costs).score_plans(plans)
    index = int(values.argmin())
    if values[index] >= best.value_ns:
        return best
    return replace(
        best,
        plan=plans[index],
        value_ns=int(values[index]),
        command=f"{command} (CP-SAT, from the best plan before it)",
        revision=present_sources().revision,
    )
