"""The tensor job: computes a program of tensor instructions, on cores or on a GPU.

Implements `executor.job.AcceleratedJob`; on a GPU *not yet run on hardware*.

The configuration is a JSON object:

    {"dtype": "float32",              numpy name of the element type of all tensors
     "seed": 0,                       inputs are drawn from it and from their names
     "instructions": {                one per op name
        "A[0,0]":  {"kind": "input",  "in_shapes": [], "out_shapes": [[64, 32]]},
        "AB[0,0]": {"kind": "matmul", "in_shapes": [[64, 32], [32, 64]], "out_shapes": [[64, 64]]},
        ...}}

Operands come in the order of the op's in-edges. Kinds: `matmul`; `sum` and `add` (element-wise over
all operands, in order; one operand: a copy); `relu`; `exp`; `row_max` and `row_sum` (a column);
`subtract` and `divide` (operand 1 may be a column, which is broadcast). More than one output: the
result cut into equal row blocks. Inputs are standard normal over the square root of their columns.
"""

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from doppler.core.errors import ConfigError, ExecutionError, nearest
from executor.job import GroupState, Kernel
from executor.tensors.kernels import TENSOR_OPS
from executor.workers.accelerator import Accelerator

DTYPES = {"float32": torch.float32, "float64": torch.float64}
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInstruction:
    """What one op computes.

    Attributes:
        kind: Op kind.
        in_shapes: Shape of each operand.
        out_shapes: Shape of each output.
    """

    kind: str
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]

    @property
    def result_shape(self) -> Shape:
        """Shape of the result before it is cut into row blocks."""
        rows = sum(shape[0] for shape in self.out_shapes)
        return (rows, *self.out_shapes[0][1:])


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """Computes one instruction on tensors wherever they lie; an `executor.job.TensorKernel`."""

    instruction: TensorInstruction
    dtype: torch.dtype

    def __call__(
        self, iteration: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Writes the result, or its row blocks."""
        instruction = self.instruction
        operands = self._views(inputs, instruction.in_shapes)
        targets = self._views(outputs, instruction.out_shapes)
        if len(targets) == 1:
            TENSOR_OPS[instruction.kind](operands, targets[0])
            return
        result = targets[0].new_empty(instruction.result_shape)
        TENSOR_OPS[instruction.kind](operands, result)
        _copy_blocks(result, targets)

    def _views(
        self, tensors: Sequence[torch.Tensor], shapes: Sequence[Shape]
    ) -> list[torch.Tensor]:
        return [t.view(self.dtype).view(s) for t, s in zip(tensors, shapes, strict=True)]


class TensorJob:
    """Kernels of a tensor program; it has no groups and no loop-carried tensors.

    Raises:
        ConfigError: If a key, kind, element type or shape is unknown or malformed.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        unknown = sorted(set(config) - {"dtype", "seed", "instructions"})
        if unknown:
            raise ConfigError(
                f"a tensor job has no setting {unknown[0]!r}; "
                f"{nearest(unknown[0], ('dtype', 'seed', 'instructions'))}"
            )
        dtype = config.get("dtype", "float32")
        if dtype not in DTYPES:
            raise ConfigError(f"dtype of a tensor job is {dtype!r}; {nearest(str(dtype), DTYPES)}")
        self._numpy_dtype = np.dtype(dtype)
        self._dtype = DTYPES[dtype]
        self._seed = int(config.get("seed", 0))
        self._instructions = {
            name: _instruction(name, entry)
            for name, entry in config.get("instructions", {}).items()
        }

    def use_accelerator(self, accelerator: Accelerator) -> None:
        """Nothing of a tensor job but its tensors lies anywhere, and those are the runtime's."""

    def bind_tensors(
        self, op_name: str, kind: str, state: GroupState | None, threads: int
    ) -> DeviceKernel:
        """Returns the kernel of one op on tensors.

        Raises:
            ExecutionError: As `bind`.
        """
        torch.set_num_threads(threads)
        return DeviceKernel(self._find_kind(op_name, kind), self._dtype)

    def create_group(self, name: str, threads: int) -> GroupState:
        """Has no groups.

        Raises:
            ExecutionError: Always.
        """
        raise ExecutionError(f"a tensor job has no groups, and the graph has {name!r}")

    def bind(self, op_name: str, kind: str, state: GroupState | None, threads: int) -> Kernel:
        """Returns the kernel of one op.

        Raises:
            ExecutionError: If the program has no such op or has it as another kind.
        """
        torch.set_num_threads(threads)
        return TensorKernel(self._find_kind(op_name, kind), self._dtype)

    def initial(self, op_name: str, output: int, version: int) -> np.ndarray | None:
        """Returns the values of an input: normal, from the seed and the name alone."""
        instruction = self._find(op_name)
        if instruction.kind != "input":
            return None
        key = hashlib.sha256(f"{self._seed}/{op_name}/{output}".encode()).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
        shape = instruction.out_shapes[output]
        values = rng.standard_normal(shape) / np.sqrt(shape[-1])
        return np.asarray(values, dtype=self._numpy_dtype)

    def _find(self, op_name: str) -> TensorInstruction:
        if op_name not in self._instructions:
            raise ExecutionError(
                f"the program has no op {op_name!r}; {nearest(op_name, self._instructions)}"
            )
        return self._instructions[op_name]

    def _find_kind(self, op_name: str, kind: str) -> TensorInstruction:
        instruction = self._find(op_name)
        if instruction.kind != kind:
            raise ExecutionError(
                f"op {op_name!r} is of kind {kind!r} in the graph and {instruction.kind!r} in the "
                f"program"
            )
        return instruction


class TensorKernel:
    """Computes one instruction in place."""

    def __init__(self, instruction: TensorInstruction, dtype: torch.dtype) -> None:
        self._instruction = instruction
        self._compute = TENSOR_OPS[instruction.kind]
        self._dtype = dtype
        self._views: dict[tuple[int, Shape], torch.Tensor] = {}

    def __call__(
        self, iteration: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        """Writes the result, or its row blocks."""
        instruction = self._instruction
        operands = self._views_of(inputs, instruction.in_shapes)
        targets = self._views_of(outputs, instruction.out_shapes)
        if len(targets) == 1:
            self._compute(operands, targets[0])
            return
        result = torch.empty(instruction.result_shape, dtype=self._dtype)
        self._compute(operands, result)
        _copy_blocks(result, targets)

    def _views_of(
        self, arrays: Sequence[np.ndarray], shapes: Sequence[Shape]
    ) -> list[torch.Tensor]:
        return [self._view(data, shape) for data, shape in zip(arrays, shapes, strict=True)]

    def _view(self, data: np.ndarray, shape: Shape) -> torch.Tensor:
        """Returns the tensor at the address of `data`, made once per address.

        Torch takes no read-only arrays, so it is given the memory itself; nothing here writes an
        operand. A view may outlive its array, but it is used only while the caller holds one.
        """
        address = data.__array_interface__["data"][0]
        view = self._views.get((address, shape))
        if view is None:
            memory = (ctypes.c_char * data.nbytes).from_address(address)
            view = torch.frombuffer(memory, dtype=self._dtype).view(shape)
            self._views[address, shape] = view
        return view


def _copy_blocks(result: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    first = 0
    for target in targets:
        target.copy_(result[first : first + len(target)])
        first += len(target)


def _instruction(name: str, entry: Mapping[str, Any]) -> TensorInstruction:
    keys = ("kind", "in_shapes", "out_shapes")
    if sorted(entry) != sorted(keys):
        raise ConfigError(
            f"an instruction has {', '.join(keys)}, and op {name!r} has {list(entry)}"
        )
    kind = entry["kind"]
    if kind != "input" and kind not in TENSOR_OPS:
        raise ConfigError(f"op {name!r} is of kind {kind!r}; {nearest(str(kind), TENSOR_OPS)}")
    shapes = {key: tuple(tuple(shape) for shape in entry[key]) for key in keys[1:]}
    if not shapes["out_shapes"]:
        raise ConfigError(f"an op has at least one output, and op {name!r} has none")
    for shape in (*shapes["in_shapes"], *shapes["out_shapes"]):
        if len(shape) != 2 or not all(isinstance(size, int) and size > 0 for size in shape):
            raise ConfigError(f"a shape is two positive sizes, and op {name!r} has {shape}")
    return TensorInstruction(kind=kind, **shapes)
