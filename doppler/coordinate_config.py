"""Settings of `doppler coordinate`."""

import enum
from dataclasses import dataclass
from typing import Any

from doppler.config import CalibrationSettings, ExecutorSettings, JobConfig
from doppler.coordinator.resource_model import Template
from doppler.core.errors import ConfigError, nearest
from doppler.core.layout import Backend
from doppler.measure import MIN_RATIOS
from doppler.planners.learned import SOURCE
from doppler.setting import at_least, setting


class ProfileSource(enum.Enum):
    """Where the profiles of GMI-DRL's search come from."""

    simulated = "simulated"
    measured = "measured"


@dataclass(slots=True, kw_only=True)
class CoordinateConfig:
    """doppler coordinate: find layout, template and number of environments of a job."""

    defaults: list[Any] = setting(["_self_", {"job": "ppo_ant"}], "")

    job: JobConfig = setting(JobConfig, "the job (group)")
    calibration: CalibrationSettings = setting(
        CalibrationSettings, "measuring components; env_counts are the counts that are compared"
    )
    executor: ExecutorSettings = setting(ExecutorSettings, "the executor")
    backend: Backend = setting(
        Backend.core_group,
        f"what is cut: {', '.join(b.value for b in Backend)}; all but the first cut every GPU",
    )
    max_gmis: int = setting(10, "GMIs per GPU at most (cores are cut as finely as can be)")
    templates: list[str] | None = setting(
        None,
        f"what is compared: names among {', '.join(t.value for t in Template)} and {SOURCE}; "
        "null = all",
    )
    output: str | None = setting(
        None, "new folder with a plan per global batch for `doppler run`; null = none"
    )
    budget: int = setting(
        300, "plans that the policy may simulate per layout and form of the graph"
    )
    verify: int = setting(2, "best of each batch that are measured on this machine; 0 = none")
    windows: int = setting(MIN_RATIOS, "windows per measured variant")
    iterations: int = setting(5, "iterations per window")
    profiles: ProfileSource = setting(
        ProfileSource.simulated, "profiles of GMI-DRL's search: simulated, or measured (slower)"
    )
    profile_envs: list[int] | None = setting(
        None,
        "environments per GMI that GMI-DRL's search profiles, ascending; null = the counts that "
        "are compared. Those beyond the measured op times need profiles=measured",
    )
    cost_cache: str | None = setting(None, "folder of measured cost tables; null = the user cache")
    seed: int = setting(0, "seed of the job")

    def __post_init__(self) -> None:
        at_least(self, 0, "verify")
        at_least(self, 1, "budget", "max_gmis")
        at_least(self, MIN_RATIOS, "windows")
        at_least(self, 3, "iterations")
        envs = self.profile_envs
        if envs is not None and (not envs or min(envs) < 1 or envs != sorted(set(envs))):
            raise ConfigError(f"profile_envs are counts from 1 on, ascending, and they are {envs}")
        valid = [*(template.value for template in Template), SOURCE]
        for name in self.templates or ():
            if name not in valid:
                raise ConfigError(f"templates has {name!r}; {nearest(name, valid)}")
        if self.templates is not None and not set(self.templates) - {SOURCE}:
            raise ConfigError(
                f"templates names at least one template beside {SOURCE!r}, which begins from their "
                f"plans, and it has {self.templates}"
            )
