"""`doppler plan` with planners that learn: their settings, and a line on the learned one's way."""

from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from doppler.api import PlannerResult, plan_problem
from doppler.config import Algorithm, StageTwoSettings, StageTwoValues
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.serialize import load_plan_names
from doppler.graph_config import PlanConfig, TrainedPlanner
from doppler.metrics_log import MetricsLog
from doppler.planners.base import Planner
from doppler.planners.bounds import bound_words
from doppler.planners.gdp import GdpConfig, GdpPlanner
from doppler.planners.learned import TUNED, LearnedPlanner
from doppler.planners.learned_run import PlanProgress
from doppler.planners.placeto import PlacetoConfig, PlacetoPlanner
from doppler.planners.run_state import Checkpointing
from doppler.policies.config import policy_config
from doppler.reuse import carry_over
from doppler.training.config import (
    PAPER,
    PPOConfig,
    ReinforceConfig,
    Schedule,
    Start,
    TrainingConfig,
)
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
    """Returns a training with stage II as it is asked for.

    PPO's steps are half as long as REINFORCE's, because it makes several per batch, unless a rate
    is given. Who asks for anything of stage II gets one, in mode `polish` too, where trained
    policies have none by default.
    """
    if not settings.asks_for_stage_two():
        return training
    reinforce = training.reinforce if settings.values is StageTwoValues.usual else PAPER
    changes: dict[str, Any] = {
        name: Schedule(*ends)
        for name, ends in (
            ("learning_rate", settings.learning_rate),
            ("entropy_weight", settings.entropy),
            ("temperature", settings.temperature),
        )
        if ends is not None
    }
    changes |= {
        name: value
        for name, value in (("batch", settings.batch), ("gamma", settings.gamma))
        if value is not None
    }
    if settings.elites == 0:
        changes |= {"elite_weight": 0.0, "elite_batch": 0}
    elif settings.elites is not None:
        usual = ReinforceConfig()
        weight, batch = reinforce.elite_weight, reinforce.elite_batch
        changes |= {
            "num_elites": settings.elites,
            "elite_weight": weight or usual.elite_weight,
            "elite_batch": batch or usual.elite_batch,
        }
    reinforce = replace(reinforce, **changes)
    if settings.algorithm is Algorithm.ppo:
        shared = {item.name: getattr(reinforce, item.name) for item in fields(ReinforceConfig)}
        if settings.learning_rate is None:
            rate = reinforce.learning_rate
            shared["learning_rate"] = replace(rate, start=rate.start / 2, end=rate.end / 2)
        reinforce = PPOConfig(**shared, epochs=settings.ppo_epochs, clip=settings.ppo_clip)
    return replace(
        training,
        reinforce=reinforce,
        learn_share=training.learn_share or TrainingConfig().learn_share,
        restarts=settings.restarts or training.restarts,
    )


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
        first_plans=tuple(_first_plan(path, problem, view) for path in config.first_plans),
    )
    shown = 0
    words = bound_words(problem)
    with ExitStack() as stack:
        advance = stack.enter_context(view.progress(f"learned, {config.mode.value}", None))

        def note(progress: PlanProgress) -> None:
            nonlocal shown
            value = f"best {progress.best_ns / 1e6:.3f} ms, {progress.gap:.1%} above the {words}"
            advance(progress.simulations - shown, f"{progress.part}: {value}")
            shown = progress.simulations

        planner.on_progress = note
        if config.checkpoint is not None:
            folder = Path(config.checkpoint)
            planner.checkpoint = Checkpointing(
                folder=folder,
                every=config.checkpoint_every,
                also={"noise": config.noise, "scorer_seed": config.seed},
            )
            log = MetricsLog(folder, tensorboard=config.training.tensorboard)
            planner.on_start, planner.on_record = stack.enter_context(log).begin, log.write
        return plan_problem(problem, costs, planner, config.budget, config.seed, noise=noise)


def _first_plan(path: str, problem: Problem, view: View) -> Plan:
    found = carry_over(load_plan_names(path), problem, path)
    view.line(f"{path}: names {found.num_named} of {found.num_placed} placed ops")
    return found.plan
