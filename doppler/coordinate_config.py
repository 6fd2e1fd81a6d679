"""Settings of `doppler coordinate`."""

from dataclasses import dataclass
from typing import Any

from doppler.config import CalibrationSettings, ExecutorSettings, JobConfig, at_least, setting


@dataclass(slots=True, kw_only=True)
class CoordinateConfig:
    """doppler coordinate: find layout, template and number of environments of a job."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    job: JobConfig = setting(JobConfig, "the job (group)")
    calibration: CalibrationSettings = setting(
        CalibrationSettings, "measuring components; env_counts are the counts that are compared"
    )
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    verify: int = setting(2, "best variants that are measured on this machine")
    windows: int = setting(4, "windows per measured variant")
    iterations: int = setting(5, "iterations per window")
    cost_cache: str | None = setting(None, "folder of measured cost tables; null = the user cache")
    seed: int = setting(0, "seed of the job")

    def __post_init__(self) -> None:
        at_least(self, 0, "verify")
        at_least(self, 1, "windows")
        at_least(self, 3, "iterations")
