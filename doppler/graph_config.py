"""Typed configuration of the commands that work on graphs, clusters and tables in files."""

import enum
from dataclasses import dataclass

from doppler.api import DEFAULT_BUDGET, UNLIMITED, check_seconds
from doppler.config import StageTwoSettings
from doppler.core.errors import ConfigError
from doppler.core.problem import Objective
from doppler.policies.config import MessagePassing, PolicyKind
from doppler.setting import at_least, setting
from doppler.training.config import LearnedMode, Start


class TrainedPlanner(enum.StrEnum):
    """Planners that learn and read settings of their own in `doppler plan`; others have a name."""

    learned = enum.auto()
    placeto = enum.auto()
    gdp = enum.auto()


@dataclass(slots=True, kw_only=True)
class GraphConfig:
    """One's own graph on one's own cluster: what plan, compare and simulate share."""

    graph: str = setting(
        "",
        "graph file: our JSON, WfCommons JSON, .stg, .dot, .graphml, per-machine cost text (.txt)",
    )
    ns_per_unit: float | None = setting(
        None, "nanoseconds of one unit of time, for graph files whose format has no unit"
    )
    bytes_per_unit: float | None = setting(
        None, "bytes of one unit of data, for graph files whose format has no unit"
    )
    cluster: str = setting(
        "",
        "machine of the catalogue (`doppler hardware` lists them; dgx_a100@bf16 for the rates of a "
        "data type), cluster file or hardware file (JSON)",
    )
    layout: str | None = setting(
        None, "layout file (JSON) that cuts the hardware; null = whole GPUs, or single cores"
    )
    costs: str | None = setting(
        None,
        "cost file (JSON), or the cost_table.json of a result folder; null = the times of the "
        "graph file where it has some, else roofline from the cluster's rates",
    )
    fallback: bool = setting(
        False, "ops that the cost table does not know take the roofline's times"
    )
    objective: Objective | None = setting(
        None, "makespan, period or p95 (needs noise); null = period where the graph is loop-carried"
    )
    noise: float = setting(
        0.0,
        "for objective=p95: spread of op times, lognormal; 0.1 = about 10 per cent; 0 = as "
        "measured per op kind, where costs is a measured cost table",
    )

    def __post_init__(self) -> None:
        at_least(self, 0.0, "noise")
        if self.noise and self.objective is not Objective.p95:
            asked = "left open" if self.objective is None else self.objective.name
            raise ConfigError(
                f"noise is the spread that objective=p95 looks at, and the objective is {asked}"
            )
        if self.objective is Objective.p95 and self.noise == 0.0 and self.costs is None:
            raise ConfigError(
                "objective=p95 needs the spread of op times: set noise=0.1, or costs=FILE of a "
                "measured cost table"
            )


