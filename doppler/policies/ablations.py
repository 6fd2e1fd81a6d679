"""Makes the policies that a configuration asks for: the pair, or an ablation of it."""

from doppler.policies.config import Learned, PolicyConfig
from doppler.policies.dual import DualPolicy
from doppler.policies.joint import JointPolicy
from doppler.policies.step_policy import StepPolicy

CLASSES = {Learned.joint: JointPolicy, Learned.per_step: StepPolicy}


def new_policy(config: PolicyConfig, seed: int) -> DualPolicy:
    """Returns untrained policies; equal seeds give equal weights."""
    return CLASSES.get(config.learned, DualPolicy)(config, seed)
