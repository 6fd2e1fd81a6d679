"""`doppler pretrain`: one policy over many generated problems, in pieces that can be stopped.

The output folder holds the state of the training and the best policy so far, with `training.json`
beside its weights: the command, the seed, the cost and the training curve. The policy that comes
with the project is such a folder (`doppler/policies/pretrained`).
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.console import View
from doppler.core.errors import ConfigError
from doppler.curriculum import (
    HELD_OUT,
    CurriculumConfig,
    draw_problem,
    greedy_ratios,
    make_lesson,
)
from doppler.metrics_log import MetricsLog
from doppler.policies.config import policy_config
from doppler.policies.dual import DualPolicy
from doppler.policies.storage import save_policy
from doppler.policy_config import PretrainConfig
from doppler.provenance import revision, versions
from doppler.results import command_text
from doppler.training.pretraining import (
    Pretraining,
    PretrainingConfig,
    load_pretraining,
    new_pretraining,
    save_pretraining,
)
from doppler.training.reinforce import Lesson

STATE_FOLDER = "state"
POLICY_FOLDER = "policy"
TRAINING_FILE = "training.json"
VALIDATION_SEED = 1_000_003


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRecord:
    """Greedy episode over HEFT with insertion on problems that are drawn like the lessons.

    Attributes:
        epoch: Epochs done.
        mean, worst: Of the ratios.
        excess: Mean of how far ratios are above 1.
        cpu_seconds: Of the whole training so far.
    """

    epoch: int
    mean: float
    worst: float
    excess: float
    cpu_seconds: float

    @property
    def score(self) -> float:
        """What the kept policy is the smallest in: losses against HEFT count five times."""
        return self.mean + 4.0 * self.excess


def pretrain(config: PretrainConfig, command: Sequence[str]) -> None:
    """Trains, or goes on training, for at most `config.seconds`; writes the output folder."""
    view = View()
    folder = Path(config.output)
    settings = PretrainingConfig(epochs=config.epochs, updates=config.updates, seed=config.seed)
    lessons = CurriculumConfig(
        lessons=config.lessons,
        search_calls=config.search_calls,
        leave_out=tuple(config.leave_out),
    )
    state, extra = _start(config, settings, lessons, folder)
    log = MetricsLog(folder, tensorboard=config.tensorboard)
    problems = [
        draw_problem(lessons, 1.0, np.random.default_rng([VALIDATION_SEED, index]))
        for index in range(config.validation)
    ]
    spent, curve = float(extra["cpu_seconds"]), list(extra["validation"])
    best = extra["best"]
    start_cpu, deadline = time.process_time(), time.monotonic() + config.seconds

    def curriculum(
        policy: DualPolicy, epoch: int, fraction: float, rng: np.random.Generator
    ) -> list[Lesson]:
        del epoch
        return [
            make_lesson(policy, draw_problem(lessons, fraction, rng), lessons.search_calls, rng)
            for _ in range(lessons.lessons)
        ]

    def validate(epoch: int, seconds: float) -> None:
        nonlocal best
        ratios = greedy_ratios(state.average, problems)
        found = ValidationRecord(
            epoch=epoch,
            mean=float(np.mean(ratios)),
            worst=max(ratios),
            excess=float(np.maximum(np.asarray(ratios) - 1.0, 0.0).mean()),
            cpu_seconds=round(seconds, 1),
        )
        curve.append(asdict(found))
        log.write(found)
        if best is None or found.score < best["score"]:
            best = {**asdict(found), "score": found.score}
            save_policy(state.average, folder / POLICY_FOLDER)

    with log, view.progress("epochs", settings.epochs) as advance:
        log.begin(keep=len(state.history) + len(curve))
        advance(state.epoch, "")
        if not curve:
            validate(0, spent)
            extra |= {"cpu_seconds": spent, "validation": curve, "best": best}
            save_pretraining(state, folder / STATE_FOLDER, extra)
        while not state.is_finished and time.monotonic() < deadline:
            record = state.run_epoch(curriculum)
            log.write(record)
            seconds = spent + time.process_time() - start_cpu
            if record.epoch % config.validate_every == 0 or state.is_finished:
                validate(record.epoch, seconds)
            extra |= {"cpu_seconds": seconds, "validation": curve, "best": best}
            save_pretraining(state, folder / STATE_FOLDER, extra)
            advance(1, f"episodes/HEFT {record.mean_ratio:.3f}, validation {_last(curve)}")
    _write_training(folder, config, settings, lessons, command, state, extra)
    view.line(f"{state.epoch} of {settings.epochs} epochs; policy: {folder / POLICY_FOLDER}")


def _start(
    config: PretrainConfig,
    settings: PretrainingConfig,
    lessons: CurriculumConfig,
    folder: Path,
) -> tuple[Pretraining, dict[str, Any]]:
    exists = (folder / STATE_FOLDER).exists()
    if config.resume:
        if not exists:
            raise ConfigError(f"resume goes on with a training, and {folder} holds none")
        state, extra = load_pretraining(folder / STATE_FOLDER, settings)
        if extra.setdefault("left_out", []) != list(lessons.leave_out):
            raise ConfigError(
                f"a training goes on with the lessons that it began with, and {folder} has "
                f"leave_out={extra['left_out']} where this is {list(lessons.leave_out)}"
            )
        return state, extra
    if exists:
        raise ConfigError(
            f"{folder} holds a training already: go on with resume=true, or name another output"
        )
    folder.mkdir(parents=True, exist_ok=True)
    state = new_pretraining(policy_config(config.policy), settings)
    left_out = list(lessons.leave_out)
    return state, {"cpu_seconds": 0.0, "validation": [], "best": None, "left_out": left_out}


def _write_training(
    folder: Path,
    config: PretrainConfig,
    settings: PretrainingConfig,
    lessons: CurriculumConfig,
    command: Sequence[str],
    state: Pretraining,
    extra: dict[str, Any],
) -> None:
    document = {
        "command": command_text(command),
        "seed": config.seed,
        "epochs": state.epoch,
        "episodes": state.episodes,
        "settings": asdict(settings),
        "curriculum": asdict(lessons),
        "families": [family.value for family in lessons.families],
        "jobs": [family.value for family in lessons.jobs],
        "held_out": [family.value for family in HELD_OUT],
        "revision": revision(),
        "versions": versions(),
        **extra,
        "history": [asdict(record) for record in state.history],
    }
    (folder / POLICY_FOLDER / TRAINING_FILE).write_text(
        json.dumps(document, indent=1) + "\n", "utf-8"
    )


def _last(curve: list[dict[str, Any]]) -> str:
    if not curve:
        return "-"
    return f"{curve[-1]['mean']:.3f} (worst {curve[-1]['worst']:.3f})"