@dataclass(slots=True, kw_only=True)
class PlanConfig(GraphConfig):
    """doppler plan: place a graph with one planner."""

    planner: str = setting(TrainedPlanner.learned.value, "planner that makes the plan")
    mode: LearnedMode = setting(
        LearnedMode.polish, "planner=learned: greedy, sample, tune or polish"
    )
    start: Start = setting(
        Start.pretrained, "planner=learned: pretrained policies, or from scratch"
    )
    policy: PolicyKind = setting(
        PolicyKind.improved, "planner=learned start=scratch: improved, or the paper's pair"
    )
    training: StageTwoSettings = setting(
        StageTwoSettings, "planner=learned: stage II, of modes tune and polish"
    )
    seconds: float | None = setting(
        None, "planner=learned: time that it may take beside the budget, or null"
    )
    first_plans: list[str] = setting(
        [],
        "planner=learned: plan files to begin from; plans of another graph (other sizes, a few "
        "other ops) too: ops of the same name go where they went",
    )
    checkpoint: str | None = setting(
        None,
        "planner=learned: folder of its state, metrics.jsonl and TensorBoard's files; a second "
        "start with the same settings goes on there and ends in the same plan",
    )
    checkpoint_every: int = setting(10, "planner=learned: updates between two states")
    messages: MessagePassing = setting(
        MessagePassing.per_step,
        "planner=placeto: messages at every step as in the original (per_step), or once per sweep",
    )
    imitation: int = setting(
        0, "planner=placeto or gdp: updates of stage I (imitation) before its first plan"
    )
    budget: int | None = setting(
        None, "plans that the planner may simulate; null = 3000, or no limit where seconds is set"
    )
    output: str | None = setting(None, "file that the plan is written to")
    seed: int = setting(0, "seed of the planner")

    def __post_init__(self) -> None:
        GraphConfig.__post_init__(self)
        check_seconds(self.seconds)
        if self.budget is None:
            self.budget = DEFAULT_BUDGET if self.seconds is None else UNLIMITED
        at_least(self, 1, "budget", "checkpoint_every")
        if self.training.tensorboard and self.checkpoint is None:
            raise ConfigError(
                "training.tensorboard=true writes into the folder of checkpoint: set "
                "checkpoint=FOLDER"
            )
        is_default = (
            self.seconds is None
            and self.checkpoint is None
            and not self.first_plans
            and self.mode is LearnedMode.polish
            and self.start is Start.pretrained
            and self.policy is PolicyKind.improved
            and not self.training.asks_for_stage_two()
        )
        if self.planner != TrainedPlanner.learned and not is_default:
            raise ConfigError(
                "mode, start, policy, training, first_plans, checkpoint and seconds are settings "
                f"of planner=learned, and planner is {self.planner!r}"
            )
        has_stage_two = self.mode in (LearnedMode.tune, LearnedMode.polish)
        if self.training.asks_for_stage_two() and not has_stage_two:
            raise ConfigError(
                f"training is about stage II, and mode={self.mode.name} has none: set mode=tune or "
                "mode=polish"
            )
        if self.policy is not PolicyKind.improved and self.start is not Start.scratch:
            raise ConfigError(
                f"the pretrained pair is the improved one: policy={self.policy.name} needs "
                "start=scratch"
            )
        at_least(self, 0, "imitation")
        if self.imitation and self.planner not in (TrainedPlanner.placeto, TrainedPlanner.gdp):
            raise ConfigError(
                f"imitation is a setting of planner=placeto and gdp, and planner is "
                f"{self.planner!r}"
            )
        is_placeto = self.planner == TrainedPlanner.placeto
        if self.messages is not MessagePassing.per_step and not is_placeto:
            raise ConfigError(
                f"messages is a setting of planner=placeto, and planner is {self.planner!r}"
            )


@dataclass(slots=True, kw_only=True)
class CompareConfig(GraphConfig):
    """doppler compare: several planners at equal budget."""

    planners: list[str] = setting(
        ["single_device", "round_robin", "critical_path", "heft", "annealing", "learned"],
        "planners to run",
    )
    budget: int = setting(3000, "plans that each planner may simulate")
    bound_effort: float = setting(
        0.0, "seconds of work that CP-SAT may spend on the lower bound; 0 = quick bounds only"
    )
    output: str | None = setting(None, "file that the best plan is written to")
    table: str | None = setting(None, "file that the table is written to (JSON)")
    seed: int = setting(0, "first seed of every planner")
    seeds: int = setting(5, "number of seeds that every planner starts from")

    def __post_init__(self) -> None:
        GraphConfig.__post_init__(self)
        at_least(self, 1, "budget", "seeds")
        at_least(self, 0, "bound_effort")


@dataclass(slots=True, kw_only=True)
class SimulateConfig(GraphConfig):
    """doppler simulate: run a stored plan in the simulator."""

    plan: str = setting("", "plan file (JSON)")
    iterations: int = setting(1, "iterations to run")
    robustness: float = setting(
        0.0, "largest relative error of the cost table's entries to try (0.2 = 20 %); 0 = none"
    )
    output: str | None = setting(None, "file that the trace is written to")
    seed: int = setting(0, "seed of noise and of errors in the cost table")

    def __post_init__(self) -> None:
        GraphConfig.__post_init__(self)
        at_least(self, 1, "iterations")
        at_least(self, 0.0, "robustness")
        if self.robustness >= 1.0:
            raise ConfigError(f"robustness is below 1 (0.2 = 20 %), and it is {self.robustness}")


