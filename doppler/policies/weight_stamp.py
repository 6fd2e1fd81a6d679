"""Tells whether weights are still what something was made of."""

from dataclasses import dataclass
from operator import is_

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class WeightStamp:
    """Tensors and the numbers of changes made in place so far.

    Operations of torch that change a tensor in place count: `load_state_dict`, an initialisation, a
    step of an optimiser. A fused step does not, unless it is counted behind it
    (`doppler.training.learner.make_optimizer`), nor what is written round torch (through `.data`,
    or an array that shares the memory).

    Attributes:
        tensors: They are kept, so that no other tensor gets the identity of one of them.
        versions: Changes of each.
    """

    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, *tensors: Tensor) -> "WeightStamp":
        """Returns the stamp of tensors as they are now."""
        return cls(tensors, tuple(tensor._version for tensor in tensors))

    @classmethod
    def of_module(cls, module: nn.Module) -> "WeightStamp":
        """Returns the stamp of all parameters of a module and of its parts."""
        found: list[Tensor] = []
        left = [module]
        while left:
            part = left.pop()
            found += [weight for weight in part._parameters.values() if weight is not None]
            left += [inner for inner in part._modules.values() if inner is not None]
        return cls.of(*found)

    def agrees(self, other: "WeightStamp") -> bool:
        """True if both are of the same tensors with the same content."""
        return self.versions == other.versions and all(map(is_, self.tensors, other.tensors))
