"""What importance weights are worth to an asynchronous job: returns with and without, real runs.

The inverted pendulum on two core groups, environments on one, training on the other, so that
rollouts run ahead and act on old weights. For every seed the job is trained without weights, with
truncated ones and with V-trace, one after the other; a run's value is its steps per ended episode
in the last iterations (the pendulum pays 1 per step upright), none ended counted as one.

`worst_over_none`: for each kind, the mean over seeds of the ratio of its value to the value without
weights on the same seed; the lowest. `mean_age` is how many versions old the weights were that
acted, over all runs. Asynchronous runs cannot be repeated bit for bit.
"""

import argparse
import dataclasses
import json
import statistics
from pathlib import Path

from support.common import finish

from doppler.config import JOBS
from doppler.core.job_mode import JobMode
from doppler.core.layout import per_core_layout
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.jobs import build_job
from doppler.session import JobSession
from doppler.simple_plans import job_problem, spread_plan
from executor.drl.importance import Importance
from executor.options import ExecutorOptions
from executor.probe import probe

ITERATIONS, LAST = 60, 15
ACTING = ("rollout", "infer", "env_step")
TARGETS = {"worst_over_none": ">= 0.95"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        kind, seed: Of `Importance`; of the job.
        length: Steps per ended episode of the last iterations, control steps.
        age: Mean age of the weights that acted, versions.
    """

    kind: str
    seed: int
    length: float
    age: float


def mean_age(problem: Problem, trace: Trace) -> float:
    """Returns how many versions the weights of rollouts were behind those of the iteration."""
    ages = [
        span.iteration - 1 - version
        for span in trace.op_spans
        for version in span.versions  # of `latest` edges alone
        if problem.graph.ops[span.op].kind in ACTING
    ]
    return statistics.mean(ages)


def train(kind: Importance, seed: int, staleness: int) -> Run:
    """Trains the job once."""
    settings = dataclasses.replace(
        JOBS["ppo_pendulum"],
        envs_per_shard=8,
        horizon=32,
        chunk=16,
        mode=JobMode.asynchronous,
        staleness=staleness,
        importance=kind,
    )
    job = build_job(settings, seed)
    hardware = probe().hardware
    (cpu,) = (p for p in hardware.processors if p.kind == "cpu")
    problem = job_problem(job, hardware, per_core_layout(cpu))
    placement = tuple(int(op.kind not in ACTING) for op in problem.graph.ops)
    plan = dataclasses.replace(spread_plan(problem), placement=placement)
    with JobSession(job, problem, ExecutorOptions()) as session:
        trace = session.run(plan, ITERATIONS)
        last = session.rewards[-LAST:]
        ends = sum(record.num_episodes for record in last)
        length = LAST * job.env_steps_per_iteration / max(1, ends)
    return Run(kind=kind.value, seed=seed, length=length, age=mean_age(problem, trace))


def figures_of(runs: list[Run]) -> dict[str, float]:
    """Returns the figures, and prints a row per kind."""
    lengths = {(run.kind, run.seed): run.length for run in runs}
    seeds = sorted({run.seed for run in runs})
    ratios = {}
    for kind in Importance:
        values = [lengths[kind.value, seed] for seed in seeds]
        against = [lengths[kind.value, seed] / lengths["none", seed] for seed in seeds]
        print(
            f"{kind.value:10s} length {statistics.mean(values):.1f} "
            f"({min(values):.1f} to {max(values):.1f}), over none {statistics.mean(against):.3f} "
            f"({min(against):.3f} to {max(against):.3f})"
        )
        if kind is not Importance.none:
            ratios[kind] = statistics.mean(against)
    return {
        "worst_over_none": min(ratios.values()),
        "mean_age": statistics.mean(run.age for run in runs),
        "num_seeds": len(seeds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--resume", type=Path, help="file of finished runs, read and written")
    arguments = parser.parse_args()
    runs: list[Run] = []
    if arguments.resume and arguments.resume.exists():
        runs = [Run(**values) for values in json.loads(arguments.resume.read_text("utf-8"))]
    done = {(run.kind, run.seed) for run in runs}
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for kind in Importance:
            if (kind.value, seed) in done:
                continue
            runs.append(train(kind, seed, arguments.staleness))
            if arguments.resume:
                stored = json.dumps([dataclasses.asdict(run) for run in runs])
                arguments.resume.write_text(stored, "utf-8")
    finish("importance", figures_of(runs), TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
