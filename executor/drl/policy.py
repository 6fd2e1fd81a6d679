"""The actor-critic network, and any network seen as one flat vector of parameters.

Shape legend: B rows, O observation values, A action values, P parameters (padded).
"""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from doppler.core.errors import ConfigError

ALIGN = 16
"""Parameters and segments begin at multiples of this many floats (64 bytes, a cache line).

Matrix kernels may round differently at other alignments, and results must not depend on where a
buffer happens to lie. Buffers that hold parameter vectors must be aligned to 64 bytes, too.
"""
_MAX_BINDINGS = 64
_SEEDING = threading.Lock()
Vector = NDArray[np.float32] | Tensor

PolicyFactory = Callable[[], nn.Module]
"""Returns a new module with forward(obs[B, O]) -> (mean[B, A], log_std[A] or [B, A], value[B])."""


class ActorCritic(nn.Module):
    """A shared ELU trunk with a Gaussian mean, a state-independent log_std, and a value.

    Source: network of GMI-DRL's and IsaacGymEnvs' PPO baselines (256-128-64 for Ant).
    """

    def __init__(
        self, obs_dim: int, act_dim: int, hidden: Sequence[int], init_log_std: float
    ) -> None:
        super().__init__()
        sizes = (obs_dim, *hidden)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [_linear(fan_in, fan_out, gain=sqrt(2.0)), nn.ELU(inplace=True)]
        self.trunk = nn.Sequential(*layers)
        self.mean = _linear(sizes[-1], act_dim, gain=0.01)
        self.value = _linear(sizes[-1], 1, gain=1.0)
        self.log_std = nn.Parameter(torch.full((act_dim,), init_log_std))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (mean[B, A], log_std[A], value[B]) of obs[B, O]."""
        features = self.trunk(obs)
        return self.mean(features), self.log_std, self.value(features).squeeze(-1)


def _linear(fan_in: int, fan_out: int, *, gain: float) -> nn.Linear:
    # Normal, not orthogonal: elementwise draws are the same for any number of threads.
    layer = nn.Linear(fan_in, fan_out)
    nn.init.normal_(layer.weight, std=gain / sqrt(fan_in))
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterLayout:
    """Where each parameter of a module lies in its flat vector.

    Attributes:
        names: Parameter names in the module's order.
        shapes: Shape per parameter.
        offsets: First float per parameter; a multiple of `ALIGN`. Gaps hold zeros for ever.
        size: Floats of the vector (P), a multiple of `ALIGN`.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int


