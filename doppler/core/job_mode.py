"""How the parts of a deep-RL job wait for each other."""

import enum


class JobMode(enum.Enum):
    """How weights reach the environments.

    Attributes:
        synchronous: A rollout acts on the weights that the iteration before has made.
        asynchronous: It acts on the newest weights that are there, at most `staleness` versions
            behind those, so a run cannot be repeated bit for bit.
        serving: A fixed policy collects; nothing is trained.
    """

    synchronous = "synchronous"
    asynchronous = "asynchronous"
    serving = "serving"
