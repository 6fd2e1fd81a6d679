"""Typed configuration: Hydra merges into these schemas, `OmegaConf.to_object` checks them.

Every field carries a line of help in its metadata; `doppler COMMAND --help` prints it.
"""

import enum
from dataclasses import dataclass, field, fields
from typing import Any

from doppler.core.errors import ConfigError
from doppler.core.problem import Objective
from doppler.graphs.drl_job import JobMode
from doppler.measure import MIN_BLOCKS
from doppler.policies.config import PolicyKind
from doppler.training.config import LearnedMode, Start
from executor.drl.config import PPOJobConfig
from executor.drl.presets import PRESETS

_JOB = PPOJobConfig()


def setting(default: Any, text: str) -> Any:
    """Returns a dataclass field with its default and its help line."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"help": text})
    if isinstance(default, type):
        return field(default_factory=default, metadata={"help": text})
    return field(default=default, metadata={"help": text})


class LayoutName(enum.Enum):
    """How the cores are cut into devices; `auto` compares both."""

    auto = "auto"
    per_core = "per_core"
    all_cores = "all_cores"


class OnFailure(enum.Enum):
    """What happens when a worker dies or hangs."""

    stop = "stop"
    replan = "replan"


def _at_least(owner: object, low: float, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value < low:
            raise ConfigError(
                f"{type(owner).__name__}: {name} is at least {low:g}, and it is {value}"
            )


@dataclass(slots=True, kw_only=True)
class JobConfig:
    """The deep-RL job: environments, PPO, and how it is cut into ops."""

    name: str = setting("ppo_ant", "name of the job; a custom job: the class in job.path")
    env: str = setting("ant", "environment: ant, humanoid, pendulum, or a gymnasium id")
    path: str | None = setting(None, "Python file with the class of a custom job")
    env_python: str | None = setting(
        None, "interpreter that the environments run in (Isaac Gym needs its own), or null"
    )
    num_shards: int = setting(_JOB.num_shards, "environment shards")
    envs_per_shard: int = setting(_JOB.envs_per_shard, "environments per shard")
    horizon: int = setting(_JOB.horizon, "control steps per iteration and environment")
    chunk: int = setting(_JOB.chunk, "control steps per fused rollout op; divides the horizon")
    fused: bool = setting(_JOB.fused, "environment and agent of a chunk are one op")
    mode: JobMode = setting(
        JobMode(_JOB.mode), "how weights reach environments: asynchronous needs job.staleness"
    )
    staleness: int = setting(_JOB.staleness, "asynchronous: versions that weights may be behind")
    num_trainers: int = setting(
        _JOB.num_trainers, "parts that each minibatch's gradient is computed in"
    )
    num_segments: int = setting(
        _JOB.num_segments, "segments of the gradient all-reduce and of the optimizer"
    )
    epochs: int = setting(_JOB.epochs, "PPO epochs per iteration")
    minibatches: int = setting(_JOB.minibatches, "minibatches per epoch")
    hidden: list[int] = setting(list(_JOB.hidden), "widths of the policy's hidden layers")
    learning_rate: float = setting(_JOB.learning_rate, "step size of the job's optimizer")
    gamma: float = setting(_JOB.gamma, "discount per control step")
    lam: float = setting(_JOB.lam, "lambda of generalised advantage estimation")
    clip: float = setting(_JOB.clip, "PPO's clip range")
    value_coef: float = setting(_JOB.value_coef, "weight of the value loss")
    clip_value: bool = setting(_JOB.clip_value, "clip the value loss, too")
    entropy_coef: float = setting(_JOB.entropy_coef, "weight of the entropy bonus")
    max_grad_norm: float = setting(_JOB.max_grad_norm, "global gradient norm limit")
    reward_scale: float = setting(_JOB.reward_scale, "factor on rewards before learning")
    init_log_std: float = setting(
        _JOB.init_log_std, "log standard deviation of actions at the start"
    )

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_shards", "envs_per_shard", "horizon", "chunk", "num_trainers")
        _at_least(self, 1, "num_segments", "epochs", "minibatches")


@dataclass(slots=True, kw_only=True)
class TrainingSettings:
    """Stages I to III of the placement policies."""

    sim_episodes: int = setting(3000, "plans that the learned planner may simulate (stages I, II)")
    stage3_windows: int = setting(8, "measured windows for stage III; 0 skips it")
    window_iterations: int = setting(5, "iterations per measured window")

    def __post_init__(self) -> None:
        _at_least(self, 0, "stage3_windows")
        _at_least(self, 10, "sim_episodes")
        _at_least(self, 5, "window_iterations")


@dataclass(slots=True, kw_only=True)
class CalibrationSettings:
    """How long the job's real components are measured."""

    warmup: int = setting(3, "iterations that are run and thrown away")
    iterations: int = setting(8, "iterations that are kept per plan")
    env_counts: list[float] = setting(
        [0.5, 1.0, 1.5],
        "environment counts to measure, relative to job.envs_per_shard; 1.0 is always among them",
    )
    refresh: bool = setting(False, "measure again, even if a stored cost table fits")

    def __post_init__(self) -> None:
        _at_least(self, 0, "warmup")
        _at_least(self, 3, "iterations")
        if any(count <= 0 for count in self.env_counts):
            raise ConfigError(
                f"CalibrationSettings: env_counts are above 0, and they are {self.env_counts}"
            )
        self.env_counts = sorted({*self.env_counts, 1.0})


