"""What each part of the learned planner is worth: policies, stages, elites, PPO, messages, search.

Every row plans from scratch with the same budget of simulations, so that no row profits from the
pretrained pair. "value" is the simulated makespan over the best of all rows and seeds, "seconds"
the processor time of one run. Messages per step cost as many encodings as there are steps, so that
comparison is made with a smaller network on both sides (`small`). Finished runs are kept in a file:
a second call goes on where the first one stopped.

    python benchmarks/ablation.py --rows all --simulations 2000 --keep results/ablation.jsonl

Without arguments: four rows, 600 simulations, a few minutes.
"""

import argparse
import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from support.common import finish

from doppler.curriculum import Pair
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.policies.config import Learned, PolicyConfig, PolicyKind
from doppler.training.config import (
    ImitationConfig,
    LearnedMode,
    PPOConfig,
    ReinforceConfig,
    TrainingConfig,
)
from doppler.training.learner import torch_threads
from doppler.transfer import problem_of
from simulator.scorer import CompiledScorer

SEED = 0
CLUSTER = "p100_pcie_4"
Key = tuple[str, str, int, int]
"""Row, graph, simulations, seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of the table.

    Attributes:
        mode: `sample` = no stage II.
        learned: What learns.
        kind: Which pair.
        stage_one: Imitation of the critical-path teacher first.
        elites: Elites imitated in stage II.
        ppo: PPO in place of REINFORCE.
        small: The smaller network.
    """

    mode: LearnedMode = LearnedMode.tune
    learned: Learned = Learned.both
    kind: PolicyKind = PolicyKind.improved
    stage_one: bool = True
    elites: bool = True
    ppo: bool = False
    small: bool = False

    def planner(self) -> LearnedPlanner:
        """Returns the planner of this row."""
        reinforce = PPOConfig() if self.ppo else ReinforceConfig()
        if not self.elites:
            reinforce = dataclasses.replace(reinforce, elite_weight=0.0, elite_batch=0)
        imitation = ImitationConfig() if self.stage_one else ImitationConfig(num_updates=0)
        config = PolicyConfig(kind=self.kind, learned=self.learned)
        if self.small:
            config = dataclasses.replace(config, hidden=24, rank=8, rounds=2)
        return LearnedPlanner(
            mode=self.mode,
            policy_config=config,
            training=TrainingConfig(imitation=imitation, reinforce=reinforce),
        )


