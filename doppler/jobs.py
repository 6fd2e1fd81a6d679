"""From settings to what runs: a job's graph, and the recipe that every worker builds it from."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path

from doppler.config import JobConfig
from doppler.core.errors import ConfigError, nearest
from doppler.core.graph import DataflowGraph
from doppler.graphs.drl_job import DRLJobShape, JobMode, OpSize, build_drl_job
from doppler.graphs.tensor_program import TensorProgram
from executor.drl.config import PPOJobConfig
from executor.drl.custom import custom_job_config, load_settings
from executor.drl.job import PPOJob
from executor.job_spec import JobSpec

JOB_FACTORY = "executor.drl.job:load_job"
TENSOR_FACTORY = "executor.tensors.job:TensorJob"


@dataclass(frozen=True, kw_only=True)
class RealJob:
    """A job that can be placed and run.

    Attributes:
        name: Name of the job.
        config: What its kernels are built from.
        graph: Its dataflow graph.
    """

    name: str
    config: PPOJobConfig
    graph: DataflowGraph

    @property
    def spec(self) -> JobSpec:
        """The recipe that every worker builds the job from."""
        return JobSpec(path=JOB_FACTORY, config=self.config.to_dict())

    @property
    def env_steps_per_iteration(self) -> int:
        """Control steps of all environments in one iteration."""
        return self.config.rows


def build_job(settings: JobConfig, seed: int) -> RealJob:
    """Returns the job of `settings`.

    Raises:
        ConfigError: If a setting is out of range, or environment and network do not fit.
    """
    config = ppo_config(settings, seed)
    sizes = PPOJob(config).sizes
    state_bytes = {"env": (sizes.env_state_bytes,), "optimizer": sizes.optimizer_state_bytes}

    def size_of(kind: str, at: tuple[int, ...]) -> OpSize:
        size = sizes.of(kind, at)
        state = 0
        if kind in ("rollout", "env_step"):
            state = state_bytes["env"][0]
        elif kind == "adam":
            state = state_bytes["optimizer"][at[-1]]
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
        epochs=config.epochs,
        minibatches=config.minibatches,
        mode=JobMode(config.mode),
        staleness=config.staleness,
    )
    name = settings.name or settings.env
    return RealJob(name=name, config=config, graph=build_drl_job(name, shape, size_of))


def tensor_spec(program: TensorProgram, seed: int = 0) -> JobSpec:
    """Returns the recipe that runs a tensor graph for real; inputs are drawn from `seed`."""
    return JobSpec(
        path=TENSOR_FACTORY,
        config={
            "dtype": program.dtype,
            "seed": seed,
            "instructions": {
                name: {
                    "kind": step.kind,
                    "in_shapes": [list(shape) for shape in step.in_shapes],
                    "out_shapes": [list(shape) for shape in step.out_shapes],
                }
                for name, step in program.instructions.items()
            },
        },
    )


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
    resolved |= {"hidden": list(config.hidden), "mode": JobMode(config.mode)}
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
    return {**values, "env_python": settings.env_python or "", "mode": settings.mode.value}


def _class_name(settings: JobConfig) -> str:
    if not settings.name:
        raise ConfigError("a custom job names its class: set job.name=ClassName beside job.path")
    return settings.name


def _environment(name: str) -> str:
    """A name without a prefix and with a version suffix (`Hopper-v5`) is a gymnasium id."""
    if ":" not in name and "-v" in name:
        return f"gym:{name}"
    return name