@dataclass(slots=True, kw_only=True)
class ExecutorSettings:
    """What the executor takes from the machine."""

    shm_dir: str = setting("/dev/shm", "mount that shared memory is taken from")


@dataclass(slots=True, kw_only=True)
class RunSettings:
    """How long a job runs, and what happens on the way."""

    iterations: int = setting(100, "iterations to run")
    target_reward: float | None = setting(None, "stop when the mean return reaches this, or null")
    checkpoint_every: int = setting(50, "iterations between checkpoints; 0 = only at the end")
    resume: str | None = setting(None, "folder of an earlier run to go on from, or null")
    on_failure: OnFailure = setting(
        OnFailure.stop, "replan: go on from the last checkpoint on the devices that are left"
    )
    adapt: bool = setting(False, "follow drift: measured spans correct costs, then the plan")

    def __post_init__(self) -> None:
        _at_least(self, 1, "iterations")
        _at_least(self, 0, "checkpoint_every")


@dataclass(slots=True, kw_only=True)
class ComparisonSettings:
    """How plans are measured against each other."""

    min_blocks: int = setting(MIN_BLOCKS, "ABBA blocks at least")
    max_blocks: int = setting(12, "ABBA blocks at most")
    half_width: float = setting(0.03, "stop when the 95 % half-width of the ratio is this small")

    def __post_init__(self) -> None:
        _at_least(self, MIN_BLOCKS, "min_blocks")
        _at_least(self, self.min_blocks, "max_blocks")


@dataclass(slots=True, kw_only=True)
class LearnConfig:
    """doppler learn: calibrate, learn a placement, run it, compare, report."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    job: JobConfig = setting(JobConfig, "the job (group: job=ppo_ant, ppo_humanoid, ...)")
    training: TrainingSettings = setting(TrainingSettings, "stages I to III")
    calibration: CalibrationSettings = setting(CalibrationSettings, "measuring components")
    comparison: ComparisonSettings = setting(ComparisonSettings, "measuring plans")
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    layout: LayoutName = setting(LayoutName.auto, "how the cores are cut into devices")
    planners: list[str] = setting(
        ["single_device", "round_robin", "critical_path", "heft", "annealing", "dp_only"],
        "baselines",
    )
    results: str = setting("results", "folder that result folders are made in")
    cost_cache: str | None = setting(None, "folder of measured cost tables; null = the user cache")
    seed: int = setting(0, "seed of everything random")


@dataclass(slots=True, kw_only=True)
class RunConfig:
    """doppler run PLAN: run a job under a stored plan."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    plan: str = setting("", "plan.json of an earlier run, or the folder that holds it")
    job: JobConfig = setting(JobConfig, "the job; must be the one that the plan was made for")
    run: RunSettings = setting(RunSettings, "how long to run, and what happens on the way")
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    results: str = setting("results", "folder that result folders are made in")
    seed: int = setting(0, "seed of the job")


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
        0.0, "for objective=p95: spread of op times, lognormal; 0.1 = about 10 per cent"
    )

    def __post_init__(self) -> None:
        _at_least(self, 0.0, "noise")
        if self.objective is Objective.p95 and self.noise == 0.0:
            raise ConfigError("objective=p95 needs the spread of op times: set noise=0.1")


