"""The main job for real: learned plan against the best baseline, one core, and an ordinary loop.

Ratios of periods from interleaved ABBA blocks; a figure is the bad end of its 95 % interval.
`ceiling` is what two pinned processes reach with the same kernels and nothing to wait for.
Calibration is part of `learn_seconds`, unless `--reuse` allows a table of an earlier run.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from support.common import finish

from doppler.compose import compose_config
from doppler.config import LearnConfig
from doppler.console import View
from doppler.core.plan import Plan
from doppler.learn_run import WARMUP_ITERATIONS, LearnRun
from doppler.learning import learn
from doppler.measure import Blocks, Interval, interleave, measured_period_ns
from doppler.session import JobSession
from executor.drl.config import PPOJobConfig
from executor.drl.plain import PlainPPO
from executor.messages import ProfileTask
from executor.options import ExecutorOptions

SETTLE_S = 0.3
"""Idle time before a window, so that no thread of the other side is still spinning."""

TARGETS = {
    "learned_over_best_baseline": "<= 1.03 (upper bound)",
    "single_over_learned": ">= 0.8 x ceiling (lower bound)",
    "single_over_learned_over_ceiling": ">= 0.8",
    "plain_over_learned": ">= 1.0 (lower bound)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="ppo_ant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=12, help="ABBA blocks at most")
    parser.add_argument("--reuse", action="store_true", help="take a cost table from the cache")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        words = [f"job={arguments.job}", f"seed={arguments.seed}", f"results='{folder}'"]
        if not arguments.reuse:
            words.append(f"cost_cache='{folder}/cost_tables'")
        config = compose_config(LearnConfig, words)
        view = View(Console(stderr=True))
        run = learn(config, ["doppler", "learn", *words], lambda *_: Path(folder), view)
    figures = measure(run, arguments.blocks)
    finish("main_job", figures, TARGETS, seed=arguments.seed)


def measure(run: LearnRun, max_blocks: int) -> dict[str, float]:
    """Measures one core and the ordinary loop against the learned plan."""
    assert run.comparison is not None
    assert run.learned_plan is not None
    learned = run.learned_plan
    single = next(c for c in run.candidates if c.name == "single_device").result.plan
    length = run.config.training.window_iterations
    with JobSession(run.job, run.problem, ExecutorOptions()) as session:
        session.run(learned, WARMUP_ITERATIONS)

        def window(plan: Plan) -> float:
            time.sleep(SETTLE_S)
            return measured_period_ns(session.run(plan, length))

        def against_learned(first: Callable[[], float]) -> Blocks:
            return interleave(
                first,
                lambda: window(learned),
                min_blocks=3,
                max_blocks=max_blocks,
                half_width=0.03,
            )

        one_core = against_learned(lambda: window(single))
        ceiling = measure_ceiling(session, length)
        with PlainLoop(run.job.config, run.problem.cluster.num_devices) as plain:
            plain.run(WARMUP_ITERATIONS)
            ordinary = against_learned(lambda: plain.run(length))
    best = run.comparison.ratio
    show("learned / " + run.best_baseline, best, run.comparison.blocks)
    show("single device / learned", one_core.ratio, one_core.num_blocks)
    show("ordinary loop / learned", ordinary.ratio, ordinary.num_blocks)
    for candidate in run.candidates:
        if candidate.measured_ns is not None:
            measured = candidate.measured_ns
            print(
                f"{candidate.name:16s} simulated {candidate.result.value_ns / 1e6:8.2f} ms   "
                f"measured {measured.value / 1e6:8.2f} ms "
                f"[{measured.low / 1e6:.2f}, {measured.high / 1e6:.2f}]"
            )
    print("steps of doppler learn:", {k: round(v, 1) for k, v in run.seconds.items()})
    return {
        "learned_over_best_baseline": best.high,
        "learned_over_best_baseline_mean": best.value,
        "single_over_learned": one_core.ratio.low,
        "single_over_learned_mean": one_core.ratio.value,
        "ceiling": ceiling,
        "single_over_learned_over_ceiling": one_core.ratio.low / ceiling,
        "plain_over_learned": ordinary.ratio.low,
        "plain_over_learned_mean": ordinary.ratio.value,
        "learned_ms": median_ms(one_core),
        "learn_seconds": sum(run.seconds.values()),
        "learn_run_seconds_without_calibration": sum(run.seconds.values())
        - run.seconds["calibrate"],
    }


def show(label: str, ratio: Interval, blocks: int) -> None:
    print(f"{label:36s} {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] ({blocks} blocks)")


def median_ms(blocks: Blocks) -> float:
    """Median period of the second side, in ms."""
    return float(np.median(blocks.second)) / 1e6


def measure_ceiling(session: JobSession, repeats: int) -> float:
    """Speed-up of two pinned processes over one, every op of an iteration, nothing to wait for."""
    ops = tuple(range(session.problem.graph.num_ops))
    executor = session.executor
    devices = range(session.problem.cluster.num_devices)
    ratios = []
    for _ in range(3):
        alone = executor.profile([ProfileTask(device=0, ops=ops, repeats=repeats)])
        together = executor.profile(
            [ProfileTask(device=device, ops=ops, repeats=repeats) for device in devices]
        )
        one = sum(float(np.median(alone[0, op])) for op in ops)
        both = [sum(float(np.median(together[d, op])) for op in ops) for d in devices]
        ratios.append(sum(one / time_ns for time_ns in both))
    return float(np.median(ratios))


class PlainLoop:
    """The ordinary PPO loop in a process of its own, with a thread per core."""

    def __init__(self, config: PPOJobConfig, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, config.to_dict(), threads))
        self._process.start()
        theirs.close()

    def __enter__(self) -> "PlainLoop":
        return self

    def __exit__(self, *_: object) -> None:
        self._control.send(0)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()

    def run(self, iterations: int) -> float:
        """Returns the median time per iteration in ns."""
        time.sleep(SETTLE_S)
        self._control.send(iterations)
        if not self._control.poll(300):
            raise TimeoutError("the ordinary loop has not answered for 300 s")
        return float(np.median(self._control.recv()))


def _serve(control: Connection, config: dict[str, object], threads: int) -> None:
    loop = PlainPPO(PPOJobConfig.from_dict(config), threads)
    while iterations := control.recv():
        times = []
        for _ in range(iterations):
            start = time.perf_counter_ns()
            loop.step()
            times.append(time.perf_counter_ns() - start)
        control.send(times)
    loop.close()


if __name__ == "__main__":
    main()
