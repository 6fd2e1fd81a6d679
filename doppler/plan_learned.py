"""`doppler plan` with planners that learn: their settings, and a line on the learned one's way."""

from doppler.api import PlannerResult, plan_problem
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.problem import Problem
from doppler.graph_config import PlanConfig, TrainedPlanner
from doppler.planners.base import Planner
from doppler.planners.bounds import bound_words
from doppler.planners.gdp import GdpConfig, GdpPlanner
from doppler.planners.learned import LearnedPlanner
from doppler.planners.learned_run import PlanProgress
from doppler.planners.placeto import PlacetoConfig, PlacetoPlanner
from doppler.policies.config import policy_config
from simulator.noise import Noise


def chosen_planner(config: PlanConfig) -> str | Planner:
    """Returns the planner with its settings, or its name where it has none."""
    if config.planner == TrainedPlanner.placeto:
        settings = PlacetoConfig(messages=config.messages, imitation=config.imitation)
        return PlacetoPlanner(config=settings)
    if config.planner == TrainedPlanner.gdp:
        return GdpPlanner(config=GdpConfig(imitation=config.imitation))
    return config.planner


def plan_learned(
    config: PlanConfig, problem: Problem, costs: Costs, noise: Noise | None, view: View
) -> PlannerResult:
    """Returns what the learned planner makes; the bar shows its best plan so far and the gap."""
    assert config.budget is not None
    planner = LearnedPlanner(
        mode=config.mode,
        start=config.start,
        policy_config=policy_config(config.policy),
        seconds=config.seconds,
    )
    shown = 0
    words = bound_words(problem)
    with view.progress(f"learned, {config.mode.value}", None) as advance:

        def note(progress: PlanProgress) -> None:
            nonlocal shown
            value = f"best {progress.best_ns / 1e6:.3f} ms, {progress.gap:.1%} above the {words}"
            advance(progress.simulations - shown, f"{progress.part}: {value}")
            shown = progress.simulations

        planner.on_progress = note
        return plan_problem(problem, costs, planner, config.budget, config.seed, noise=noise)
