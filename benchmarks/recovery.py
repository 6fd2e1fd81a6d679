"""Faults for real: how soon a dead GMI is noticed and named, and how soon training goes on.

- `collective`: one of two GMIs is killed at random within an all-reduce of 3 MiB; the other one
  goes on alone from the last checkpoint (`on_failure="drop"`), and every step has counted once.
- `restart`: the same, and both go on (`on_failure="restart"`).
- `channel`: one of two agents is killed at random while it writes records; trainer and the other
  agent go on ("drop"), and no record is torn.
- `hung`: as `collective`, but the GMI is stopped, so only the deadline can tell.
- `job`: one of two workers of PPO on pendulum is killed at random; `run.on_failure=replan` plans
  for the core that is left and goes on from the last checkpoint.

`detect_s`: from the kill to the error that names the dead one. `recover_s`: from the kill to the
first step (job: the first ten iterations) done after it.
"""

import argparse
import dataclasses
import io
import os
import signal
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from support.common import finish
from support.recovery_gmis import CHANNEL_BATCH, FIELDS, Agent, Reducer, Trainer

from doppler.calibration import calibrate, save_calibration
from doppler.config import JOBS, CalibrationSettings, OnFailure, RunConfig, RunSettings
from doppler.console import View
from doppler.core.cluster import Cluster, Device
from doppler.core.layout import per_core_layout
from doppler.core.serialize import save
from doppler.gmi import GMIManager
from doppler.jobs import build_job
from doppler.results import CLUSTER_FILE, COSTS_FILE, METRICS_FILE, PLAN_FILE
from doppler.running import run_plan
from doppler.simple_plans import job_problem, spread_plan
from executor.options import ExecutorOptions
from executor.probe import probe

ELEMENTS = 3 * (1 << 20) // 4
STEPS, DIES_AT = 60, 35
RECORDS = 400 * CHANNEL_BATCH
DEADLINE_S, HUNG_DEADLINE_S = 30.0, 2.0
JOB_ITERATIONS, CHECKPOINT_EVERY = 120, 20

