"""From settings to what runs: a job's graph, and the recipe that every worker builds it from."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from doppler.config import BASELINES, AnyJobConfig, JobConfig
from doppler.core.errors import ConfigError, nearest
from doppler.core.job_mode import JobMode
from doppler.core.problem import Objective
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize
from doppler.measure import margins_of
from doppler.real_job import RealJob
from doppler.tensor_config import TensorJobConfig
from doppler.tensor_jobs import build_tensor_job
from executor.drl.config import PPOJobConfig
from executor.drl.custom import custom_job_config, load_settings
from executor.drl.importance import Importance
from executor.drl.job import PPOJob
from executor.job_spec import JobSpec

AUTO = "auto"
"""The all-reduce that is chosen by simulation."""
JOB_FACTORY = "executor.drl.job:load_job"


@dataclass(frozen=True, kw_only=True)
class RLJob(RealJob):
    """A deep-RL job that can be placed and run.

    Attributes:
        config: What its kernels are built from.
    """

    config: PPOJobConfig

    @property
    def env_steps_per_iteration(self) -> int:
        """Control steps of all environments in one iteration."""
        return self.config.rows


def build_any_job(settings: AnyJobConfig, seed: int) -> RealJob:
    """Returns the job of `settings`, deep RL or a tensor graph.

    Raises:
        ConfigError: If a setting is out of range, or parts do not fit together.
        GraphError: If a tensor graph cannot be cut as the settings say.
    """
    match settings:
        case JobConfig():
            return build_job(settings, seed)
        case TensorJobConfig():
            return build_tensor_job(settings, seed)
    raise ConfigError(f"{type(settings).__name__} are the settings of no job")


def sized_jobs(
    settings: AnyJobConfig, env_counts: Sequence[float], seed: int
) -> list[tuple[RealJob, bool]]:
    """Returns the job at the sizes that calibration measures, and whether it is the job itself.

    Args:
        settings: The job.
        env_counts: Environment counts relative to the job's; a tensor graph has its one size.
        seed: Of the job.
    """
    if not isinstance(settings, JobConfig):
        return [(build_any_job(settings, seed), True)]
    counts = sorted({max(1, round(settings.envs_per_shard * count)) for count in env_counts})
    return [
        (build_job(replace(settings, envs_per_shard=n), seed), n == settings.envs_per_shard)
        for n in counts
    ]


def baselines(settings: AnyJobConfig) -> list[str]:
    """Returns the planners that a job is compared with where the user names none."""
    return [*BASELINES, "dp_only"] if isinstance(settings, JobConfig) else list(BASELINES)


def build_job(settings: JobConfig, seed: int) -> RLJob:
    """Returns the deep-RL job of `settings`.

    Raises:
        ConfigError: If a setting is out of range, or environment and network do not fit.
    """
    if settings.all_reduce == AUTO:
        raise ConfigError(
            f"all_reduce {AUTO!r} is decided where devices and measured times are known (doppler "
            "learn, coordinate); elsewhere it names a composition"
        )
    config = ppo_config(settings, seed)
    sizes = PPOJob(config).sizes
    state_bytes = {"env": (sizes.env_state_bytes,), "optimizer": sizes.optimizer_state_bytes}

    def size_of(kind: str, at: tuple[int, ...]) -> OpSize:
        size = sizes.of(kind, at)
        state = 0
        if kind in ("rollout", "env_step"):
            state = state_bytes["env"][0]
        elif kind == "adam":
            state = state_bytes["optimizer"][at[config.segment_coordinate]]
        return OpSize(
            outputs=size.outputs,
            flop=round(size.flop),
            bytes_moved=size.bytes_moved,
            state_bytes=state,
        )

    shape = DRLJobShape(
        num_shards=config.num_shards,
        horizon=config.horizon,
        chunk=config.chunk,
        fused=config.fused,
        num_trainers=config.num_trainers,
        num_segments=config.num_segments,
        all_reduce=config.all_reduce,
        trainer_groups=config.trainer_groups,
        epochs=config.epochs,
        minibatches=config.minibatches,
        mode=config.mode,
        staleness=config.staleness,
        independent_trainers=config.independent_trainers,
        exact_advantages=config.exact_advantages,
    )
    name = settings.name or settings.env
    graph = build_drl_job(name, shape, size_of)
    return RLJob(
        name=name,
        config=config,
        graph=graph,
        spec=JobSpec(path=JOB_FACTORY, config=config.to_dict()),
        objective=Objective.period,
        size=f"{config.num_envs} environments",
        facts=(
            ("environment", config.environment or config.custom_name),
            ("environments", f"{config.num_envs} in {config.num_shards} shards"),
            ("horizon", f"{config.horizon} steps, {config.chunk} per rollout op"),
            ("steps per iteration", str(config.rows)),
            ("policy", "-".join(map(str, config.hidden))),
            *_training_facts(config),
            ("form", "fused" if config.fused else "unrolled"),
            ("ops", str(graph.num_ops)),
        ),
        margins=margins_of(graph, config.mode),
    )


def _training_facts(config: PPOJobConfig) -> tuple[tuple[str, str], ...]:
    """How the parts of a job wait for each other, and what is trained how."""
    facts = [("mode", config.mode.value)]
    if config.mode is JobMode.serving:
        return (*facts, ("training", "none, the policy is fixed"))
    if config.mode is JobMode.asynchronous:
        bounds = {
            Importance.none: "",
            Importance.truncated: f", rho_bar {config.rho_bar:g}",
            Importance.vtrace: f", rho_bar {config.rho_bar:g}, c_bar {config.c_bar:g}",
        }
        facts += [
            ("staleness", f"at most {config.staleness}"),
            ("importance", config.importance.value + bounds[config.importance]),
        ]
    facts.append(("PPO", f"{config.epochs} epochs of {config.minibatches} minibatches"))
    segments = f"{config.num_segments} segments"
    if config.independent_trainers:
        trainers = f"{config.num_trainers} independent of each other, {segments}"
        return (*facts, ("trainers", trainers), ("all-reduce", "none, trainers are independent"))
    groups = f" in {config.trainer_groups} groups" if config.trainer_groups > 1 else ""
    trainers = f"{config.num_trainers} parts{groups}, {segments}"
    return (*facts, ("trainers", trainers), ("all-reduce", config.all_reduce))


def resolve_any_job(settings: AnyJobConfig, overridden: Collection[str]) -> AnyJobConfig:
    """Returns a job's settings, those of a custom job with its class's filled in.

    Raises:
        ConfigError: As `resolve_job`; or if environment counts are set for a tensor graph.
    """
    if isinstance(settings, JobConfig):
        return resolve_job(settings, overridden)
    if "calibration.env_counts" in overridden:
        raise ConfigError(
            f"calibration.env_counts are for jobs with environments, and {settings.name!r} has none"
        )
    return settings


def resolve_job(settings: JobConfig, overridden: Collection[str]) -> JobConfig:
    """Returns a job's settings with those of its class filled in, if it has one.

    What the user sets wins over the class's settings, which win over the preset.

    Args:
        settings: Preset and what the user set.
        overridden: Keys that the user set, such as `job.gamma`.

    Raises:
        ConfigError: If file, class or a setting do not keep to the protocol.
    """
    if settings.path is None:
        return settings
    if "job.env" in overridden:
        raise ConfigError(
            f"the class of a custom job gives its environment, and job.env={settings.env} is set "
            "beside job.path"
        )
    path = str(Path(settings.path).resolve())
    values = _shared_values(settings)
    own = load_settings(path, _class_name(settings))
    for key in own:
        if key not in values:
            raise ConfigError(
                f"settings of class {settings.name!r} are those of a job, and {key!r} is none; "
                f"{nearest(key, values)}"
            )
    values |= {key: value for key, value in own.items() if f"job.{key}" not in overridden}
    config = custom_job_config(path, settings.name, values)
    resolved = {key: getattr(config, key) for key in values}
    resolved |= {"env": "", "path": path}
    resolved |= {"hidden": list(config.hidden)}
    return replace(settings, **resolved)


def ppo_config(settings: JobConfig, seed: int) -> PPOJobConfig:
    """Returns the executor's form of a job's settings; those of a custom job are resolved ones.

    Raises:
        ConfigError: If a setting is out of range.
    """
    values = {**_shared_values(settings), "seed": seed}
    if settings.path is not None:
        return custom_job_config(settings.path, _class_name(settings), values)
    if not settings.env:
        raise ConfigError(
            "a job names its environment: set job.env=ant (or a gymnasium id), or job.path and "
            "job.name for a class of your own"
        )
    return PPOJobConfig.from_dict({**values, "environment": _environment(settings.env)})


def _shared_values(settings: JobConfig) -> dict[str, object]:
    """Settings that are fields of `PPOJobConfig`, too."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    for name in ("name", "env", "path"):
        del values[name]
    return {**values, "env_python": settings.env_python or ""}


def _class_name(settings: JobConfig) -> str:
    if not settings.name:
        raise ConfigError("a custom job names its class: set job.name=ClassName beside job.path")
    return settings.name


def _environment(name: str) -> str:
    """A name without a prefix and with a version suffix (`Hopper-v5`) is a gymnasium id."""
    if ":" not in name and "-v" in name:
        return f"gym:{name}"
    return name
