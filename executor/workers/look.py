"""What a worker sees of its device, printed as JSON: started by the probe as a back end's worker.

Usage: python -m executor.workers.look SHARE; SHARE is a `GpuShare` as JSON, or "cores" in a core
group. The last line is {"text": what it sees}, of a core group {"cores": its ids, "threads": of one
op}, or {"error": why it would refuse to run}.
"""

import json
import os
import sys

import torch

from doppler.core.errors import DopplerError
from executor.workers.accelerator import open_accelerator
from executor.workers.share import GpuShare

CORES = "cores"


def main() -> None:
    """Opens the device as a worker does and says what it found."""
    if sys.argv[1] == CORES:
        seen = {"cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}
        sys.stdout.write(f"\n{json.dumps(seen)}\n")
        return
    fields = json.loads(sys.argv[1])
    share = GpuShare(**{**fields, "split": tuple(fields["split"])})
    try:
        answer = {"text": open_accelerator(share)[1].text}
    except (DopplerError, RuntimeError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
