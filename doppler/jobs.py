"""From settings to what runs: a job's graph, and the recipe that every worker builds it from."""

from dataclasses import dataclass, fields

from doppler.config import JOBS, JobConfig
from doppler.core.errors import ConfigError
from doppler.core.graph import DataflowGraph
from doppler.graphs.drl_job import DRLJobShape, OpSize, build_drl_job
from doppler.graphs.tensor_program import TensorProgram
from executor.drl.config import PPOJobConfig
from executor.drl.custom import custom_job_config
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


def ppo_config(settings: JobConfig, seed: int) -> PPOJobConfig:
    """Returns the executor's form of a job's settings.

    Raises:
        ConfigError: If a setting is out of range.
    """
    custom = settings.path is not None
    if custom and not settings.name:
        raise ConfigError("a custom job names its class: set job.name=ClassName beside job.path")
    if not custom and not settings.env:
        raise ConfigError(
            "a job names its environment: set job.env=ant (or a gymnasium id), or job.path and "
            "job.name for a class of your own"
        )
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    values["hidden"] = list(settings.hidden)
    values["env_python"] = settings.env_python or ""
    values["seed"] = seed
    for name in ("name", "env", "path"):
        del values[name]
    if not custom:
        values["environment"] = _environment(settings.env)
        return PPOJobConfig.from_dict(values)
    # What the user changed beats the class's settings, which beat the defaults.
    default = JOBS["custom"]
    changed = {
        key: value
        for key, value in values.items()
        if key == "seed" or (key != "env_python" and value != getattr(default, key))
    }
    if settings.env_python:
        changed["env_python"] = settings.env_python
    assert settings.path is not None
    return custom_job_config(settings.path, settings.name, changed)


def _environment(name: str) -> str:
    """A name without a prefix and with a version suffix (`Hopper-v5`) is a gymnasium id."""
    if ":" not in name and "-v" in name:
        return f"gym:{name}"
    return name