@dataclass(slots=True, kw_only=True)
class CostsConfig(GraphConfig):
    """doppler costs: op times of a graph on a machine, and where they come from."""

    output: str | None = setting(None, "file that the costs are written to")


@dataclass(slots=True, kw_only=True)
class WhatIfConfig(GraphConfig):
    """doppler what-if: change one number of the hardware, rank the plans anew."""

    change: str = setting(
        "",
        "ENTRY.NUMBER*2 (or /, +, -, : to set): nvlink.bytes_per_s*2, gpu.flop_per_s.bf16*1.5, "
        "pcie.latency_ns:500; entries are nvlink, pcie, socket, network, gpu, cpu or a name",
    )
    planners: list[str] = setting(
        ["single_device", "round_robin", "critical_path", "heft", "annealing"], "planners to run"
    )
    budget: int = setting(1000, "plans that each planner may simulate, before and after")
    replan: bool = setting(True, "each planner makes a plan for the changed machine, too")
    output: str | None = setting(None, "file that the comparison is written to (JSON)")
    seed: int = setting(0, "seed of every planner")

    def __post_init__(self) -> None:
        GraphConfig.__post_init__(self)
        at_least(self, 1, "budget")
        if self.objective is Objective.p95:
            raise ConfigError("what-if ranks by makespan or period, and objective=p95 is set")


@dataclass(slots=True, kw_only=True)
class HardwareConfig:
    """doppler hardware: the catalogue, one machine of it, or a topology read from nvidia-smi."""

    name: str = setting("", "machine to show; empty = list all")
    topology: str | None = setting(
        None, "text of `nvidia-smi topo -m`, of a host with the GPUs and wires of the machine named"
    )
    output: str | None = setting(
        None, "file that the hardware is written to (JSON); without a name, the page (Markdown)"
    )


@dataclass(slots=True, kw_only=True)
class ConvertConfig:
    """doppler convert: write a graph file of any kind as our own JSON or as GraphML."""

    graph: str = setting(
        "",
        "graph file: our JSON, WfCommons JSON, .stg, .dot, .graphml, per-machine cost text (.txt)",
    )
    output: str = setting("", "file that the graph is written to: .json or .graphml")
    ns_per_unit: float | None = setting(
        None, "nanoseconds of one unit of time, for graph files whose format has no unit"
    )
    bytes_per_unit: float | None = setting(
        None, "bytes of one unit of data, for graph files whose format has no unit"
    )
    cluster: str | None = setting(None, "cluster file (JSON) that the costs are for")
    costs_output: str | None = setting(None, "file that the times of the graph file are written to")


@dataclass(slots=True, kw_only=True)
class VerifyConfig:
    """doppler verify [NAME...]: check the instance suite."""

    names: list[str] = setting([], "instances to check; none = all of the folder")
    folder: str | None = setting(
        None, "folder of instance files; null = those that ship with DOPPLER"
    )


@dataclass(slots=True, kw_only=True)
class ExperimentConfig:
    """doppler experiment NAME: make the table of a file in experiments/experiment."""

    name: str = setting("", "file in the folder's experiment/, such as doppler_table")
    folder: str = setting("experiments", "folder of the config groups")
    results: str = setting("results", "folder of the file that finished runs are kept in")
    job: str | None = setting(None, "another file of the group job/")
    hardware: str | None = setting(None, "another file of the group hardware/")
    planner: str | None = setting(None, "another file of the group planner/")
    training: str | None = setting(None, "another file of the group training/")
    graphs: list[str] | None = setting(None, "other graphs")
    columns: list[str] | None = setting(
        None, "other columns: planners and parts of the learned one"
    )
    seeds: int | None = setting(None, "another number of seeds")
    seconds: float | None = setting(None, "other processor seconds per run")
    simulations: int | None = setting(
        None, "plans that each run may have scored, in place of processor seconds"
    )
    update_best: bool | None = setting(None, "store plans that are better than the best known")
    bound_seconds: float | None = setting(
        None, "seconds that CP-SAT may work on the lower bound of each graph, which is stored"
    )

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name an experiment: doppler experiment doppler_table")
