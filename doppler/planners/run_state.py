"""Where a run of the learned planner stands, on disk, so that a second start goes on with it.

A state is everything that the rest of the run depends on: policies, optimiser, elites, generators,
plans spent, the best plan, and the step that runs. The planner writes one before every step and
after every few updates of stages I and II; a start from it repeats what came after it, bit for bit.
"""

import fcntl
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doppler.core.errors import ConfigError, FormatError
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.planners.base import Budget
from doppler.planners.learned_run import LearnedRun
from doppler.policies.bundle import read_bundle, write_bundle
from doppler.policies.dual import DualPolicy
from doppler.training.checkpoint import (
    below,
    elite_tensors,
    learner_content,
    learner_tensors,
    read_elites,
    restore_generator,
    restore_learner,
)
from doppler.training.config import Stage
from doppler.training.elites import Elite
from doppler.training.learner import Learner

KIND = "doppler.plan_state"
VERSION = 1
KEYS = frozenset(
    {"settings", "step", "part", "calls", "in_stage", "records", "values_ns", "spent", "rng"}
    | {"learner", "best_ns", "trial", "legs"}
)
PREFIX = "state-"
LOCK_FILE = ".lock"
"""Held by the one run that writes a folder; it stays there, for removing it would let two in."""

Weights = dict[str, Tensor]


@dataclass(slots=True, kw_only=True)
class Trial:
    """Policies before they imitate elites, which they may go back to.

    Attributes:
        weights: Of the policies.
        value_ns: Mean value of their episodes.
    """

    weights: Weights
    value_ns: float


