"""Typed configuration: Hydra merges into these schemas, `OmegaConf.to_object` checks them.

Every field carries a line of help in its metadata; `doppler COMMAND --help` prints it.
"""

import enum
from dataclasses import dataclass, fields
from typing import Any

from doppler.core.errors import ConfigError
from doppler.core.job_mode import JobMode
from doppler.measure import MIN_BLOCKS
from doppler.setting import at_least, setting
from doppler.training.config import PPOConfig
from executor.drl.config import PPOJobConfig
from executor.drl.importance import Importance
from executor.drl.presets import PRESETS
from executor.options import ExecutorOptions

_JOB = PPOJobConfig()
_PPO = PPOConfig()
BASELINES = ("single_device", "round_robin", "critical_path", "heft", "annealing")
_ENVIRONMENTS = sorted(preset.environment for preset in PRESETS.values())


class LayoutName(enum.Enum):
    """How the cores are cut into devices; `auto` compares both."""

    auto = "auto"
    per_core = "per_core"
    all_cores = "all_cores"


class Algorithm(enum.Enum):
    """How stage II learns from the simulator's reward."""

    reinforce = "reinforce"
    ppo = "ppo"


class StageTwoValues(enum.Enum):
    """Where settings of stage II that are not given come from."""

    usual = "usual"
    paper = "paper"


class OnFailure(enum.Enum):
    """What happens when a worker dies or hangs."""

    stop = "stop"
    replan = "replan"


@dataclass(slots=True, kw_only=True)
class AnyJobConfig:
    """What every job has."""

    name: str = setting("", "name of the job; a custom job: the class in job.path")


