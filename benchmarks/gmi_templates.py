"""Mapping templates for real: steps per second of every template, measured and predicted.

A cell is one job in one mode with one number of environments. All executors of a cell live at the
same time and run short windows in turns, so that a change of the machine's speed meets all rows of
the cell alike. Predictions come from the simulator; its times are calibrated first, in each cell,
from two plans only: everything on one device, and shards dealt out in turns.

Templates that need more GMIs than there are cores run with two GMIs on one core; the simulator does
not know of that, so such rows are marked, and their pairs are counted apart.

`policy`: the learned planner places every variant that fits the cores, at equal budget, and its
plans are measured in all rounds beside the templates. The rounds decide which template and which of
the policy's plans is best; the ratio of these two comes from ABBA blocks after the rounds.

`learned` is what the coordinator would run: as stage III, it begins with a plan that is there, the
best template's, and leaves it only for a plan of the policy that is faster in the rounds by the
exact interval of the paired ratios (faster in all six). Where it keeps the template's plan, their
ratio is 1 and nothing is left to measure; else it is the one of the ABBA blocks. How often it is
which, and the ratio of the policy's plans alone, are figures of their own.

`--resume FILE` keeps finished cells, so that the run may be cut into pieces (six to eight minutes
per `--job` on two quiet cores); `foreign_cores` says how many cores other programs kept busy in the
last piece.
"""

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from support.common import finish
from support.template_cell import NUM_SHARDS, STALENESS, Candidate, CellBench

from doppler.core.job_mode import JobMode
from doppler.measure import (
    MIN_BLOCKS,
    MIN_RATIOS,
    Interval,
    interleave,
    keep_or_leave,
    median_interval,
)
from executor.host import cpu_times, foreign_cpu

ENVS_PER_SHARD = {"ppo_ant": (4, 8, 16), "ppo_humanoid": (1, 2, 4)}
ROUNDS = MIN_RATIOS