TARGETS = {
    "collective_worst_detect_s": "<= 1",
    "restart_worst_detect_s": "<= 1",
    "channel_worst_detect_s": "<= 1",
    "job_worst_detect_s": "<= 1",
    "hung_worst_detect_s": f"<= {HUNG_DEADLINE_S + 2:g}",
    "unnamed": "== 0",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: times in seconds, whether the dead one was named, whether it was inside."""

    detect_s: float
    recover_s: float
    is_named: bool
    is_inside: bool


def cores(count: int) -> Cluster:
    """Returns core groups of one core, cores in turns."""
    usable = sorted(os.sched_getaffinity(0))
    return Cluster(
        name="cores",
        devices=tuple(
            Device(name=f"core{i}", kind="cpu", parent="cpu", cores=(usable[i % len(usable)],))
            for i in range(count)
        ),
    )


def collective(settings: Mapping[str, Any], **options: Any) -> GMIManager:
    """Returns two reducers; the second one is the victim."""
    manager = GMIManager(cluster=cores(2), **options)
    for index in range(2):
        manager.add_gmi(Reducer, "trainer", index, {**settings, "victim": index == 1})
    manager.add_collective("gradient", manager.group("trainer"), ELEMENTS)
    return manager


def channel(settings: Mapping[str, Any], **options: Any) -> GMIManager:
    """Returns a trainer and two agents; the second one is the victim."""
    manager = GMIManager(cluster=cores(3), **options)
    trainer = manager.add_gmi(Trainer, "trainer", 0, settings)
    for index in range(2):
        manager.add_gmi(Agent, "agent", index + 1, {**settings, "victim": index == 1})
    manager.add_channel("experience", manager.group("agent"), [trainer], FIELDS, CHANNEL_BATCH)
    return manager


def gmi_fault(manager: GMIManager, link: str, run: tuple[int, int]) -> Fault:
    """Runs GMIs one of which is killed on the way, to the end of all that are left."""
    times: dict[str, float] = {}
    victim = next(spec.title for spec in manager.gmis if spec.settings.get("victim"))

    def on_report(gmi_id: int, values: Mapping[str, Any]) -> None:
        if "killed_at" in values:
            times["killed_at"] = values["killed_at"]
        elif values["attempt"] == 1:
            times.setdefault("going_on", time.monotonic())

    manager.run(*run, on_report=on_report)
    assert len(manager.recoveries) == 1, "one GMI is killed, once"
    recovery = manager.recoveries[0]
    return Fault(
        detect_s=recovery.detected_at - times["killed_at"],
        recover_s=times["going_on"] - times["killed_at"],
        is_named=recovery.failed == (victim,) and victim in recovery.error,
        is_inside=f"in '{link}'" in recovery.error,
    )


class TimedLines(io.StringIO):
    """Remembers when each piece of text came."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        """Keeps text and time."""
        self.pieces.append((time.monotonic(), text))
        return super().write(text)

    def when(self, part: str) -> float:
        """Returns when the first piece with some text came."""
        return next(at for at, text in self.pieces if part in text)


class JobBench:
    """PPO on pendulum with a plan and a cost table in a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.settings = dataclasses.replace(JOBS["ppo_pendulum"], envs_per_shard=8, horizon=32)
        hardware = probe().hardware
        cpu = hardware.processors[0]
        calibration = calibrate(
            self.settings,
            hardware,
            CalibrationSettings(warmup=1, iterations=4, env_counts=[1.0]),
            seed=seed,
            options=ExecutorOptions(),
            progress=lambda note: None,
        )
        save_calibration(folder / COSTS_FILE, calibration)
        job = build_job(self.settings, seed)
        problem = job_problem(job, calibration.hardware(hardware), per_core_layout(cpu))
        save(problem.cluster, folder / CLUSTER_FILE)
        save(spread_plan(problem), folder / PLAN_FILE, problem)

    def fault(self, rng: np.random.Generator) -> Fault:
        """Runs the job to its end, a worker being killed on the way."""
        results = self.folder / "results"
        before = set(results.glob("*"))
        lines = TimedLines()
        times: dict[str, float] = {}

        def lines_done() -> int:
            files = [
                f / METRICS_FILE for f in set(results.glob("*")) - before if not f.is_symlink()
            ]
            return sum(len(f.read_text().splitlines()) for f in files if f.exists())

        def watch() -> None:
            wanted = CHECKPOINT_EVERY + int(rng.integers(1, CHECKPOINT_EVERY))
            while lines_done() < wanted:
                time.sleep(0.005)
            time.sleep(float(rng.uniform(0.0, 0.2)))
            workers = [
                p for p in psutil.Process().children() if "executor.workers.cpu" in p.cmdline()
            ]
            victim = workers[int(rng.integers(len(workers)))]
            times["killed_at"] = time.monotonic()
            victim.send_signal(signal.SIGKILL)
            times["pid"] = victim.pid
            while not any("going on from" in text for _, text in lines.pieces):
                time.sleep(0.005)
            base = lines_done()
            while lines_done() <= base:
                time.sleep(0.005)
            times["going_on"] = time.monotonic()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        settings = RunSettings(
            iterations=JOB_ITERATIONS,
            checkpoint_every=CHECKPOINT_EVERY,
            on_failure=OnFailure.replan,
        )
        config = RunConfig(
            plan=str(self.folder),
            job=self.settings,
            run=settings,
            results=str(results),
            seed=self.seed,
        )
        run_plan(
            config, ["doppler", "run", "job=ppo_pendulum"], View(Console(file=lines, width=400))
        )
        watcher.join(10)
        text = lines.getvalue()
        return Fault(
            detect_s=lines.when("the worker of device") - times["killed_at"],
            recover_s=times["going_on"] - times["killed_at"],
            is_named=f"process {int(times['pid'])}" in text,
            is_inside=" in op " in text,
        )


def show(name: str, faults: list[Fault]) -> dict[str, float]:
    """Prints a row; returns its figures."""
    detect = [fault.detect_s for fault in faults]
    recover = [fault.recover_s for fault in faults]
    inside = sum(fault.is_inside for fault in faults)
    print(
        f"{name:10s} {len(faults)} faults, {inside} in the middle; detected after "
        f"{statistics.median(detect):.3f} s (worst {max(detect):.3f}), going on after "
        f"{statistics.median(recover):.2f} s (worst {max(recover):.2f})",
        flush=True,
    )
    return {
        f"{name}_detect_s": statistics.median(detect),
        f"{name}_worst_detect_s": max(detect),
        f"{name}_recover_s": statistics.median(recover),
        f"{name}_worst_recover_s": max(recover),
        f"{name}_inside": inside / len(faults),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.repeats)
    kill = {"at": DIES_AT, "within_s": 0.02, "stops": False}
    figures: dict[str, float] = {}
    found: list[Fault] = []
    stop = {**kill, "stops": True}
    reduce_run, channel_run = (STEPS, ELEMENTS), (0, RECORDS)
    for name, make, link, run, settings, on_failure, deadline_s in (
        ("collective", collective, "gradient", reduce_run, kill, "drop", DEADLINE_S),
        ("restart", collective, "gradient", reduce_run, kill, "restart", DEADLINE_S),
        ("channel", channel, "experience", channel_run, kill, "drop", DEADLINE_S),
        ("hung", collective, "gradient", reduce_run, stop, "drop", HUNG_DEADLINE_S),
    ):
        faults = [
            gmi_fault(
                make(settings, seed=seed, deadline_s=deadline_s, on_failure=on_failure), link, run
            )
            for seed in seeds
        ]
        figures |= show(name, faults)
        found += faults
    with TemporaryDirectory() as folder:
        bench = JobBench(Path(folder), arguments.seed)
        faults = [bench.fault(np.random.default_rng(seed)) for seed in seeds]
    figures |= show("job", faults)
    figures["unnamed"] = sum(not fault.is_named for fault in found + faults)
    finish("recovery", figures, TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
