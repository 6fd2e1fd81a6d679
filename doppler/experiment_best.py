"""Best known plans: one JSON file per graph with plan, value, bounds, and what made each of them.

A stored plan is scored again whenever it is read, so that it cannot outlive the engine or the times
that it was made with. A bound that CP-SAT proved is stored with the seconds that it took: the quick
bounds are worked out anew, and this one is not.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from doppler.api import make_scorer
from doppler.core.codecs.fields import decode
from doppler.core.errors import FormatError
from doppler.core.plan import Plan
from doppler.core.serialize import from_json, read_json, to_json, write_atomic
from doppler.experiment import Task
from doppler.planners.bounds import QUICK_BOUNDS, lower_bounds

PLAN_KEYS = ("plan", "value_ns", "command")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverBound:
    """A lower bound that CP-SAT proved.

    Attributes:
        task: `Task.key` of what it is a bound of.
        bound_ns: No plan is faster, whatever its priorities and holds.
        seconds: Wall-clock seconds that the solver worked.
        command, revision: What proved it.
    """

    task: str
    bound_ns: int
    seconds: float
    command: str
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnown:
    """The best plan that is known.

    Attributes:
        plan: It.
        value_ns: Its value.
        command, revision: What made it; the revision of older plans is "unknown".
        solver_bound: The best bound that CP-SAT proved, None where none is stored.
    """

    plan: Plan
    value_ns: int
    command: str
    revision: str = UNKNOWN
    solver_bound: SolverBound | None = None

    def bound_ns(self, task: Task) -> int:
        """Returns the larger one of the task's quick bound and the solver's."""
        stored = 0 if self.solver_bound is None else self.solver_bound.bound_ns
        return max(task.bound_ns, stored)


def load_best(folder: Path, task: Task) -> BestKnown | None:
    """Returns the best known plan of a task, re-scored; None where none is stored.

    Raises:
        FormatError: If a key is missing, the stored value is not what the plan scores, or a stored
            bound is of another task or above the value.
        PlanError: If the plan was made for another graph or cluster.
    """
    path = folder / f"{task.name}.json"
    if not path.exists():
        return None
    document = read_json(path)
    missing = [key for key in PLAN_KEYS if key not in document]
    if missing:
        raise FormatError(
            f"{path} lacks {', '.join(missing)}; a best known plan is an object with the keys "
            f"plan, value_ns and command"
        )
    plan = from_json(document["plan"], "plan", task.problem, where=str(path))
    if not isinstance(plan, Plan):
        raise FormatError(f"{path} holds no plan")
    value = int(make_scorer(task.problem, task.costs).score_plans([plan])[0])
    if value != document["value_ns"]:
        raise FormatError(
            f"{path} says {document['value_ns']} ns, and its plan scores {value}: the times or "
            f"the engine have changed since {document['command']!r}"
        )
    return BestKnown(
        plan=plan,
        value_ns=value,
        command=str(document["command"]),
        revision=str(document.get("revision", UNKNOWN)),
        solver_bound=_solver_bound(document.get("solver_bound"), task, value, path),
    )


def _solver_bound(stored: Any, task: Task, value_ns: int, path: Path) -> SolverBound | None:
    if stored is None:
        return None
    bound: SolverBound = decode(SolverBound, stored, f"solver_bound in {path}")
    if bound.task != task.key:
        raise FormatError(
            f"solver_bound in {path} is of task {bound.task}, and the graph, its cluster and its "
            f"times make task {task.key}: prove it again with 'doppler experiment bounds'"
        )
    _check_bound(bound, value_ns, str(path))
    return bound


def _check_bound(bound: SolverBound, value_ns: int, where: str) -> None:
    if bound.bound_ns > value_ns:
        raise FormatError(
            f"{where}: a plan takes {value_ns} ns, and {bound.command!r} says that none is below "
            f"{bound.bound_ns} ns: the bound is wrong"
        )


def store_best(folder: Path, task: Task, best: BestKnown) -> Path:
    """Writes the best known plan of a task with its bounds and what made it.

    Raises:
        FormatError: If the solver's bound is above the plan's value.
    """
    path = folder / f"{task.name}.json"
    if best.solver_bound is not None:
        _check_bound(best.solver_bound, best.value_ns, str(path))
    found = lower_bounds(task.problem, task.costs, QUICK_BOUNDS)
    document: dict[str, Any] = {
        "graph": task.name,
        "machine": task.machine,
        "value_ns": best.value_ns,
        "bounds_ns": {bound.value: getattr(found, f"{bound.value}_ns") for bound in QUICK_BOUNDS},
        "solver_bound": None if best.solver_bound is None else asdict(best.solver_bound),
        "gap": round(best.value_ns / best.bound_ns(task) - 1.0, 6),
        "command": best.command,
        "revision": best.revision,
        "plan": to_json(best.plan, task.problem),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(document, indent=1) + "\n")
    return path