@dataclass(slots=True, kw_only=True)
class JobConfig(AnyJobConfig):
    """The deep-RL job: environments, PPO, and how it is cut into ops."""

    name: str = setting("ppo_ant", "name of the job; a custom job: the class in job.path")
    env: str = setting(
        "ant",
        f"environment: {', '.join(_ENVIRONMENTS)}, the same behind mujoco_warp:, a gymnasium id, "
        "or one of ours or a TASK of the simulator behind isaacgym: or isaaclab: (with env_python)",
    )
    path: str | None = setting(None, "Python file with the class of a custom job")
    env_python: str | None = setting(
        None, "interpreter that the environments run in (Isaac simulators need their own), or null"
    )
    num_shards: int = setting(_JOB.num_shards, "environment shards")
    envs_per_shard: int = setting(_JOB.envs_per_shard, "environments per shard")
    horizon: int = setting(_JOB.horizon, "control steps per iteration and environment")
    chunk: int = setting(_JOB.chunk, "control steps per fused rollout op; divides the horizon")
    fused: bool = setting(_JOB.fused, "environment and agent of a chunk are one op")
    mode: JobMode = setting(
        _JOB.mode, "how weights reach environments: asynchronous needs job.staleness"
    )
    staleness: int = setting(_JOB.staleness, "asynchronous: versions that weights may be behind")
    independent_trainers: bool = setting(
        _JOB.independent_trainers, "asynchronous: no trainer waits for another to update weights"
    )
    importance: Importance = setting(
        _JOB.importance, "asynchronous: weights of experience of older policies, or none"
    )
    rho_bar: float = setting(_JOB.rho_bar, "bound of an importance weight")
    c_bar: float = setting(_JOB.c_bar, "V-trace: bound of the weights that carry corrections back")
    num_trainers: int = setting(
        _JOB.num_trainers, "parts that each minibatch's gradient is computed in"
    )
    num_segments: int = setting(
        _JOB.num_segments, "segments of the gradient all-reduce and of the optimizer"
    )
    all_reduce: str = setting(
        _JOB.all_reduce,
        "how gradients are added: direct (one op per segment), ring, tree, through_host, "
        "local_leader, multi_ring or hybrid(k), spelled out as ops; auto = by simulation",
    )
    trainer_groups: int = setting(
        _JOB.trainer_groups, "groups of trainers (of one GPU or host) that compositions tell apart"
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
        at_least(self, 1, "num_shards", "envs_per_shard", "horizon", "chunk", "num_trainers")
        at_least(self, 1, "num_segments", "trainer_groups", "epochs", "minibatches")


@dataclass(slots=True, kw_only=True)
class StageTwoSettings:
    """Stage II of the placement policies."""

    algorithm: Algorithm = setting(
        Algorithm.reinforce, "stage II: reinforce, or ppo (several gradient steps per batch)"
    )
    ppo_epochs: int = setting(_PPO.epochs, "algorithm=ppo: gradient steps per batch")
    ppo_clip: float = setting(
        _PPO.clip, "algorithm=ppo: a probability that changed by more than this part moves no more"
    )
    values: StageTwoValues = setting(
        StageTwoValues.usual,
        "what is not given below: usual, or paper (DOPPLER's published values)",
    )
    batch: int | None = setting(None, "K, episodes per update; null = as values says (so below)")
    learning_rate: list[float] | None = setting(
        None, "[start, end] of the optimizer's rate, from the first update to the last"
    )
    entropy: list[float] | None = setting(None, "[start, end] of the entropy bonus's weight")
    temperature: list[float] | None = setting(None, "[start, end] of the episodes' temperature")
    gamma: float | None = setting(None, "discount per decision of the reward at the end")
    elites: int | None = setting(
        None, "best plans that are kept and imitated beside the samples; 0 = none is imitated"
    )
    restarts: int | None = setting(
        None, "runs of stage II from the same policies, each with elites of its own; the best stays"
    )
    tensorboard: bool = setting(
        False, "write TensorBoard's files beside metrics.jsonl (extra `tensorboard`)"
    )

    def asks_for_stage_two(self) -> bool:
        """True if a setting of stage II is none of the defaults."""
        usual = StageTwoSettings(tensorboard=self.tensorboard)
        names = (item.name for item in fields(StageTwoSettings))
        return any(getattr(self, name) != getattr(usual, name) for name in names)

    def __post_init__(self) -> None:
        at_least(self, 1, "ppo_epochs")
        for name, low in (("batch", 2), ("elites", 0), ("restarts", 1)):
            if getattr(self, name) is not None:
                at_least(self, low, name)
        for name in ("learning_rate", "entropy", "temperature"):
            ends = getattr(self, name)
            if ends is not None and (len(ends) != 2 or not all(0 < end < 1e9 for end in ends)):
                raise ConfigError(f"{name} is [start, end], both above 0, and it is {ends}")
        if self.gamma is not None and not 0.0 < self.gamma <= 1.0:
            raise ConfigError(f"gamma is above 0 and at most 1, and it is {self.gamma}")
        if not 0.0 < self.ppo_clip < 1.0:
            raise ConfigError(f"ppo_clip lies between 0 and 1, and it is {self.ppo_clip:g}")
        is_default = (self.ppo_epochs, self.ppo_clip) == (_PPO.epochs, _PPO.clip)
        if self.algorithm is not Algorithm.ppo and not is_default:
            raise ConfigError(
                "ppo_epochs and ppo_clip are settings of algorithm=ppo, and algorithm is "
                f"{self.algorithm.name}"
            )


@dataclass(slots=True, kw_only=True)
class TrainingSettings(StageTwoSettings):
    """Stages I to III of the placement policies."""

    sim_episodes: int = setting(3000, "plans that the learned planner may simulate (stages I, II)")
    stage3_windows: int = setting(8, "measured windows for stage III; 0 skips it")
    window_iterations: int = setting(5, "iterations per measured window")
    race_seconds: float = setting(
        8.0,
        "time of the job that stage III may race plans for (16 to 128 windows, 2 a plan at least)",
    )

    def __post_init__(self) -> None:
        StageTwoSettings.__post_init__(self)
        at_least(self, 0, "stage3_windows", "race_seconds")
        at_least(self, 10, "sim_episodes")
        at_least(self, 5, "window_iterations")


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
        at_least(self, 0, "warmup")
        at_least(self, 3, "iterations")
        if any(count <= 0 for count in self.env_counts):
            raise ConfigError(
                f"CalibrationSettings: env_counts are above 0, and they are {self.env_counts}"
            )
        self.env_counts = sorted({*self.env_counts, 1.0})


@dataclass(slots=True, kw_only=True)
class CheckSettings:
    """How a cost table is held against the running job."""

    enabled: bool = setting(
        False, "measure plans that calibration has not seen; table, chart and JSON of the error"
    )
    plans: int = setting(6, "plans to measure")
    windows: int = setting(6, "windows per plan")
    iterations: int = setting(4, "iterations per window; the first one fills the pipeline")

    def __post_init__(self) -> None:
        at_least(self, 1, "plans", "windows")
        at_least(self, 3, "iterations")


@dataclass(slots=True, kw_only=True)
class ExecutorSettings:
    """What the executor takes from the machine."""

    shm_dir: str = setting("/dev/shm", "mount that shared memory is taken from")
    static_mps: bool = setting(
        False,
        "clients of MPS get static partitions of multiprocessors, made for the run (the daemon was "
        "started with -S), and no shares by percentage",
    )

    def options(self, limit_memory: bool = False) -> ExecutorOptions:
        """Returns them in the executor's form."""
        return ExecutorOptions(
            shm_dir=self.shm_dir, static_mps=self.static_mps, limit_memory=limit_memory
        )


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
    limit_memory: bool = setting(
        False, "processes of core groups may take no more private memory than their share"
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "iterations")
        at_least(self, 0, "checkpoint_every")


@dataclass(slots=True, kw_only=True)
class ComparisonSettings:
    """How plans are measured against each other."""

    min_blocks: int = setting(MIN_BLOCKS, "ABBA blocks at least")
    max_blocks: int = setting(12, "ABBA blocks at most")
    half_width: float = setting(0.03, "stop when the 95 % half-width of the ratio is this small")
    finalists: int = setting(
        1, "baselines, the fastest in the turns, that race for being the best; 1 = no race"
    )

    def __post_init__(self) -> None:
        at_least(self, MIN_BLOCKS, "min_blocks")
        at_least(self, self.min_blocks, "max_blocks")
        at_least(self, 1, "finalists")


@dataclass(slots=True, kw_only=True)
class LearnConfig:
    """doppler learn: calibrate, learn a placement, run it, compare, report."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    job: AnyJobConfig = setting(JobConfig, "the job (group: job=ppo_ant, chainmm, ...)")
    training: TrainingSettings = setting(TrainingSettings, "stages I to III")
    calibration: CalibrationSettings = setting(CalibrationSettings, "measuring components")
    comparison: ComparisonSettings = setting(ComparisonSettings, "measuring plans")
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    layout: LayoutName = setting(LayoutName.auto, "how the cores are cut into devices")
    planners: list[str] | None = setting(
        None, f"baselines; null: {', '.join(BASELINES)}, and dp_only for a deep-RL job"
    )
    checkpoint: str | None = setting(
        None,
        "folder that the state of stages I and II is kept in; a second start with the same "
        "settings goes on there",
    )
    checkpoint_every: int = setting(10, "updates between two states")
    results: str = setting("results", "folder that result folders are made in")
    cost_cache: str | None = setting(None, "folder of measured cost tables; null = the user cache")
    seed: int = setting(0, "seed of everything random")

    def __post_init__(self) -> None:
        at_least(self, 1, "checkpoint_every")


@dataclass(slots=True, kw_only=True)
class RunConfig:
    """doppler run PLAN: run a job under a stored plan."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    plan: str = setting("", "plan.json of an earlier run, or the folder that holds it")
    job: AnyJobConfig = setting(JobConfig, "the job; must be the one that the plan was made for")
    run: RunSettings = setting(RunSettings, "how long to run, and what happens on the way")
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    results: str = setting("results", "folder that result folders are made in")
    seed: int = setting(0, "seed of the job")


@dataclass(slots=True, kw_only=True)
class CalibrateConfig:
    """doppler calibrate: measure a job's components and print the cost table."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    job: AnyJobConfig = setting(JobConfig, "the job (group)")
    calibration: CalibrationSettings = setting(CalibrationSettings, "how long to measure")
    check: CheckSettings = setting(CheckSettings, "error of the simulator before and after")
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    cost_cache: str | None = setting(None, "folder of measured cost tables; null = the user cache")
    seed: int = setting(0, "seed of the job")


@dataclass(slots=True, kw_only=True)
class ProbeConfig:
    """doppler probe: what this machine has, and why what is absent is absent."""

    output: str | None = setting(None, "file that the hardware is written to (JSON), or null")


@dataclass(slots=True, kw_only=True)
class ReportConfig:
    """doppler report FOLDER: rebuild the page of a result folder."""

    folder: str = setting("results/latest", "result folder")


def _from_preset(name: str, preset: PPOJobConfig) -> JobConfig:
    shared = {item.name for item in fields(JobConfig)} & {item.name for item in fields(preset)}
    apart = ("env_python", "hidden")
    values = {key: getattr(preset, key) for key in shared if key not in apart}
    return JobConfig(
        name=name,
        env=preset.environment,
        hidden=list(preset.hidden),
        **values,
    )


JOBS: dict[str, JobConfig] = {
    **{name: _from_preset(name, preset) for name, preset in PRESETS.items()},
    "gym": JobConfig(name="gym", env="Hopper-v5", envs_per_shard=4, horizon=64, chunk=16),
    "custom": JobConfig(name="", env="", envs_per_shard=8),
}
"""Deep-RL jobs by name: those of the project, a gymnasium id, a class of the user's own."""
