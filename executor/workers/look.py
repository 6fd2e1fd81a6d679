"""What a worker sees of its device, printed as JSON: started by the probe as a back end's worker.

Usage: python -m executor.workers.look SHARE; SHARE is a `GpuShare` as JSON, or in a core group
"cores" or "memory". The last line is {"text": what it sees}, of a core group {"cores": its ids,
"threads": of one op} or {"memory_bytes": what its private memory is limited to or null, "refuses":
true if it cannot take as much}, or {"error": why it would refuse to run}.
"""

import json
import mmap
import os
import resource
import sys
from typing import Any

from doppler.core.errors import DopplerError
from executor.launch.gpus import load_module
from executor.workers.accelerator import open_accelerator
from executor.workers.share import GpuShare

CORES, MEMORY = "cores", "memory"


def main() -> None:
    """Opens the device as a worker does and says what it found."""
    looks = {CORES: _look_at_cores, MEMORY: _look_at_memory}
    if sys.argv[1] in looks:
        sys.stdout.write(f"\n{json.dumps(looks[sys.argv[1]]())}\n")
        return
    fields = json.loads(sys.argv[1])
    share = GpuShare(**{**fields, "split": tuple(fields["split"])})
    try:
        answer = {"text": open_accelerator(share)[1].text}
    except (DopplerError, RuntimeError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def _look_at_cores() -> dict[str, object]:
    torch: Any = load_module("torch")
    return {"cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}


def _look_at_memory() -> dict[str, object]:
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    is_limited = limit != resource.RLIM_INFINITY
    return {
        "memory_bytes": limit if is_limited else None,
        "refuses": is_limited and _is_refused(limit),
    }


def _is_refused(num_bytes: int) -> bool:
    """True if so much memory cannot be mapped; nothing of it is touched."""
    try:
        mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE).close()
    except OSError:
        return True
    return False


if __name__ == "__main__":
    main()
