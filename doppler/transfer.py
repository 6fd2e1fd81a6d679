"""`doppler transfer`: what policies learned on one graph and cluster are worth on another.

The transfer checkpoint is the pretrained pair (or another one: `policy`) after stage II on the
source. Arms, all on the target, few = as many simulations as few-shot:

zero_shot            the checkpoint as it is
few_shot             the guided planner round the checkpoint (no weight changes)
few_shot_simulated   the same without predictions: every guide is simulated
few_shot_heft        the same without policies: only HEFT's ranks are drawn round
few_shot_tuned       the checkpoint tuned by stage II
pretrained           the guided planner round the pair before stage II on the source
scratch              policies from nothing, many episodes
heft, perturbed_heft_few, annealing_few, annealing_many, portfolio_long
                     rules and searches, with few, many, or a long run's simulations
stale_plan           the plan that was best for the target's graph on the source's cluster

Values are compared with the best known plan of the case where there is one
(`benchmarks/transfer.py`), else with the best of all arms and seeds of the run.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from doppler.api import make_scorer
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, nearest
from doppler.core.graph import DataflowGraph
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.graphs.ffnn import ffnn
from doppler.graphs.llama import llama_block
from doppler.graphs.matmul_chain import matmul_chain
from doppler.metrics_log import MetricsLog
from doppler.planners.base import Budget, Planner
from doppler.planners.bounds import lower_bounds
from doppler.planners.guided import GuidedPlanner
from doppler.planners.guides import GuidedSettings
from doppler.planners.learned import LearnedPlanner
from doppler.planners.learned_run import PlanProgress
from doppler.planners.predicted_walk import PredictedSettings
from doppler.planners.registry import get_planner
from doppler.policies.dual import DualPolicy
from doppler.policies.pretrained import load_pretrained
from doppler.policies.storage import load_policy
from doppler.policy_config import TransferConfig
from doppler.provenance import revision
from doppler.results import command_text
from doppler.training.config import LearnedMode
from simulator.costs.roofline import RooflineModel
from simulator.hardware.catalogue import load_catalogue
from simulator.hardware.machines import named_cluster

TABLE_FILE = "transfer.json"
CHART_FILE = "transfer.png"

Pair = tuple[Problem, Costs]
Curve = list[tuple[int, int]]
"""(simulations, best value so far in ns), one entry per improvement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCase:
    """Names of graphs and of catalogue machines; the target's are new to the policies.

    Attributes:
        source_graph, source_cluster: What the policies are trained on.
        target_graph, target_cluster: What they are used on.
    """

    source_graph: str
    source_cluster: str
    target_graph: str
    target_cluster: str


GRAPHS: dict[str, Callable[[], DataflowGraph]] = {
    "matmul_chain": lambda: matmul_chain().graph,
    "ffnn": lambda: ffnn().graph,
    "llama_block": lambda: llama_block().graph,
}

