"""The pretrained pair that comes with the project; `doppler pretrain` made it.

The folder `pretrained` beside this file holds the weights (safetensors), their configuration, and
`training.json` with the command, seed, cost and training curve.
"""

from pathlib import Path

from doppler.policies.dual import DualPolicy
from doppler.policies.storage import load_policy

FOLDER = Path(__file__).parent / "pretrained"


def load_pretrained() -> DualPolicy:
    """Returns a copy of the pretrained policies that the caller may train on.

    Raises:
        FormatError: If the package's data are absent or damaged.
    """
    return load_policy(FOLDER)
