"""`executor.static_mps=true` where nothing could have a static partition."""

from collections.abc import Collection

from doppler.config import ExecutorSettings
from doppler.core.errors import ConfigError
from executor.workers.share import MPS

ON_CORES = frozenset({"cpu"})
"""Kinds of the devices of a command that runs on cores only."""


def check_static_mps(executor: ExecutorSettings, kinds: Collection[str], where: str) -> None:
    """Refuses static partitions of MPS where no device is an MPS client.

    Args:
        executor: What was asked for.
        kinds: Kinds of the devices.
        where: What has those devices, for the sentence.

    Raises:
        ConfigError: If partitions are asked for and there is no client.
    """
    if executor.static_mps and MPS not in kinds:
        raise ConfigError(
            f"executor.static_mps=true makes static partitions for MPS clients, and {where} has "
            f"none (its devices are {', '.join(sorted(kinds))})"
        )
