"""What our environments are called in the simulators that the bridge reaches."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from doppler.core.errors import ConfigError

ISAAC_GYM, ISAAC_LAB = "isaacgym", "isaaclab"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsaacNames:
    """The task that an environment of ours is modelled on, per simulator.

    Attributes:
        isaac_gym: Of IsaacGymEnvs 1.5.
        isaac_lab: Of Isaac Lab 2; version 3 leaves out the `-v0`, which the adapter sees to. Empty
            where Isaac Lab has no such task.
    """

    isaac_gym: str
    isaac_lab: str


ISAAC_NAMES: Mapping[str, IsaacNames] = MappingProxyType(
    {
        "ant": IsaacNames(isaac_gym="Ant", isaac_lab="Isaac-Ant-Direct-v0"),
        "anymal": IsaacNames(
            isaac_gym="Anymal", isaac_lab="Isaac-Velocity-Flat-Anymal-C-Direct-v0"
        ),
        "ball_balance": IsaacNames(isaac_gym="BallBalance", isaac_lab=""),
        "franka_cabinet": IsaacNames(
            isaac_gym="FrankaCabinet", isaac_lab="Isaac-Franka-Cabinet-Direct-v0"
        ),
        "humanoid": IsaacNames(isaac_gym="Humanoid", isaac_lab="Isaac-Humanoid-Direct-v0"),
        "shadow_hand": IsaacNames(
            isaac_gym="ShadowHand", isaac_lab="Isaac-Repose-Cube-Shadow-Direct-v0"
        ),
    }
)
"""By our name. Sizes of observations are the simulator's, which differ from ours in Isaac Lab."""


def isaac_task(environment: str) -> tuple[str, str] | None:
    """Returns (simulator, its task) of `isaacgym:NAME` or `isaaclab:NAME`, else None.

    Args:
        environment: NAME is one of ours, or a task as the simulator calls it.

    Raises:
        ConfigError: There is no name, or Isaac Lab has no such task.
    """
    simulator, colon, name = environment.partition(":")
    if not colon or simulator not in (ISAAC_GYM, ISAAC_LAB):
        return None
    if not name:
        raise ConfigError(f"environment {environment!r} names no task")
    names = ISAAC_NAMES.get(name)
    if names is None:
        return simulator, name
    task = names.isaac_gym if simulator == ISAAC_GYM else names.isaac_lab
    if not task:
        raise ConfigError(
            f"Isaac Lab has no task like {name!r}; isaacgym:{name} and our own {name} exist"
        )
    return simulator, task
