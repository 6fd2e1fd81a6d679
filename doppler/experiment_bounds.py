"""Bounds that CP-SAT proves for the graphs of a table, stored beside the best known plans."""

from dataclasses import replace
from pathlib import Path

from doppler.core.errors import ConfigError
from doppler.experiment import Task
from doppler.experiment_best import BestKnown, SolverBound, load_best, store_best
from doppler.experiment_sources import present_sources
from doppler.planners.cp_sat import hint_of
from doppler.planners.cp_sat_schedule import solve_schedule
from doppler.planners.cp_sat_solver import SolverSettings
from doppler.planners.mask import make_mask


def prove_bound(
    task: Task, best: BestKnown, seconds: float, command: str, seed: int = 0
) -> SolverBound:
    """Returns what CP-SAT proves within `seconds` of wall-clock time, if only what was known.

    It starts from the best known plan and the best bound so far. Its answer depends on the speed of
    the machine; that it is a bound does not.

    Raises:
        ConfigError: If OR-Tools is not installed.
    """
    mask = make_mask(task.problem)
    hint = hint_of(mask, task.costs, best.plan, best.value_ns)
    settings = SolverSettings(effort=float("inf"), seconds=seconds)
    found = solve_schedule(mask, task.costs, best.bound_ns(task), settings, seed, hint)
    return SolverBound(
        task=task.key,
        bound_ns=found.bound_ns,
        seconds=seconds,
        command=command,
        revision=present_sources().revision,
    )


def improve_bound(folder: Path, task: Task, seconds: float, command: str) -> Path | None:
    """Lets CP-SAT work on the bound of a best known plan; returns the file if it got better.

    Nothing is solved where the plan is at its bound.

    Raises:
        ConfigError: If no best known plan is stored.
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
    found = prove_bound(task, best, seconds, command)
    if found.bound_ns <= before:
        return None
    return store_best(folder, task, replace(best, solver_bound=found))
