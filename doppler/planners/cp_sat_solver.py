"""OR-Tools' CP-SAT behind one function: deterministic effort in, status and bound out."""

import enum
import importlib
import math
from dataclasses import dataclass
from typing import Any

from doppler.core.errors import ConfigError, PlanError


class SolveStatus(enum.Enum):
    """What a solve proved.

    `optimal`: the solution's value is the bound. `feasible`: a solution and a bound below it.
    `bound`: no solution within the effort, the bound holds. `infeasible`: there is none.
    """

    optimal = "optimal"
    feasible = "feasible"
    bound = "bound"
    infeasible = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverSettings:
    """How long CP-SAT may work.

    Attributes:
        effort: Deterministic seconds: work counted by the solver itself, one to a few seconds
            each on one idle core, so equal settings give equal answers on every machine.
        seconds: Limit in wall-clock seconds beside it; answers then depend on the machine's
            speed. None = no such limit.
    """

    effort: float = 10.0
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.effort > 0 or (self.seconds is not None and not self.seconds > 0):
            raise ConfigError(
                f"effort and seconds of the solver are positive, and they are {self.effort} and "
                f"{self.seconds}"
            )


@dataclass(frozen=True, kw_only=True)
class Solved:
    """What a solve returned.

    Attributes:
        status: What was proved.
        bound_ns: No solution of the model is below it.
        value_ns: Value of the solution, None without one.
        effort: Deterministic seconds that it took.
        solver: Gives the values of the variables.
    """

    status: SolveStatus
    bound_ns: int
    value_ns: int | None
    effort: float
    solver: Any


def cp_model() -> Any:
    """Returns the module of CP-SAT.

    Raises:
        ConfigError: If OR-Tools is not installed.
    """
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise ConfigError(
            "exact planners and the bound 'cp_sat' need OR-Tools, which is not installed: "
            "pip install 'doppler-placement[exact]'"
        ) from error


def new_model() -> Any:
    """Returns an empty model."""
    return cp_model().CpModel()


def solve(model: Any, bound_ns: int, settings: SolverSettings, seed: int) -> Solved:
    """Solves a model that makes a time in ns small.

    Args:
        model: The model, hints included.
        bound_ns: A lower bound that is known already.
        settings: Effort.
        seed: Seed of the solver.

    Raises:
        PlanError: If CP-SAT refuses the model.
    """
    module = cp_model()
    solver = module.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1  # more of them answer in an order that no seed fixes
    parameters.random_seed = seed
    parameters.max_deterministic_time = settings.effort
    if settings.seconds is not None:
        parameters.max_time_in_seconds = settings.seconds
    code = solver.solve(model)
    if code == module.MODEL_INVALID:
        raise PlanError(f"CP-SAT takes no times or sizes of this range: {model.validate()}")
    status = {
        module.OPTIMAL: SolveStatus.optimal,
        module.FEASIBLE: SolveStatus.feasible,
        module.INFEASIBLE: SolveStatus.infeasible,
    }.get(code, SolveStatus.bound)
    value_ns = None
    bound = bound_ns
    if status in (SolveStatus.optimal, SolveStatus.feasible):
        value_ns = round(solver.objective_value)
    if status is not SolveStatus.infeasible:
        # Bounds are whole numbers; the solver reports them as floats.
        found = solver.best_objective_bound
        if math.isfinite(found):
            bound = max(bound, math.ceil(found - 1e-6))
    return Solved(
        status=status,
        bound_ns=bound,
        value_ns=value_ns,
        effort=float(solver.response_proto.deterministic_time),
        solver=solver,
    )