@dataclass(slots=True, kw_only=True)
class Legs:
    """Stage II, which is run once or several times from the same policies and elites.

    Attributes:
        index: The leg that runs, from 0.
        per_leg: Episodes of each at most.
        reference_ns: What advantages are parts of.
        until: Seconds of the run at which the last leg ends, None without a deadline.
        leg_ns: Best value of the leg that runs.
        best_ns: Best value of the legs that have ended.
        start, best: Weights that every leg begins with; those at the end of the best leg.
        start_elites, kept_elites: Elites that every leg begins with; those of the legs that have
            ended.
    """

    index: int = 0
    per_leg: int
    reference_ns: int
    until: float | None
    leg_ns: int
    best_ns: int
    start: Weights
    best: Weights
    start_elites: list[Elite]
    kept_elites: list[Elite] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RunState:
    """Where a run stands between two updates.

    Attributes:
        step: Index of the step that runs.
        calls: Plans that the shares of mode `polish` are parts of.
        in_stage: The stage of training in this step has begun, the one of the learner's progress.
        records: Records of training made so far.
        values_ns: Best value at the end of each part.
        trial: While elites are imitated.
        legs: While stage II runs.
    """

    step: int = 0
    in_stage: bool = False
    calls: int = 0
    records: int = 0
    values_ns: dict[str, int] = field(default_factory=dict)
    trial: Trial | None = None
    legs: Legs | None = None

    def begin_stage(self, learner: Learner, stage: Stage, num_updates: int) -> bool:
        """Begins a stage unless it has begun; returns whether it did."""
        if self.in_stage:
            return False
        learner.begin(stage, num_updates)
        self.in_stage = True
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Where and how often a run writes its state.

    Attributes:
        folder: Of the states of this run.
        every: Updates of stages I and II between two states.
        also: What decides the plan besides, and the planner does not see: name -> value as JSON.
    """

    folder: Path
    every: int = 10
    also: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"updates between two states are at least 1, and are {self.every}")


@dataclass(slots=True, kw_only=True)
class StateFolder:
    """The folder that the states of one run are kept in; only the newest one stays.

    Attributes:
        path: The folder.
        settings: Name -> value of everything that decides the plan.
    """

    path: Path
    settings: dict[str, Any]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps every other run out of the folder while the block runs.

        Raises:
            ConfigError: If another run is in it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK_FILE).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"one run at a time keeps its state in a folder, and another one is at work "
                    f"in {self.path}: wait for it, or name another folder"
                ) from error
            yield

    def write(self, run: LearnedRun, state: RunState) -> None:
        """Writes a state beside the last one, and then removes that: one is always whole."""
        known = _numbers(self.path)
        number = known[-1] + 1 if known else 0
        evaluator, trial, legs = run.evaluator, state.trial, state.legs
        tensors = {f"learner.{name}": t for name, t in learner_tensors(run.learner).items()}
        if evaluator.best_placement_V is not None and evaluator.best_priority_V is not None:
            tensors["plan.placement"] = torch.from_numpy(evaluator.best_placement_V)
            tensors["plan.priority"] = torch.from_numpy(evaluator.best_priority_V)
        if trial is not None:
            tensors |= {f"trial.{name}": value for name, value in trial.weights.items()}
        if legs is not None:
            tensors |= {f"start.{name}": value for name, value in legs.start.items()}
            tensors |= {f"best.{name}": value for name, value in legs.best.items()}
            tensors |= elite_tensors(legs.start_elites, "start_elites")
            tensors |= elite_tensors(legs.kept_elites, "kept_elites")
        content = {
            "settings": self.settings,
            "step": state.step,
            "part": evaluator.part,
            "calls": state.calls,
            "in_stage": state.in_stage,
            "records": state.records,
            "values_ns": state.values_ns,
            "spent": {"calls": evaluator.simulations, "seconds": evaluator.elapsed},
            "rng": run.rng.bit_generator.state,
            "learner": learner_content(run.learner),
            "best_ns": evaluator.best_ns,
            "trial": None if trial is None else trial.value_ns,
            "legs": None if legs is None else _legs_document(legs),
        }
        write_bundle(self.path / f"{PREFIX}{number}", KIND, VERSION, tensors, content)
        for old in known:
            shutil.rmtree(self.path / f"{PREFIX}{old}")

    def read(self, run: LearnedRun) -> RunState | None:
        """Gives a fresh run the newest state of the folder; returns None where there is none.

        Raises:
            FormatError: If the state is damaged, or of a run with other settings.
        """
        for torn in self.path.glob(f".{PREFIX}*"):  # a run was killed while it wrote
            shutil.rmtree(torn)
        known = _numbers(self.path)
        if not known:
            return None
        where = self.path / f"{PREFIX}{known[-1]}"
        tensors, content = read_bundle(where, KIND, VERSION, KEYS)
        self._check_settings(content["settings"])
        try:
            return _restored(run, tensors, content, where)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"the state in {where} is damaged: {error!r}") from error

    def _check_settings(self, stored: Any) -> None:
        if not isinstance(stored, dict):
            raise FormatError(f"settings in {self.path} are an object, and they are {stored!r}")
        for key in {**self.settings, **stored}:
            old, new = stored.get(key), self.settings.get(key)
            if old != new:
                raise FormatError(
                    f"a plan goes on with the settings that it began with, and {self.path} has "
                    f"{key}={old} where this start has {new}: name another folder"
                )


def describe(
    problem: Problem, scorer: Scorer, budget: Budget, rng_state: Any, policy: DualPolicy
) -> dict[str, Any]:
    """Returns what is asked of a planner, and what it begins with, name by name."""
    weights = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        weights.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return {
        "graph": problem.graph.digest,
        "cluster": problem.cluster.digest,
        "objective": problem.objective.value,
        "pins": dict(problem.pins),
        "memory_headroom": problem.memory_headroom,
        "costs": digest(repr(scorer.costs)),
        "seed": digest(repr(rng_state)),
        "budget": budget.calls,
        "policy": digest(repr(policy.config)),
        "weights": weights.hexdigest()[:16],
    }


def digest(text: str) -> str:
    """Returns a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flat(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns nested settings as one table of names."""
    table: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            table |= flat(value, f"{prefix}{name}.")
        else:
            table[f"{prefix}{name}"] = value
    return table


def weights_of(policy: DualPolicy) -> Weights:
    """Returns a copy of a policy's weights."""
    return {name: value.clone() for name, value in policy.state_dict().items()}


def _restored(run: LearnedRun, tensors: Weights, content: dict[str, Any], where: Path) -> RunState:
    assignment = run.learner.inputs.assignment
    restore_learner(run.learner, below(tensors, "learner."), content["learner"], where)
    restore_generator(run.rng, content["rng"], where)
    spent, plan = content["spent"], below(tensors, "plan.")
    run.evaluator.go_on(int(spent["calls"]), float(spent["seconds"]), str(content["part"]))
    if plan:
        run.evaluator.keep(
            int(content["best_ns"]), plan["placement"].numpy(), plan["priority"].numpy()
        )
    trial, legs = content["trial"], content["legs"]
    return RunState(
        step=int(content["step"]),
        calls=int(content["calls"]),
        in_stage=bool(content["in_stage"]),
        records=int(content["records"]),
        values_ns={str(name): int(value) for name, value in content["values_ns"].items()},
        trial=None
        if trial is None
        else Trial(weights=below(tensors, "trial."), value_ns=float(trial)),
        legs=None
        if legs is None
        else Legs(
            **legs["numbers"],
            start=below(tensors, "start."),
            best=below(tensors, "best."),
            start_elites=read_elites(
                tensors, "start_elites", legs["start_elites"], assignment, where
            ),
            kept_elites=read_elites(tensors, "kept_elites", legs["kept_elites"], assignment, where),
        ),
    )


def _legs_document(legs: Legs) -> dict[str, Any]:
    numbers = ("index", "per_leg", "reference_ns", "until", "leg_ns", "best_ns")
    return {
        "numbers": {name: getattr(legs, name) for name in numbers},
        "start_elites": [elite.value_ns for elite in legs.start_elites],
        "kept_elites": [elite.value_ns for elite in legs.kept_elites],
    }


def _numbers(path: Path) -> list[int]:
    """Numbers of the states in a folder, the newest last."""
    names = (entry.name.removeprefix(PREFIX) for entry in path.glob(f"{PREFIX}*"))
    return sorted(int(name) for name in names if name.isdigit())
