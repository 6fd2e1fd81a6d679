"""`doppler plan` with planners that learn: their settings, and a line on the learned one's way."""

from dataclasses import fields, replace

from doppler.api import PlannerResult, plan_problem
from doppler.config import Algorithm, StageTwoSettings
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.problem import Problem
from doppler.graph_config import PlanConfig, TrainedPlanner
from doppler.planners.base import Planner
from doppler.planners.bounds import bound_words
from doppler.planners.gdp import GdpConfig, GdpPlanner
from doppler.planners.learned import TUNED, LearnedPlanner
from doppler.planners.learned_run import PlanProgress
from doppler.planners.placeto import PlacetoConfig, PlacetoPlanner
from doppler.policies.config import policy_config
from doppler.training.config import PPOConfig, ReinforceConfig, Schedule, Start, TrainingConfig
from simulator.noise import Noise


def chosen_planner(config: PlanConfig) -> str | Planner:
    """Returns the planner with its settings, or its name where it has none."""
    if config.planner == TrainedPlanner.placeto:
        settings = PlacetoConfig(messages=config.messages, imitation=config.imitation)
        return PlacetoPlanner(config=settings)
    if config.planner == TrainedPlanner.gdp:
        return GdpPlanner(config=GdpConfig(imitation=config.imitation))
    return config.planner


def with_stage_two(training: TrainingConfig, settings: StageTwoSettings) -> TrainingConfig:
    """Returns a training with stage II by the algorithm that is asked for.

    PPO's steps are half as long as REINFORCE's, because it makes several per batch. Who asks for an
    algorithm gets a stage II, in mode `polish` too, where trained policies have none by default.
    """
    if settings.algorithm is Algorithm.reinforce:
        return training
    rate = training.reinforce.learning_rate
    shared = {item.name: getattr(training.reinforce, item.name) for item in fields(ReinforceConfig)}
    shared["learning_rate"] = Schedule(rate.start / 2, rate.end / 2)
    ppo = PPOConfig(**shared, epochs=settings.ppo_epochs, clip=settings.ppo_clip)
    share = training.learn_share or TrainingConfig().learn_share
    return replace(training, reinforce=ppo, learn_share=share)


def plan_learned(
    config: PlanConfig, problem: Problem, costs: Costs, noise: Noise | None, view: View
) -> PlannerResult:
    """Returns what the learned planner makes; the bar shows its best plan so far and the gap."""
    assert config.budget is not None
    usual = TUNED if config.start is Start.pretrained else TrainingConfig()
    planner = LearnedPlanner(
        mode=config.mode,
        start=config.start,
        training=with_stage_two(usual, config.training),
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