PAPER = PolicyKind.paper
DUAL = "dual, I + II"
VARIANTS = {
    DUAL: Variant(),
    "SEL only, I + II": Variant(learned=Learned.select_only),
    "PLC only, I + II": Variant(learned=Learned.place_only),
    "joint, I + II": Variant(learned=Learned.joint),
    "dual, I": Variant(mode=LearnedMode.sample),
    "dual, II": Variant(stage_one=False),
    "dual, I + II, no elites": Variant(elites=False),
    "dual, II, no elites": Variant(stage_one=False, elites=False),
    "joint, I + II, no elites": Variant(learned=Learned.joint, elites=False),
    "dual, I + II by PPO": Variant(ppo=True),
    "paper's pair, I + II": Variant(kind=PAPER),
    "paper's pair, I": Variant(kind=PAPER, mode=LearnedMode.sample),
    "paper's pair, II": Variant(kind=PAPER, stage_one=False),
    "paper's pair, SEL only, I + II": Variant(kind=PAPER, learned=Learned.select_only),
    "paper's pair, PLC only, I + II": Variant(kind=PAPER, learned=Learned.place_only),
    "dual, I + II + search": Variant(mode=LearnedMode.polish),
    "small dual, messages once": Variant(small=True),
    "small dual, messages per step": Variant(small=True, learned=Learned.per_step),
}
FIGURES = {
    "select_only_over_dual": ("SEL only, I + II", DUAL),
    "place_only_over_dual": ("PLC only, I + II", DUAL),
    "joint_over_dual": ("joint, I + II", DUAL),
    "stage_one_over_both": ("dual, I", DUAL),
    "stage_two_over_both": ("dual, II", DUAL),
    "no_elites_over_elites": ("dual, I + II, no elites", DUAL),
    "ppo_over_reinforce": ("dual, I + II by PPO", DUAL),
    "paper_over_improved": ("paper's pair, I + II", DUAL),
    "per_step_over_once": ("small dual, messages per step", "small dual, messages once"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run: value of its plan and processor time."""

    value_ns: int
    seconds: float


def run(variant: Variant, pair: Pair, simulations: int, seed: int) -> Run:
    """Plans once."""
    begin = time.process_time()
    scorer, rng = CompiledScorer(*pair), np.random.default_rng(seed)
    plan = variant.planner()(pair[0], scorer, Budget(simulations), rng)
    seconds = time.process_time() - begin
    return Run(int(CompiledScorer(*pair).score_plans([plan])[0]), seconds)


def stored(file: Path | None) -> dict[Key, Run]:
    """Returns the runs of a file, none where there is no file."""
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        (line["row"], line["graph"], line["simulations"], line["seed"]): Run(
            line["value_ns"], line["seconds"]
        )
        for line in lines
    }


def store(file: Path | None, key: Key, found: Run) -> None:
    """Adds one run to the file."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    names = ("row", "graph", "simulations", "seed")
    entry = dict(zip(names, key, strict=True)) | dataclasses.asdict(found)
    with file.open("a") as stream:
        stream.write(json.dumps(entry) + "\n")


def table(runs: dict[Key, Run], graphs: list[str], title: str) -> Table:
    """Returns value over the best and seconds per row and graph."""
    best = {g: min(run.value_ns for key, run in runs.items() if key[1] == g) for g in graphs}
    found = Table(title=title)
    found.add_column("variant")
    for graph in graphs:
        found.add_column(f"{graph}: over best, mean (min to max)", justify="right")
        found.add_column("seconds", justify="right")
    for name in dict.fromkeys(key[0] for key in runs):
        cells = [name]
        for graph in graphs:
            own = [run for key, run in runs.items() if key[:2] == (name, graph)]
            if not own:
                cells += ["-", "-"]
                continue
            over = np.array([run.value_ns for run in own]) / best[graph]
            cells.append(f"{over.mean():.3f} ({over.min():.3f} to {over.max():.3f}), n={len(own)}")
            cells.append(f"{np.median([run.seconds for run in own]):.1f}")
        found.add_row(*cells)
    return found


def figures(runs: dict[Key, Run], graphs: list[str]) -> dict[str, float]:
    """Returns mean ratios of two rows over graphs and the seeds that both have."""
    found = {}
    for label, (row, base) in FIGURES.items():
        ratios = []
        for graph in graphs:
            pairs = [
                run.value_ns / runs[base, *key[1:]].value_ns
                for key, run in runs.items()
                if key[:2] == (row, graph) and (base, *key[1:]) in runs
            ]
            if pairs:
                ratios.append(float(np.mean(pairs)))
        if ratios:
            found[label] = float(np.mean(ratios))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = [DUAL, "SEL only, I + II", "PLC only, I + II", "joint, I + II"]
    parser.add_argument("--rows", nargs="+", default=default, choices=["all", *VARIANTS])
    parser.add_argument("--simulations", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--graphs", nargs="+", default=["matmul_chain"])
    parser.add_argument("--keep", type=Path, help="file of finished runs")
    arguments = parser.parse_args()
    rows = list(VARIANTS) if "all" in arguments.rows else arguments.rows
    known, runs = stored(arguments.keep), {}
    with torch_threads(1):
        for seed in range(SEED, SEED + arguments.seeds):
            for graph in arguments.graphs:
                pair = problem_of(graph, CLUSTER)
                for row in rows:
                    key = (row, graph, arguments.simulations, seed)
                    if key not in known:
                        known[key] = run(VARIANTS[row], pair, arguments.simulations, seed)
                        store(arguments.keep, key, known[key])
                    runs[key] = known[key]
    title = f"{arguments.simulations} simulations, {arguments.seeds} seeds, {CLUSTER}"
    Console(width=160).print(table(runs, arguments.graphs, title))
    finish("ablation", figures(runs, arguments.graphs), {}, seed=SEED)


if __name__ == "__main__":
    main()
