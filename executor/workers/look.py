"""What a worker sees of a GPU, printed as JSON: started by the probe in a back end's environment.

Usage: python -m executor.workers.look SHARE; SHARE is a `GpuShare` as JSON. The last line is
{"text": what it sees} or {"error": why it would refuse to run}.
"""

import json
import sys

from doppler.core.errors import DopplerError
from executor.workers.accelerator import open_accelerator
from executor.workers.share import GpuShare


def main() -> None:
    """Opens the GPU as a worker does and says what it found."""
    fields = json.loads(sys.argv[1])
    share = GpuShare(**{**fields, "split": tuple(fields["split"])})
    try:
        answer = {"text": open_accelerator(share)[1].text}
    except (DopplerError, RuntimeError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
