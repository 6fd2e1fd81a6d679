"""What each command does; `doppler.cli` picks one."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from doppler.all_reduce_choice import with_all_reduce
from doppler.api import (
    PlannerResult,
    make_problem,
    plan_problem,
    plan_spread,
    score_plan,
)
from doppler.api import simulate as simulate_plan
from doppler.calibrate_run import calibrate_job
from doppler.calibration import cache_folder
from doppler.compose import overridden_keys
from doppler.config import (
    AnyJobConfig,
    CalibrateConfig,
    JobConfig,
    LearnConfig,
    ProbeConfig,
    ReportConfig,
    RunConfig,
)
from doppler.console import View
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.problem import Objective, Problem
from doppler.core.serialize import load_plan, save
from doppler.cost_choice import CostChoice
from doppler.graph_config import GraphConfig, PlanConfig, SimulateConfig
from doppler.graphs.files import read_graph_file
from doppler.jobs import resolve_any_job
from doppler.learn_run import LEARNED
from doppler.learning import learn as learn_job
from doppler.learning import show_probe
from doppler.machines import read_machine
from doppler.plan_learned import chosen_planner, plan_learned
from doppler.planners.bounds import bound_words
from doppler.planners.registry import get_planner, planner_names
from doppler.report.chrome_trace import write_chrome_trace
from doppler.report.html import rebuild_page, write_report
from doppler.report.tables import summary
from doppler.reporting import build_report
from doppler.results import (
    CLUSTER_FILE,
    GRAPH_FILE,
    MEASURED_TRACE_FILE,
    PLAN_FILE,
    POLICY_FOLDER,
    SIMULATED_TRACE_FILE,
    link_latest,
    make_result_folder,
    write_settings,
)
from doppler.running import run_plan
from doppler.static_mps import ON_CORES, check_static_mps
from doppler.training.checkpoint import save_checkpoint
from executor.collectives.available import probe_collectives
from executor.core_trial import verify_core_groups, verify_memory_limit
from executor.probe import probe as probe_machine
from executor.probe import verify_backends
from simulator.replicas import Spread, median_objective
from simulator.robustness import robustness


def learn(config: LearnConfig, command: Sequence[str]) -> None:
    """Calibrates, learns, runs, compares and writes the result folder."""
    config = dataclasses.replace(config, job=resolve_any_job(config.job, overridden_keys(command)))
    if config.planners is not None:
        _check_baselines(config.planners)
    check_static_mps(config.executor, ON_CORES, "a layout of doppler learn")
    view = View()
    start = time.perf_counter()
    config = dataclasses.replace(config, job=_decided(config, view))
    folders: list[Path] = []

    def folder_of(job: str, cluster: str) -> Path:
        folders.append(make_result_folder(Path(config.results), job, cluster))
        write_settings(folders[0], config, command)
        return folders[0]

    run = learn_job(config, command, folder_of, view)
    folder = folders[0]
    report, simulated = build_report(run)
    assert run.learned_plan is not None
    assert run.learned_trace is not None
    graph, cluster = run.problem.graph, run.problem.cluster
    save(graph, folder / GRAPH_FILE)
    save(cluster, folder / CLUSTER_FILE)
    save(run.learned_plan, folder / PLAN_FILE, run.problem)
    write_chrome_trace(folder / SIMULATED_TRACE_FILE, graph, cluster, simulated)
    write_chrome_trace(folder / MEASURED_TRACE_FILE, graph, cluster, run.learned_trace)
    if run.planner.learner is not None:
        save_checkpoint(run.planner.learner, folder / POLICY_FOLDER)
    page = write_report(folder, report)
    link_latest(folder)
    view.section("Summary")
    view.show(summary(report))
    steps = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in run.seconds.items())
    view.line(f"\nlearning and running took {time.perf_counter() - start:.0f} s ({steps})")
    view.line(f"report: {page}")


def run(config: RunConfig, command: Sequence[str]) -> None:
    """Runs a job under a stored plan."""
    run_plan(config, command, View())


def plan(config: PlanConfig, command: Sequence[str]) -> None:
    """Places a graph with one planner."""
    check_planners([config.planner])
    output = check_output(config.output)
    problem, costs, choice = read_problem(config)
    noise = choice.noise(config.noise, problem.objective)
    view = View()
    if config.planner == LEARNED:
        result = plan_learned(config, problem, costs, noise, view)
    else:
        assert config.budget is not None
        result = plan_problem(
            problem, costs, chosen_planner(config), config.budget, config.seed, noise=noise
        )
    view.show(_result_table(problem, [result]))
    if output is not None:
        save(result.plan, output, problem)
        view.line(f"plan: {config.output}")


def simulate(config: SimulateConfig, command: Sequence[str]) -> None:
    """Simulates a stored plan."""
    output = check_output(config.output)
    problem, costs, choice = read_problem(config)
    stored = load_plan(input_file(config.plan, "plan"), problem)
    trace = simulate_plan(problem, stored, costs, config.iterations)
    view = View()
    view.line(f"makespan of {config.iterations} iteration(s): {trace.makespan_ns / 1e6:.3f} ms")
    if problem.objective is Objective.period:
        view.line(f"period: {score_plan(problem, costs, stored) / 1e6:.3f} ms")
    if problem.objective is Objective.p95:
        noise = choice.noise(config.noise, problem.objective)
        scatter = plan_spread(problem, costs, stored, noise, config.seed)
        words = f"noise {config.noise:g}" if config.noise else "noise as measured"
        view.line(f"with {words}: {_spread_text(scatter)}")
    if config.robustness:
        median = dataclasses.replace(problem, objective=median_objective(problem))
        found = robustness(median, costs, stored, error=config.robustness, seed=config.seed)
        view.line(
            f"with {config.robustness:.0%} error in the cost table: {_spread_text(found.spread)}, "
            f"{found.worst_over_value:.2f} x at worst"
        )
    for device, peak in zip(problem.cluster.devices, trace.peak_bytes, strict=True):
        view.line(f"peak memory of {device.name}: {peak / 2**20:.1f} MiB")
    if output is not None:
        write_chrome_trace(output, problem.graph, problem.cluster, trace)
        view.line(f"trace: {config.output}")


def _spread_text(spread: Spread) -> str:
    """Mean, standard deviation and 95th percentile in words."""
    return (
        f"mean {spread.mean_ns / 1e6:.3f} ms, standard deviation {spread.std_ns / 1e6:.3f} ms, "
        f"95th percentile {spread.p95_ns / 1e6:.3f} ms ({spread.replicas} runs)"
    )


def calibrate(config: CalibrateConfig, command: Sequence[str]) -> None:
    """Measures a job's components."""
    check_static_mps(config.executor, ON_CORES, "a layout of doppler calibrate")
    view = View()
    config = dataclasses.replace(config, job=resolve_any_job(config.job, overridden_keys(command)))
    calibrate_job(dataclasses.replace(config, job=_decided(config, view)), view)


