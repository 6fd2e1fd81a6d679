"""Which job runs: an import path and a JSON configuration, from which every worker builds it."""

import importlib
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from doppler.core.errors import ConfigError
from executor.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as text, so that it can cross a process boundary and be stored beside a result.

    Attributes:
        path: "package.module:Class"; the class is called with the configuration as its one
            argument and returns a `Job`.
        config: A JSON object.

    Raises:
        ConfigError: If the path has no colon or the configuration is not JSON.
    """

    path: str
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module, _, name = self.path.partition(":")
        if not module or not name:
            raise ConfigError(f"a job is named as 'package.module:Class', and it is {self.path!r}")
        try:
            json.dumps(self.config, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the configuration of job {self.path!r} is a JSON object, and {error}"
            ) from error

    def build(self) -> Job:
        """Returns the job, built from a copy of the configuration.

        Raises:
            ConfigError: If the module cannot be imported or has no such class.
        """
        module_name, _, name = self.path.partition(":")
        try:
            factory = operator.attrgetter(name)(importlib.import_module(module_name))
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"job {self.path!r} cannot be imported: {error}") from error
        return cast(Job, factory(json.loads(json.dumps(self.config))))
