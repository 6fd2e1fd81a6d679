"""The pretrained policies on 100 generated graphs that they have not seen.

Half of the graphs come from families that the training left out (stencil, out-tree, Cholesky, QR),
the others from its families at sizes above its largest; CCR 0.1 to 10, equal and different devices,
2 to 12 of them, four topologies. HEFT is HEFT with insertion; every value is the simulator's.

    greedy_over_heft        most likely episode / HEFT
    best64_over_perturbed64 best of the greedy episode and 63 samples / of 64 perturbed HEFT runs
    seeded_over_heft_seeded annealing from the best of 64 episodes / annealing from HEFT, as many
                            plans scored in all (those 64 included)

With `--rows FILE` every graph's ratios are kept in a file as they come, and a run that was stopped
goes on; the file must be of the same policy and number of calls.

    python benchmarks/zero_shot.py [--calls 1000] [--quick] [--policy FOLDER] [--rows FILE]
"""

import argparse
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from support.common import finish

from doppler.core.plan import Plan, make_plan
from doppler.curriculum import HELD_OUT, MAX_OPS, TRAINED_ON, Pair, heft_arrays
from doppler.graphs.families import FamilySpec, Topology
from doppler.planners.annealing import AnnealingSettings, anneal
from doppler.planners.base import Budget
from doppler.planners.registry import get_planner
from doppler.policies.build import build_assignment
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.pretrained import load_pretrained
from doppler.policies.sampling import SampleMode, Temperature, plan_arrays
from doppler.policies.storage import load_policy
from doppler.training.learner import torch_threads
from simulator.scorer import CompiledScorer

