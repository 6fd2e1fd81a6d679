"""Whether a worker of a core group has its cores, threads and memory limit, and no other."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executor.launch.local import bound_command, worker_environment
from executor.probe import Finding, look_command, run_look
from executor.workers.look import CORES, MEMORY

NAME, MEMORY_NAME = "core groups", "memory limit of core groups"
TRIAL_LIMIT_BYTES = 1 << 30

LookAtCores = Callable[[Sequence[int]], Mapping[str, object]]
"""Starts a worker on cores and returns what it sees (`executor.workers.look`), or {"error"}."""


def verify_core_groups(core_ids: Sequence[int], look: LookAtCores | None = None) -> Finding:
    """Starts a worker on the last core, and one on all cores if there are more.

    Args:
        core_ids: Cores that this process may use, at least one.
        look: Starts a worker; None = a process as the executor starts one.
    """
    said = []
    for cores in dict.fromkeys(((core_ids[-1],), tuple(core_ids))):
        seen = (look or look_at_cores)(cores)
        error = seen.get("error")
        if error is None and seen != {"cores": sorted(cores), "threads": len(cores)}:
            error = (
                f"a worker bound to cores {_text(cores)} with a thread for each sees cores "
                f"{seen['cores']} and {seen['threads']} threads"
            )
        if error is not None:
            return Finding(name=NAME, is_present=False, detail=f"absent: {error}")
        threads = "1 thread" if len(cores) == 1 else f"{len(cores)} threads"
        said.append(f"{_text(cores)} with {threads}")
    return Finding(
        name=NAME, is_present=True, detail=f"seen from inside: cores {'; cores '.join(said)}"
    )


def verify_memory_limit(core: int, look: LookAtCores | None = None) -> Finding:
    """Starts a worker whose private memory is limited; it sees the limit and cannot take as much.

    Args:
        core: Where it runs.
        look: Starts a worker; None = a process as the executor starts one.
    """
    seen = (look or _look_limited)((core,))
    error = seen.get("error")
    if error is None and seen.get("memory_bytes") != TRIAL_LIMIT_BYTES:
        error = f"a worker limited to {TRIAL_LIMIT_BYTES} bytes sees {seen.get('memory_bytes')}"
    if error is None and not seen.get("refuses"):
        error = f"a worker limited to {TRIAL_LIMIT_BYTES} bytes can take as much beside its own"
    if error is not None:
        return Finding(name=MEMORY_NAME, is_present=False, detail=f"absent: {error}")
    return Finding(
        name=MEMORY_NAME,
        is_present=True,
        detail=f"seen from inside: a worker limited to {TRIAL_LIMIT_BYTES} bytes of private memory "
        f"is refused more; shares are planned, and enforced where limit_memory is set",
    )


def _look_limited(cores: Sequence[int]) -> dict[str, Any]:
    limit = TRIAL_LIMIT_BYTES
    environment = worker_environment(os.environ, len(cores), sys.path, limit)
    command = bound_command(cores, [*look_command(), MEMORY], memory_bytes=limit)
    return run_look(command, environment, "memory limit")


def look_at_cores(cores: Sequence[int]) -> dict[str, Any]:
    """Starts a worker that only looks where it runs, and returns what it says."""
    environment = worker_environment(os.environ, len(cores), sys.path)
    return run_look(bound_command(cores, [*look_command(), CORES]), environment, "cores")


def _text(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))
