"""Writes the files of the instance suite: `python -m doppler.instances.make [NAME...]`.

Run from the root of the repository (the task graphs lie among the tests). A plan or a bound that a
file has already is kept where it is better: files only improve.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from doppler.api import plan_problem, score_plan
from doppler.console import View
from doppler.core.errors import DopplerError
from doppler.core.plan import Plan, make_plan
from doppler.instances.definitions import DEFINITIONS, Definition
from doppler.instances.suite import (
    PUBLISHED_OPTIMUM,
    SuiteInstance,
    load_instance,
    save_instance,
    shipped_folder,
)
from doppler.planners.bounds import ALL_BOUNDS, QUICK_BOUNDS, lower_bounds

PLANNERS = ("single_device", "heft", "peft", "portfolio", "annealing", "exact")
MAX_CP_SAT_OPS = 60


def make_instance(
    name: str,
    calls: int,
    seed: int,
    effort: float,
    command: str,
    view: View,
    planners: Sequence[str] = PLANNERS,
) -> SuiteInstance:
    """Returns an instance with the best plan of several planners and the best bound.

    Args:
        name: Key of `DEFINITIONS`.
        calls: Plans that each planner may simulate.
        seed: Seed of planners and solver.
        effort: Deterministic seconds of CP-SAT's bound.
        command: What is recorded as the maker.
        view: Where progress goes.
        planners: Whose plans compete, beside one by hand.
    """
    definition = DEFINITIONS[name]()
    problem, costs = definition.problem, definition.costs
    plans: list[Plan] = _by_hand(definition)
    for planner in planners:
        try:
            plans.append(plan_problem(problem, costs, planner, calls, seed).plan)
        except DopplerError as error:
            view.line(f"{name}: {planner} has no plan: {error}")
    values = [score_plan(problem, costs, plan) for plan in plans]
    value_ns, plan = min(zip(values, plans, strict=True), key=lambda pair: pair[0])
    names = ALL_BOUNDS if problem.graph.num_ops <= MAX_CP_SAT_OPS else QUICK_BOUNDS
    bounds = lower_bounds(problem, costs, names, effort=effort, seed=seed)
    bound_ns, bound = bounds.best_ns, bounds.best.value if bounds.best else ""
    if definition.optimum_ns is not None:
        bound_ns, bound = definition.optimum_ns, PUBLISHED_OPTIMUM
    return SuiteInstance(
        name=name,
        about=definition.about,
        command=command,
        problem=problem,
        costs=costs,
        plan=plan,
        value_ns=value_ns,
        bound_ns=bound_ns,
        bound=bound,
    )


def main() -> None:
    """Makes the named instances, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", type=float, default=20.0)
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--folder", type=Path, default=shipped_folder())
    options = parser.parse_args()
    view = View()
    for name in options.names or DEFINITIONS:
        command = (
            f"python -m doppler.instances.make {name} --calls {options.calls} "
            f"--seed {options.seed} --effort {options.effort:g} --planners {options.planners}"
        )
        instance = make_instance(
            name,
            options.calls,
            options.seed,
            options.effort,
            command,
            view,
            options.planners.split(","),
        )
        path = options.folder / f"{name}.json"
        if path.exists():
            instance = _better(load_instance(path), instance)
        save_instance(instance, path)
        view.line(
            f"{name}: {instance.value_ns} ns by {instance.plan.source}, {instance.gap:.2%} above "
            f"{instance.bound}"
        )


def _by_hand(definition: Definition) -> list[Plan]:
    if not definition.placement:
        return []
    priority = (0,) * definition.problem.graph.num_ops
    return [
        make_plan(definition.problem, definition.placement, priority, "by_hand", definition.holds)
    ]


def _better(old: SuiteInstance, new: SuiteInstance) -> SuiteInstance:
    """The new one with the old plan or the old bound where these are at least as good."""
    if (old.problem, old.costs) != (new.problem, new.costs):
        return new
    changes = {field: getattr(new, field) for field in SuiteInstance.__dataclass_fields__}
    if old.value_ns <= new.value_ns:
        changes |= {"plan": old.plan, "value_ns": old.value_ns, "command": old.command}
    if old.bound_ns >= new.bound_ns:
        changes |= {"bound": old.bound, "bound_ns": old.bound_ns}
    return SuiteInstance(**changes)


if __name__ == "__main__":
    main()