CASES = {
    "graph_to_graph": TransferCase(
        source_graph="matmul_chain",
        source_cluster="p100_pcie_4",
        target_graph="llama_block",
        target_cluster="p100_pcie_4",
    ),
    "p100_to_v100": TransferCase(
        source_graph="matmul_chain",
        source_cluster="p100_pcie_4",
        target_graph="llama_block",
        target_cluster="dgx1_v100",
    ),
    "a100_to_h100": TransferCase(
        source_graph="matmul_chain",
        source_cluster="dgx_a100",
        target_graph="llama_block",
        target_cluster="dgx_h100",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm with one seed.

    Attributes:
        case, arm: Names.
        seed: Seed of the arm.
        simulations: Plans that it scored on the target.
        cpu_seconds: Processor time that it took there.
        value_ns: Its best plan's value on the target.
        curve: How it got there.
        plan: That plan.
    """

    case: str
    arm: str
    seed: int
    simulations: int
    cpu_seconds: float
    value_ns: int
    curve: Curve
    plan: Plan

    def entry(self) -> dict[str, object]:
        """Returns what the table's data says of it; plans are not kept there."""
        document = asdict(self)
        del document["plan"]
        return document


def transfer(config: TransferConfig, command: Sequence[str]) -> None:
    """The command `doppler transfer`; see `measure_transfer`."""
    measure_transfer(config, command)


def measure_transfer(
    config: TransferConfig, command: Sequence[str], known: Mapping[str, int] | None = None
) -> tuple[list[ArmResult], dict[str, int]]:
    """Runs every case with every seed; writes the table, the chart and their data.

    Args:
        config: Cases, seeds and budgets.
        command: What was called, for the data.
        known: Value of the best known plan per case, in ns; of other cases it is the best of all
            arms and seeds.

    Returns:
        (a row per case, seed and arm; best known value per case)
    """
    for name in config.cases:
        if name not in CASES:
            raise ConfigError(f"transfer case {name!r} is unknown; {nearest(name, CASES)}")
    view, folder = View(), Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    results: list[ArmResult] = []
    bounds: dict[str, int] = {}
    log = MetricsLog(folder, tensorboard=config.tensorboard)
    log.begin()
    with log, view.progress("cases x seeds", len(config.cases) * config.seeds) as advance:
        for name in config.cases:
            target = problem_of(CASES[name].target_graph, CASES[name].target_cluster)
            bounds[name] = lower_bounds(*target).best_ns
            for seed in range(config.seed, config.seed + config.seeds):
                results += run_case(name, target, seed, config, log)
                advance(1, f"{name}, seed {seed}")
    met = {name: min(row.value_ns for row in results if row.case == name) for name in config.cases}
    best = met | {name: value for name, value in (known or {}).items() if name in met}
    document = {
        "command": command_text(command),
        "revision": revision(),
        "cases": {name: asdict(CASES[name]) for name in config.cases},
        "bounds_ns": bounds,
        "best_known_ns": best,
        "best_of_run_ns": met,
        "rows": [row.entry() for row in results],
    }
    (folder / TABLE_FILE).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    view.show(_table(results, best, bounds))
    draw_chart(results, best, folder / CHART_FILE)
    view.line(f"chart: {folder / CHART_FILE}; data: {folder / TABLE_FILE}")
    return results, best


def problem_of(graph: str, cluster: str) -> Pair:
    """Returns a named graph on a named machine with roofline times."""
    problem = Problem(graph=GRAPHS[graph](), cluster=named_cluster(load_catalogue(), cluster))
    return problem, RooflineModel().costs(problem)


def run_case(
    name: str, target: Pair, seed: int, config: TransferConfig, log: MetricsLog
) -> list[ArmResult]:
    """Returns all arms of one case with one seed; the log gets every update of training."""
    case = CASES[name]
    source = problem_of(case.source_graph, case.source_cluster)
    pair = load_policy(Path(config.policy)) if config.policy else load_pretrained()
    teacher = LearnedPlanner(mode=LearnedMode.tune, policy=_copy(pair))
    _run(teacher, source, config.source_episodes, seed, name, "source", log)
    assert teacher.policy is not None
    few, many = config.few_shot, config.scratch
    steps = config.predictions
    predicted = PredictedSettings(fewest_steps=max(1, steps // 4), steps=steps)
    few_shot = GuidedPlanner(policy=_copy(teacher.policy), predicted=predicted)
    no_policy = GuidedPlanner(settings=GuidedSettings(finish_share=1.0), predicted=predicted)
    zero = LearnedPlanner(mode=LearnedMode.greedy, policy=_copy(teacher.policy))
    tuned = LearnedPlanner(mode=LearnedMode.tune, policy=_copy(teacher.policy))
    planners: dict[str, tuple[Planner, int]] = {
        "zero_shot": (zero, 1),
        "few_shot": (few_shot, few),
        "few_shot_simulated": (GuidedPlanner(policy=_copy(teacher.policy), predicted=None), few),
        "few_shot_heft": (no_policy, few),
        "few_shot_tuned": (tuned, few),
        "pretrained": (GuidedPlanner(policy=pair, predicted=predicted), few),
        "scratch": (LearnedPlanner(mode=LearnedMode.tune), many),
        "heft": (get_planner("heft"), 4),
        "perturbed_heft_few": (get_planner("perturbed_heft"), few),
        "annealing_few": (get_planner("annealing"), few),
        "annealing_many": (get_planner("annealing"), many),
        "portfolio_long": (get_planner("portfolio"), config.reference),
    }
    rows = [
        _run(planner, target, calls, seed, name, arm, log)
        for arm, (planner, calls) in planners.items()
    ]
    stale = _stale_plan(case, target, config.reference, seed)
    value = _value(target, stale)
    rows.append(
        ArmResult(
            case=name,
            arm="stale_plan",
            seed=seed,
            simulations=1,
            cpu_seconds=0.0,
            value_ns=value,
            curve=[(1, value)],
            plan=stale,
        )
    )
    return rows


def draw_chart(results: Sequence[ArmResult], best: dict[str, int], path: Path) -> None:
    """Draws value over best known against simulations on the target, one panel per case."""
    import matplotlib  # noqa: PLC0415 - slow to import, and needed here only

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, len(best), figsize=(5.2 * len(best), 4.0), squeeze=False)
    for axis, case in zip(axes[0], best, strict=True):
        highest = 1.0
        for arm in ("few_shot", "few_shot_simulated", "few_shot_tuned", "scratch"):
            rows = [row for row in results if row.case == case and row.arm == arm]
            ends = max(row.simulations for row in rows)
            grid = np.unique(np.geomspace(1, max(2, ends), 80).astype(int))
            lines = np.array([_at(row.curve, grid) for row in rows]) / best[case]
            highest = max(highest, float(lines.max()))
            axis.plot(grid, lines.mean(axis=0), label=arm.replace("_", " "))
            axis.fill_between(grid, lines.min(axis=0), lines.max(axis=0), alpha=0.15)
        for arm, style in (("heft", ":"), ("stale_plan", "--"), ("annealing_few", "-.")):
            rows = [row for row in results if row.case == case and row.arm == arm]
            mean = float(np.mean([row.value_ns for row in rows])) / best[case]
            label = f"{arm.replace('_', ' ')} ({mean:.2f})"
            axis.axhline(mean, linestyle=style, color="grey", label=label)
        axis.set_xscale("log")
        axis.set_ylim(1.0 - 0.05 * (highest - 1.0), 1.0 + 1.1 * (highest - 1.0) + 1e-3)
        axis.set_title(case.replace("_", " "))
        axis.set_xlabel("simulations on the target")
        axis.set_ylabel("value / best known")
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _copy(policy: DualPolicy) -> DualPolicy:
    copy = DualPolicy(policy.config, seed=0)
    copy.load_state_dict(policy.state_dict())
    return copy


def _run(
    planner: Planner, pair: Pair, calls: int, seed: int, case: str, arm: str, log: MetricsLog
) -> ArmResult:
    """Returns what one planner makes of one problem."""
    scorer = make_scorer(*pair)
    curve: Curve = []
    if isinstance(planner, LearnedPlanner | GuidedPlanner):

        def note(progress: PlanProgress) -> None:
            curve.append((progress.simulations, progress.best_ns))

        planner.on_progress = note
    if isinstance(planner, LearnedPlanner):
        planner.on_record = lambda record: log.write(record, case=case, arm=arm, seed=seed)
    start = time.process_time()
    plan = planner(pair[0], scorer, Budget(calls), np.random.default_rng(seed))
    spent = time.process_time() - start
    used, value = scorer.num_calls, _value(pair, plan)
    return ArmResult(
        case=case,
        arm=arm,
        seed=seed,
        simulations=used,
        cpu_seconds=round(spent, 3),
        value_ns=value,
        curve=curve or [(used, value)],
        plan=plan,
    )


def _stale_plan(case: TransferCase, target: Pair, calls: int, seed: int) -> Plan:
    """Returns, for the target's cluster, the plan that is best for its graph on the source's."""
    old = problem_of(case.target_graph, case.source_cluster)
    plan = get_planner("annealing")(
        old[0], make_scorer(*old), Budget(calls), np.random.default_rng(seed)
    )
    return make_plan(target[0], plan.placement, plan.priority, "stale_plan")


def _value(pair: Pair, plan: Plan) -> int:
    return int(make_scorer(*pair).score_plans([plan])[0])


def _at(curve: Curve, grid: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Best value after each number of simulations; the first one before any."""
    steps = np.array([point[0] for point in curve])
    values = np.array([point[1] for point in curve], dtype=np.float64)
    found: np.ndarray = values[np.maximum(0, np.searchsorted(steps, grid, side="right") - 1)]  # type: ignore[type-arg]
    return found


def _table(results: Sequence[ArmResult], best: dict[str, int], bounds: dict[str, int]) -> Table:
    table = Table(title="transfer: value / best known, mean (least to most) over seeds")
    for heading in ("case", "arm", "simulations", "cpu s", "over best known", "gap to bound"):
        table.add_column(heading, justify="left" if heading in ("case", "arm") else "right")
    for case, known in best.items():
        arms = dict.fromkeys(row.arm for row in results if row.case == case)
        for arm in arms:
            rows = [row for row in results if row.case == case and row.arm == arm]
            ratios = [row.value_ns / known for row in rows]
            gap = float(np.mean([row.value_ns for row in rows])) / bounds[case] - 1.0
            table.add_row(
                case,
                arm,
                str(max(row.simulations for row in rows)),
                f"{np.mean([row.cpu_seconds for row in rows]):.1f}",
                f"{np.mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                f"{gap:.1%}",
            )
    return table
