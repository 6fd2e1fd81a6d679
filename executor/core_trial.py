"""Whether a worker that is bound to a core group has its cores and its threads, and no other."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executor.launch.local import bound_command, worker_environment
from executor.probe import Finding, look_command, run_look
from executor.workers.look import CORES

NAME = "core groups"

LookAtCores = Callable[[Sequence[int]], Mapping[str, object]]
"""Starts a worker on cores and returns {"cores", "threads"} as it sees them, or {"error"}."""


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


def look_at_cores(cores: Sequence[int]) -> dict[str, Any]:
    """Starts a worker that only looks where it runs, and returns what it says."""
    environment = worker_environment(os.environ, len(cores), sys.path)
    return run_look(bound_command(cores, [*look_command(), CORES]), environment, "cores")


def _text(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))