def _decided(config: LearnConfig | CalibrateConfig, view: View) -> AnyJobConfig:
    """Returns the job's settings with the all-reduce chosen where it is `auto`."""
    if not isinstance(config.job, JobConfig):
        return config.job
    return with_all_reduce(
        config.job,
        config.calibration,
        cache_folder(config.cost_cache),
        seed=config.seed,
        shm_dir=config.executor.shm_dir,
        view=view,
    )


def probe(config: ProbeConfig, command: Sequence[str]) -> None:
    """Shows what this machine has."""
    output = check_output(config.output)
    view = View()
    found = verify_backends(probe_machine())
    (cpu,) = (processor for processor in found.hardware.processors if processor.kind == "cpu")
    ours = verify_core_groups(cpu.core_ids), verify_memory_limit(cpu.core_ids[-1])
    findings = (*found.findings, *ours, *probe_collectives(found))
    found = dataclasses.replace(found, findings=findings)
    show_probe(found, view)
    if output is not None:
        save(found.hardware, output)
        view.line(f"hardware: {config.output}")


def report(config: ReportConfig, command: Sequence[str]) -> None:
    """Rebuilds the page of a result folder."""
    View().line(f"report: {rebuild_page(Path(config.folder))}")


def read_problem(config: GraphConfig) -> tuple[Problem, Costs, CostChoice]:
    """Returns the problem of the files, its times, and where they come from.

    Times are those of `costs`, else of the graph file, else modelled.
    """
    imported = read_graph_file(
        input_file(config.graph, "graph"), config.ns_per_unit, config.bytes_per_unit
    )
    for note in imported.notes():
        View().line(note)
    if not config.cluster:
        raise ConfigError("this command needs a cluster: set cluster=FILE.json or cluster=dgx_a100")
    machine = read_machine(config.cluster, config.layout)
    problem = make_problem(imported.graph, machine.cluster, objective=config.objective)
    choice = CostChoice(
        path=config.costs,
        fallback=config.fallback,
        imported=imported,
        roofline=machine.roofline,
    )
    return problem, choice.costs(problem), choice


def check_planners(names: Sequence[str]) -> None:
    """Refuses unknown planners and none at all before anything takes time."""
    if not names:
        raise ConfigError(f"planners names at least one of {', '.join(planner_names())}")
    for name in names:
        get_planner(name)


def _check_baselines(planners: Sequence[str]) -> None:
    """Refuses planners of `doppler learn` that leave nothing to compare the learned plan with."""
    names = [name for name in planners if name != LEARNED]
    if planners and not names:
        raise ConfigError(
            f"doppler learn compares the learned plan with at least one baseline, and planners="
            f"[{', '.join(planners)}] names none beside {LEARNED!r}"
        )
    check_planners(names)


def check_output(path: str | None) -> Path | None:
    """Returns the path of an output file, refused before anything takes time if it cannot be."""
    if path is None:
        return None
    output = Path(path)
    if not output.parent.is_dir():
        raise ConfigError(f"output is a file in a folder that exists, and {path!r} is in none")
    if output.is_dir():
        raise ConfigError(f"output is a file, and {path!r} is a folder")
    return output


def input_file(path: str, name: str) -> Path:
    """Returns the path of an input file; refuses none."""
    if not path:
        raise ConfigError(f"this command needs a {name} file: set {name}=FILE.json")
    return Path(path)


def _result_table(problem: Problem, results: Sequence[PlannerResult]) -> Table:
    table = Table(title=f"{problem.graph.name} on {problem.cluster.name}")
    table.add_column("planner")
    for heading in (
        f"{problem.objective.value} (ms)",
        f"gap to {bound_words(problem)}",
        "simulations",
        "seconds",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.planner,
            f"{result.value_ns / 1e6:.3f}",
            f"{result.gap:.1%}",
            str(result.num_calls),
            f"{result.seconds:.2f}",
        )
    return table