TARGETS = {
    "greedy_over_heft_mean": "<= 0.95",
    "greedy_over_heft_max": "<= 1.10",
    "best64_over_perturbed64": "<= 1.0",
    "seeded_over_heft_seeded": "<= 1.0",
}
SEED = 20_261_129
SAMPLES = 64
TEMPERATURE = Temperature(select=0.3, place=0.3)
CCRS = (0.1, 0.5, 1.0, 3.0, 10.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one graph gave."""

    spec: FamilySpec
    greedy: float
    best64: float
    seeded: float


def specs(count: int) -> list[FamilySpec]:
    """The held-out problems; equal for every run."""
    rng = np.random.default_rng(SEED)
    found = []
    for index in range(count):
        unseen = index % 2 == 0
        families = HELD_OUT if unseen else TRAINED_ON
        smallest, largest = (40, 300) if unseen else (MAX_OPS + 20, 400)
        found.append(
            FamilySpec(
                family=families[index // 2 % len(families)],
                num_ops=int(np.exp(rng.uniform(np.log(smallest), np.log(largest)))),
                num_devices=int(rng.integers(2, 13)),
                ccr=CCRS[index // 2 % len(CCRS)],
                heterogeneity=float(rng.choice([0.0, 0.3, 0.6])),
                speed_spread=float(rng.choice([1.0, 1.5, 2.0])),
                topology=tuple(Topology)[int(rng.integers(len(Topology)))],
                seed=int(rng.integers(2**31)),
            )
        )
    return found


def measure(policy: DualPolicy, spec: FamilySpec, calls: int) -> Row:
    """The three ratios of one problem."""
    instance = spec.instance()
    pair: Pair = (instance.problem, instance.costs)
    problem, costs = pair
    scorer = CompiledScorer(problem, costs)
    heft_plan = heft_arrays(pair)
    heft = int(scorer.score(*heft_plan)[0])
    inputs = policy_inputs(build_assignment(problem, costs), policy.config)
    rng = np.random.default_rng(spec.seed)
    plans = []
    for mode, count in ((SampleMode.greedy, 1), (SampleMode.sample, SAMPLES - 1)):
        rollouts = policy.sample(inputs, count, rng, mode=mode, temperature=TEMPERATURE)
        plans.append(plan_arrays(inputs.assignment, rollouts))
    placements = np.concatenate([plan[0] for plan in plans])
    priorities = np.concatenate([plan[1] for plan in plans])
    values = scorer.score(placements, priorities)
    perturbed = _value(
        pair,
        get_planner("perturbed_heft")(
            problem, scorer, Budget(SAMPLES), np.random.default_rng(spec.seed)
        ),
    )
    best = int(values.argmin())
    ours = _annealed(pair, (placements[best], priorities[best]), calls - SAMPLES, spec.seed)
    theirs = _annealed(pair, (heft_plan[0][0], heft_plan[1][0]), calls, spec.seed)
    return Row(
        spec=spec,
        greedy=int(values[0]) / heft,
        best64=int(values[best]) / perturbed,
        seeded=ours / theirs,
    )


def _annealed(pair: Pair, seed_plan: tuple[np.ndarray, np.ndarray], calls: int, seed: int) -> int:
    problem, costs = pair
    placement, priority = seed_plan
    start = make_plan(problem, tuple(placement.tolist()), tuple(priority.tolist()), "seed")
    scorer = CompiledScorer(problem, costs)
    rng = np.random.default_rng(seed)
    found = anneal(problem, scorer, Budget(calls), rng, AnnealingSettings(), seeds=(start,))
    return _value(pair, found)


def _value(pair: Pair, plan: Plan) -> int:
    return int(CompiledScorer(*pair).score_plans([plan])[0])


def measured(policy: DualPolicy, chosen: list[FamilySpec], calls: int, file: Path) -> list[Row]:
    """Measures what the file does not have yet."""
    weights = b"".join(value.numpy().tobytes() for value in policy.state_dict().values())
    key = {"policy": hashlib.sha256(weights).hexdigest(), "calls": calls}
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if any({name: line[name] for name in key} != key for line in lines):
        raise SystemExit(f"{file} is of another policy or number of calls")
    rows = [
        Row(spec=spec, greedy=line["greedy"], best64=line["best64"], seeded=line["seeded"])
        for spec, line in zip(chosen, lines, strict=False)
    ]
    with file.open("a") as stream:
        for spec in chosen[len(rows) :]:
            row = measure(policy, spec, calls)
            values = {"greedy": row.greedy, "best64": row.best64, "seeded": row.seeded}
            stream.write(json.dumps({**key, **values}) + "\n")
            stream.flush()
            rows.append(row)
    return rows


def show(rows: list[Row]) -> None:
    """Prints means by family and by topology, and the worst graphs."""
    console, table = Console(), Table(title="ratio of means per group")
    for heading in ("group", "graphs", "greedy/HEFT", "worst", "best64", "seeded"):
        table.add_column(heading, justify="left" if heading == "group" else "right")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        unseen = " (unseen)" if row.spec.family in HELD_OUT else ""
        for label in (
            f"{row.spec.family.value}{unseen}",
            f"CCR {row.spec.ccr:g}",
            f"topology {row.spec.topology.value}",
        ):
            groups.setdefault(label, []).append(row)
    for label, members in sorted(groups.items()):
        greedy = [row.greedy for row in members]
        table.add_row(
            label,
            str(len(members)),
            f"{np.mean(greedy):.3f}",
            f"{max(greedy):.3f}",
            f"{np.mean([row.best64 for row in members]):.3f}",
            f"{np.mean([row.seeded for row in members]):.3f}",
        )
    console.print(table)
    for row in sorted(rows, key=lambda row: -row.greedy)[:5]:
        print(f"greedy {row.greedy:.3f}  {row.spec}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000, help="plans per annealing run")
    parser.add_argument("--policy", type=Path, help="another policy's folder")
    parser.add_argument("--rows", type=Path, help="file of finished graphs, to go on from")
    parser.add_argument("--quick", action="store_true", help="20 graphs")
    arguments = parser.parse_args()
    policy = load_policy(arguments.policy) if arguments.policy else load_pretrained()
    chosen = specs(20 if arguments.quick else 100)
    with torch_threads(1):
        if arguments.rows:
            rows = measured(policy, chosen, arguments.calls, arguments.rows)
        else:
            rows = [measure(policy, spec, arguments.calls) for spec in chosen]
    show(rows)
    greedy = [row.greedy for row in rows]
    figures = {
        "greedy_over_heft_mean": float(np.mean(greedy)),
        "greedy_over_heft_median": float(np.median(greedy)),
        "greedy_over_heft_max": max(greedy),
        "best64_over_perturbed64": float(np.mean([row.best64 for row in rows])),
        "best64_over_perturbed64_max": max(row.best64 for row in rows),
        "seeded_over_heft_seeded": float(np.mean([row.seeded for row in rows])),
        "seeded_over_heft_seeded_max": max(row.seeded for row in rows),
        "graphs": len(rows),
    }
    finish("zero_shot", figures, TARGETS, seed=SEED)


if __name__ == "__main__":
    main()