def parameter_layout(module: nn.Module) -> ParameterLayout:
    """Returns the flat layout of a module's parameters.

    Raises:
        ConfigError: The module has no parameters, or some are not float32 on the CPU.
    """
    names, shapes, offsets, end = [], [], [], 0
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ConfigError(
                f"policy parameter {name!r} must be float32 on the cpu, "
                f"not {parameter.dtype} on {parameter.device}"
            )
        names.append(name)
        shapes.append(tuple(parameter.shape))
        offsets.append(end)
        end += -(-prod(parameter.shape) // ALIGN) * ALIGN
    if not names:
        raise ConfigError("the policy module has no parameters, so there is nothing to train")
    return ParameterLayout(
        names=tuple(names), shapes=tuple(shapes), offsets=tuple(offsets), size=end
    )


def segment_bounds(size: int, num_segments: int) -> tuple[tuple[int, int], ...]:
    """Returns (first, end) of `num_segments` nearly equal aligned pieces of a vector of `size`.

    Raises:
        ConfigError: The vector has fewer aligned blocks than pieces are asked for.
    """
    blocks = size // ALIGN
    if not 1 <= num_segments <= blocks:
        raise ConfigError(
            f"num_segments is {num_segments}, but the {size} parameters can be cut into 1 to "
            f"{blocks} segments"
        )
    cuts = [blocks * j // num_segments * ALIGN for j in range(num_segments + 1)]
    return tuple(pairwise(cuts))


class FlatPolicy:
    """A module whose parameters are views of whichever float32 vector it is bound to.

    Vectors are numpy arrays, or torch tensors where the module lies. Binding copies nothing; the
    views of the last buffers are kept, since a runtime reuses few.

    Args:
        module: New, on the CPU.
        torch_device: Where it is to lie.

    Raises:
        ConfigError: As `parameter_layout`.
    """

    def __init__(self, module: nn.Module, torch_device: str = "cpu") -> None:
        self.layout = parameter_layout(module)
        self.module = module.to(torch_device)
        self._parameters = list(module.parameters())
        self._bound_to = 0
        self._views: OrderedDict[int, list[Tensor]] = OrderedDict()

    def bind(self, vector: Vector) -> nn.Module:
        """Returns the module with its parameters read from `vector`[P or more].

        The vector stays in use until the next `bind` and must not change while the module runs.
        """
        address = vector.data_ptr() if isinstance(vector, Tensor) else vector.ctypes.data
        if address != self._bound_to:
            for parameter, view in zip(
                self._parameters, self._cached(address, vector), strict=True
            ):
                parameter.data = view
            self._bound_to = address
        return self.module

    def bind_gradient(self, gradient: Vector) -> None:
        """Lets backward passes add to `gradient`[P] from now on."""
        for parameter, view in zip(self._parameters, self._split(gradient), strict=True):
            parameter.grad = view

    def release(self) -> None:
        """Forgets every buffer, so that its memory can be unmapped."""
        self.bind(self.read())
        self._views.clear()

    def read(self) -> NDArray[np.float32]:
        """Returns a copy of the parameters as a flat vector [P]."""
        vector = aligned_zeros(self.layout.size)
        for view, parameter in zip(self._split(vector), self._parameters, strict=True):
            view.copy_(parameter.detach())
        return vector

    def _cached(self, address: int, vector: Vector) -> list[Tensor]:
        views = self._views.get(address)
        if views is None:
            views = self._views[address] = self._split(vector)
            if len(self._views) > _MAX_BINDINGS:
                self._views.popitem(last=False)
        return views

    def _split(self, vector: Vector) -> list[Tensor]:
        layout = self.layout
        if isinstance(vector, Tensor):
            flat = vector[: layout.size]
        else:
            with warnings.catch_warnings():
                # Parameter vectors of a runtime are read-only, and modules only read them.
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                flat = torch.from_numpy(vector[: layout.size])
        return [
            flat[offset : offset + prod(shape)].view(shape)
            for offset, shape in zip(layout.offsets, layout.shapes, strict=True)
        ]


def seeded_module(factory: PolicyFactory, seed: int) -> nn.Module:
    """Returns a new module whose initial parameters depend on `seed` alone.

    Devices of one process build their jobs in threads, and torch's generator is the process's.
    """
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()


def aligned_zeros(size: int) -> NDArray[np.float32]:
    """Returns `size` zeros aligned to 64 bytes."""
    spare = np.zeros(size + ALIGN, np.float32)
    first = -spare.ctypes.data % (4 * ALIGN) // 4
    return spare[first : first + size]


def check_policy(module: nn.Module, obs_dim: int, act_dim: int) -> None:
    """Holds a module to the policy protocol with one forward pass of two rows.

    Raises:
        ConfigError: An output has another shape than the protocol says.
    """
    with torch.no_grad():
        try:
            result = module(torch.zeros(2, obs_dim))
        except RuntimeError as error:
            raise ConfigError(
                f"the policy cannot read observations [2, {obs_dim}]: {error}"
            ) from error
    if not isinstance(result, tuple) or len(result) != 3:
        raise ConfigError("the policy's forward must return the tuple (mean, log_std, value)")
    allowed = {
        "mean": ((2, act_dim),),
        "log_std": ((act_dim,), (2, act_dim)),
        "value": ((2,),),
    }
    for (name, shapes), tensor in zip(allowed.items(), result, strict=True):
        if tuple(tensor.shape) not in shapes:
            raise ConfigError(
                f"the policy's {name} for 2 observations has shape {list(tensor.shape)}, "
                f"but must have {' or '.join(str(list(shape)) for shape in shapes)}"
            )


def multiply_adds(layout: ParameterLayout) -> int:
    """Returns multiply-adds of a forward pass of one row: the entries of all weight matrices."""
    return sum(prod(shape) for shape in layout.shapes if len(shape) > 1)
