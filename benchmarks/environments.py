"""Does PPO learn on every environment? Return before and after a fixed number of samples.

Per environment and seed: the policy at the start and the one after `SAMPLES` control steps of PPO
(the environment's preset, one process, one thread) both play `COPIES` first episodes, each from the
same start states with the same noise on the actions, at most `STEPS` control steps. The return of a
copy is its unscaled reward until its episode ends.

`rise` is after minus before per control step of `STEPS`, so that tasks can stand beside each other;
a run's rise is the mean over its copies, and the interval of an environment is that of the mean
over its seeds (Student's t, 95 %), since copies of one run share a policy. `worst_rise_low` is the
lowest lower end of all environments. `learned` counts the environments whose lower end is above 0.

`--job NAME` runs one environment; `--resume FILE` keeps finished runs, so that the whole may be cut
into pieces. A piece is one seed of one environment; figures are of whatever the file holds.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats
from support.common import finish

from executor.drl.plain import PlainPPO
from executor.drl.presets import PRESETS
from executor.drl.sources import resolve_source

SAMPLES = {
    "ppo_ant": 300_000,
    "ppo_anymal": 300_000,
    "ppo_ball_balance": 300_000,
    "ppo_franka_cabinet": 500_000,
    "ppo_humanoid": 300_000,
    "ppo_shadow_hand": 500_000,
}
COPIES, STEPS = 32, 250
FIRST_COPY = 1_000_000  # global ids that no training environment has
CONFIDENCE = 0.95

TARGETS = {"worst_rise_low": "> 0", "environments": "== 6"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One seed of one environment.

    Attributes:
        job, seed: Which.
        samples: Control steps of all environments that PPO saw.
        before, after: Mean return of the copies, at the start and at the end.
        seconds: Wall-clock of training.
        rewards: Mean reward per control step of every iteration.
    """

    job: str
    seed: int
    samples: int
    before: float
    after: float
    seconds: float
    rewards: list[float]

    @property
    def rise(self) -> float:
        """After minus before, per control step."""
        return (self.after - self.before) / STEPS


def mean_return(ppo: PlainPPO) -> float:
    """Returns the mean return of first episodes under the policy as it is."""
    environment = resolve_source(ppo.config).environment(COPIES, FIRST_COPY)
    obs = environment.reset(ppo.config.seed)
    random = np.random.default_rng(ppo.config.seed)
    shape = (COPIES, environment.act_dim)
    alive, returns = np.ones(COPIES, np.bool_), np.zeros(COPIES)
    for _ in range(STEPS):
        step = environment.step(ppo.act(obs, random.standard_normal(shape, np.float32)))
        returns += alive * step.reward
        alive &= ~(step.terminated | step.truncated)
        obs = step.obs
        if not alive.any():
            break
    environment.close()
    return float(returns.mean())


def train(job: str, seed: int) -> Run:
    """Trains one environment with one seed."""
    ppo = PlainPPO(dataclasses.replace(PRESETS[job], seed=seed), 1)
    before = mean_return(ppo)
    start = time.perf_counter()
    rewards = [ppo.step().mean_reward for _ in range(-(-SAMPLES[job] // ppo.config.rows))]
    seconds = time.perf_counter() - start
    after = mean_return(ppo)
    ppo.close()
    return Run(
        job=job,
        seed=seed,
        samples=len(rewards) * ppo.config.rows,
        before=before,
        after=after,
        seconds=seconds,
        rewards=rewards,
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns Student's interval of the mean; all numbers where there is one value only."""
    if len(values) < 2:
        return -np.inf, np.inf
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * stats.sem(values)
    return statistics.mean(values) - half, statistics.mean(values) + half


def figures_of(runs: Sequence[Run]) -> dict[str, float]:
    """Returns the figures, and prints a row per environment."""
    lows = {}
    print("| environment | samples | seeds | return before | after | rise per step | s per run |")
    print("|---|---|---|---|---|---|---|")
    for job in SAMPLES:
        mine = [run for run in runs if run.job == job]
        if not mine:
            continue
        rises = [run.rise for run in mine]
        low, high = interval(rises)
        if len(mine) > 1:
            lows[job] = low
        print(
            f"| {job.removeprefix('ppo_')} | {mine[0].samples:,} "
            f"| {', '.join(str(run.seed) for run in mine)} "
            f"| {spread([run.before for run in mine])} | {spread([run.after for run in mine])} "
            f"| {statistics.mean(rises):.3f} [{low:.3f}, {high:.3f}] "
            f"| {spread([run.seconds for run in mine])} |"
        )
    if not lows:
        return {"environments": 0}
    return {
        "worst_rise_low": min(lows.values()),
        "learned": sum(low > 0 for low in lows.values()),
        "environments": len(lows),
    }


def spread(values: Sequence[float]) -> str:
    """Returns the mean with the range, in words."""
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def read(path: Path | None) -> list[Run]:
    """Returns the runs of earlier pieces."""
    if path is None or not path.exists():
        return []
    return [Run(**values) for values in json.loads(path.read_text("utf-8"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--job", choices=SAMPLES, help="this environment only")
    parser.add_argument("--resume", type=Path, help="file of finished runs, read and written")
    arguments = parser.parse_args()
    runs = read(arguments.resume)
    done = {(run.job, run.seed) for run in runs}
    for job in [arguments.job] if arguments.job else SAMPLES:
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            if (job, seed) in done:
                continue
            runs.append(train(job, seed))
            print(f"{job}, seed {seed}: done in {runs[-1].seconds:.0f} s", flush=True)
            if arguments.resume:
                stored = json.dumps([dataclasses.asdict(run) for run in runs])
                arguments.resume.write_text(stored, "utf-8")
    finish("environments", figures_of(runs), TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