@dataclass(slots=True, kw_only=True)
class PlanConfig(GraphConfig):
    """doppler plan: place a graph with one planner."""

    planner: str = setting("learned", "planner that makes the plan")
    mode: LearnedMode = setting(
        LearnedMode.polish, "planner=learned: greedy, sample, tune or polish"
    )
    start: Start = setting(
        Start.pretrained, "planner=learned: pretrained policies, or from scratch"
    )
    policy: PolicyKind = setting(
        PolicyKind.improved, "planner=learned start=scratch: improved, or the paper's pair"
    )
    seconds: float | None = setting(
        None, "planner=learned: time that it may take beside the budget, or null"
    )
    budget: int | None = setting(
        None, "plans that the planner may simulate; null = 3000, or no limit where seconds is set"
    )
    output: str | None = setting(None, "file that the plan is written to")
    seed: int = setting(0, "seed of the planner")

    def __post_init__(self) -> None:
        GraphConfig.__post_init__(self)
        if self.budget is None:
            self.budget = 3000 if self.seconds is None else 1 << 40
        _at_least(self, 1, "budget")
        if self.planner != "learned" and (
            self.seconds is not None or self.mode is not LearnedMode.polish
        ):
            raise ConfigError(
                f"mode and seconds are settings of planner=learned, and planner is {self.planner!r}"
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
    seed: int = setting(0, "seed of every planner")

    def __post_init__(self) -> None:
        GraphConfig.__post_init__(self)
        _at_least(self, 1, "budget")
        _at_least(self, 0, "bound_effort")


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
        _at_least(self, 1, "iterations")
        _at_least(self, 0.0, "robustness")


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
        _at_least(self, 1, "budget")


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
class CalibrateConfig:
    """doppler calibrate: measure a job's components and print the cost table."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    job: JobConfig = setting(JobConfig, "the job (group)")
    calibration: CalibrationSettings = setting(CalibrationSettings, "how long to measure")
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    cost_cache: str | None = setting(None, "folder of measured cost tables; null = the user cache")
    seed: int = setting(0, "seed of the job")


@dataclass(slots=True, kw_only=True)
class ProbeConfig:
    """doppler probe: what this machine has, and why what is absent is absent."""

    output: str | None = setting(None, "file that the hardware is written to (JSON), or null")


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
class PretrainConfig:
    """doppler pretrain: one policy over many generated problems."""

    output: str = setting("results/pretraining", "folder of policy, state and training record")
    policy: PolicyKind = setting(PolicyKind.improved, "which pair: improved, or the paper's")
    epochs: int = setting(50, "epochs of the whole training; schedules end where it ends")
    updates: int = setting(30, "gradient steps per epoch")
    lessons: int = setting(24, "problems per epoch")
    search_calls: int = setting(0, "plans that the search for a problem's labels may score")
    validation: int = setting(60, "problems that the best policy is chosen on")
    validate_every: int = setting(5, "epochs between two validations")
    seconds: float = setting(1e9, "stop between two epochs after that time; resume=true goes on")
    resume: bool = setting(False, "go on with the training in the output folder")
    seed: int = setting(0, "seed of everything random")

    def __post_init__(self) -> None:
        _at_least(self, 1, "epochs", "updates", "lessons", "validation", "validate_every")
        _at_least(self, 0, "search_calls", "seconds")


@dataclass(slots=True, kw_only=True)
class TransferConfig:
    """doppler transfer: zero-shot, few-shot and scratch curves on new graphs and clusters."""

    cases: list[str] = setting(
        ["graph_to_graph", "p100_to_v100", "a100_to_h100"],
        "what is transferred: graph_to_graph, p100_to_v100, a100_to_h100",
    )
    source_episodes: int = setting(2000, "episodes on the source")
    few_shot: int = setting(200, "episodes of few-shot on the target")
    scratch: int = setting(4000, "episodes of a policy from scratch on the target")
    reference: int = setting(20000, "plans of the long annealing run that the best known is from")
    seeds: int = setting(3, "seeds per case")
    seed: int = setting(0, "first seed")
    output: str = setting("results/transfer", "folder of chart and table")

    def __post_init__(self) -> None:
        _at_least(self, 1, "few_shot", "scratch", "reference", "seeds", "source_episodes")


@dataclass(slots=True, kw_only=True)
class ReportConfig:
    """doppler report FOLDER: rebuild the page of a result folder."""

    folder: str = setting("results/latest", "result folder")


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
    update_best: bool | None = setting(None, "store plans that are better than the best known")

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name an experiment: doppler experiment doppler_table")


def _from_preset(name: str, preset: PPOJobConfig) -> JobConfig:
    shared = {item.name for item in fields(JobConfig)} & {item.name for item in fields(preset)}
    apart = ("env_python", "hidden", "mode")
    values = {key: getattr(preset, key) for key in shared if key not in apart}
    return JobConfig(
        name=name,
        env=preset.environment,
        hidden=list(preset.hidden),
        mode=JobMode(preset.mode),
        **values,
    )


JOBS: dict[str, JobConfig] = {
    **{name: _from_preset(name, preset) for name, preset in PRESETS.items()},
    "gym": JobConfig(name="gym", env="Hopper-v5", envs_per_shard=4, horizon=64, chunk=16),
    "custom": JobConfig(name="", env="", envs_per_shard=8),
}
"""Choices of `job=`: the jobs of the project, a gymnasium id, a class of the user's own."""