TARGETS = {
    "concordance": ">= 0.85",
    "worst_learned_over_best_template": ">= 0.97 (lower bound)",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One template in one cell.

    Attributes:
        name: Template and GMIs per role, or "policy" and the form of the graph.
        gmis: GMIs in all.
        oversubscribed: More GMIs than cores.
        predicted: Steps per second.
        measured, low, high: Steps per second: median of the windows and its 95 % interval.
    """

    name: str
    gmis: int
    oversubscribed: bool
    predicted: float
    measured: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One job in one mode with one number of environments.

    Attributes:
        job, mode: Names.
        num_envs: Environments in all.
        rows: Templates.
        policy: The policy's plans.
        best: Name of the template with the most steps per second.
        policy_best: Name of the policy's plan with the most.
        policy_ratio, policy_low: Steps per second of the policy's best plan over those of the best
            template: the median of neighbouring windows, and the lower end of its interval.
        is_policy_chosen: Learned is the policy's plan; else it is the best template's, ratio 1.
        phases: Seconds that calibration (with start-up), planning and measuring took.
    """

    job: str
    mode: str
    num_envs: int
    rows: tuple[Row, ...]
    policy: tuple[Row, ...]
    best: str
    policy_best: str
    policy_ratio: float
    policy_low: float
    is_policy_chosen: bool
    phases: tuple[float, float, float]

    @property
    def ratio(self) -> float:
        """Steps per second of the learned plan over those of the best template."""
        return self.policy_ratio if self.is_policy_chosen else 1.0

    @property
    def ratio_low(self) -> float:
        """The lower end of its interval."""
        return self.policy_low if self.is_policy_chosen else 1.0

    @property
    def seconds(self) -> float:
        """How long the cell took."""
        return sum(self.phases)


def measure_cell(name: str, mode: JobMode, envs_per_shard: int, blocks: int, seed: int) -> Cell:
    """Measures and predicts one cell."""
    marks = [time.perf_counter()]
    with ExitStack() as stack:
        bench = CellBench(name, mode, envs_per_shard, seed, stack)
        marks.append(time.perf_counter())
        templates = bench.templates()
        rows = [*templates, *bench.placed(templates)]
        marks.append(time.perf_counter())
        rates: dict[int, list[float]] = {index: [] for index in range(len(rows))}
        for turn in range(ROUNDS + 1):
            order = list(rates) if turn % 2 == 0 else list(reversed(rates))
            for index in order:
                rate = bench.rate(rows[index])
                if turn:  # the first round warms up
                    rates[index].append(rate)
        medians = {index: statistics.median(values) for index, values in rates.items()}
        fitting = [i for i, row in enumerate(templates) if not row.oversubscribed]
        best = max(fitting, key=lambda i: medians[i])
        placed = max(range(len(templates), len(rows)), key=lambda i: medians[i])
        pair = [[1 / rate for rate in rates[index]] for index in (best, placed)]
        compared = interleave(
            lambda: bench.rate(rows[placed]),
            lambda: bench.rate(rows[best]),
            min_blocks=MIN_BLOCKS,
            max_blocks=blocks,
            half_width=0.02,
        )
    marks.append(time.perf_counter())
    calibrating, planning, measuring = (b - a for a, b in itertools.pairwise(marks))
    rng = np.random.default_rng(seed)
    measured = [
        row_of(candidate, median_interval(rates[index], rng))
        for index, candidate in enumerate(rows)
    ]
    return Cell(
        job=name,
        mode=mode.value,
        num_envs=envs_per_shard * NUM_SHARDS,
        rows=tuple(measured[: len(templates)]),
        policy=tuple(measured[len(templates) :]),
        best=rows[best].name,
        policy_best=rows[placed].name,
        policy_ratio=compared.ratio.value,
        policy_low=compared.ratio.low,
        is_policy_chosen=keep_or_leave(pair, incumbent=0) == 1,
        phases=(calibrating, planning, measuring),
    )


def row_of(candidate: Candidate, interval: Interval) -> Row:
    return Row(
        name=candidate.name,
        gmis=candidate.variant.problem.cluster.num_devices,
        oversubscribed=candidate.oversubscribed,
        predicted=candidate.predicted,
        measured=interval.value,
        low=interval.low,
        high=interval.high,
    )


def concordance(cells: list[Cell], oversubscribed: bool = False) -> tuple[float, int]:
    """Returns the part of pairs that are predicted in the measured order, and their number.

    A pair is two rows of one job and mode (at any numbers of environments) whose measured intervals
    do not overlap. With `oversubscribed`, pairs with at least one such row; else pairs without.
    """
    right = total = 0
    groups: dict[tuple[str, str], list[Row]] = {}
    for cell in cells:
        groups.setdefault((cell.job, cell.mode), []).extend(cell.rows)
    for rows in groups.values():
        for a, b in itertools.combinations(rows, 2):
            if (a.oversubscribed or b.oversubscribed) != oversubscribed:
                continue
            if a.low <= b.high and b.low <= a.high:
                continue
            total += 1
            right += (a.predicted < b.predicted) == (a.measured < b.measured)
    return (right / total if total else math.nan), total


def show(cell: Cell) -> None:
    calibrating, planning, measuring = cell.phases
    print(
        f"\n{cell.job}, {cell.mode}, {cell.num_envs} environments "
        f"({calibrating:.0f} s calibration, "
        f"{planning:.0f} s planning, {measuring:.0f} s measuring)"
    )
    for row in (*cell.rows, *cell.policy):
        mark = "  oversubscribed" if row.oversubscribed else ""
        print(
            f"  {row.name:28s} {row.gmis} GMIs  measured {row.measured:8,.0f} "
            f"[{row.low:8,.0f}, {row.high:8,.0f}]  predicted {row.predicted:8,.0f} steps/s{mark}"
        )
    chosen = cell.policy_best if cell.is_policy_chosen else cell.best
    print(
        f"  {cell.policy_best} over {cell.best}: {cell.policy_ratio:.3f}, lower bound "
        f"{cell.policy_low:.3f}; learned is {chosen}",
        flush=True,
    )


def figures_of(cells: list[Cell]) -> dict[str, float]:
    agreement, pairs = concordance(cells)
    crowded, crowded_pairs = concordance(cells, oversubscribed=True)
    errors = [
        abs(row.predicted / row.measured - 1)
        for cell in cells
        for row in cell.rows
        if not row.oversubscribed
    ]
    figures = {
        "concordance": agreement,
        "num_pairs": pairs,
        "concordance_oversubscribed": crowded,
        "num_pairs_oversubscribed": crowded_pairs,
        "median_prediction_error": statistics.median(errors),
        "worst_learned_over_best_template": min(cell.ratio_low for cell in cells),
        "worst_learned_over_best_template_median": min(cell.ratio for cell in cells),
        "median_learned_over_best_template": statistics.median(cell.ratio for cell in cells),
        "num_cells_with_a_plan_of_the_policy": sum(cell.is_policy_chosen for cell in cells),
        "worst_policy_over_best_template": min(cell.policy_low for cell in cells),
        "worst_policy_over_best_template_median": min(cell.policy_ratio for cell in cells),
        "median_policy_over_best_template": statistics.median(c.policy_ratio for c in cells),
        "num_cells": len(cells),
        "seconds": sum(cell.seconds for cell in cells),
    }
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def write(path: Path, cells: list[Cell]) -> None:
    path.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells], indent=1), "utf-8")


def read(path: Path | None) -> list[Cell]:
    if path is None or not path.exists():
        return []
    return [
        Cell(
            **{
                **cell,
                "rows": tuple(Row(**row) for row in cell["rows"]),
                "policy": tuple(Row(**row) for row in cell["policy"]),
                "phases": tuple(cell["phases"]),
            }
        )
        for cell in json.loads(path.read_text("utf-8"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=5, help="ABBA blocks at most per cell")
    parser.add_argument("--resume", type=Path, help="file of finished cells, read and written")
    parser.add_argument("--job", action="append", choices=list(ENVS_PER_SHARD))
    arguments = parser.parse_args()
    before = cpu_times()
    cells = read(arguments.resume)
    done = {(cell.job, cell.mode, cell.num_envs) for cell in cells}
    for name, mode in itertools.product(arguments.job or ENVS_PER_SHARD, STALENESS):
        for count in ENVS_PER_SHARD[name]:
            if (name, mode.value, count * NUM_SHARDS) in done:
                continue
            cells.append(measure_cell(name, mode, count, arguments.blocks, arguments.seed))
            show(cells[-1])
            if arguments.resume:
                write(arguments.resume, cells)
    figures = figures_of(cells)
    figures["foreign_cores"] = foreign_cpu(before, cpu_times())
    finish("gmi_templates", figures, TARGETS, seed=arguments.seed)


if __name__ == "__main__":
    main()
