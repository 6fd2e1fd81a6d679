"""A record of arrays that compiled code takes as one pointer.

A tuple of arrays costs numba two reference counts and seven arguments per array and call; a packed
record costs one pointer, and `record.field` in compiled code is a load. The arrays stay owned by
the Python object, which must outlive the call.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import from_dtype, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)
from numba.np import arrayobj


class Packed:
    """Arrays and integers of a named tuple behind one address."""

    def __init__(self, fields: NamedTuple) -> None:
        self.fields = fields
        words: list[int] = []
        layout: list[tuple[str, Any, int]] = []
        for name, value in zip(fields._fields, fields, strict=True):
            if isinstance(value, np.ndarray):
                if not value.flags.c_contiguous:
                    raise AssertionError(f"packed arrays are contiguous, and {name} is not")
                layout.append((name, from_dtype(value.dtype), value.ndim))
                words += [value.ctypes.data, *value.shape]
            else:
                layout.append((name, types.int64, 0))
                words.append(int(value))
        self._block = np.array(words, np.int64)
        self.address = self._block.ctypes.data
        self.numba_type = PackedType(type(fields).__name__, tuple(layout))


@cache
def _source_digest() -> str:
    """Hash of the engine's source.

    It is part of the name of every packed type, because numba's cache on disk knows changes of the
    file of the called function only, and would go on with old code of the other files.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class PackedType(types.Type):
    """Type of a packed record; equal for records of the same named tuple and array types."""

    def __init__(self, name: str, layout: tuple[tuple[str, Any, int], ...]) -> None:
        offsets, offset = {}, 0
        for field, dtype, ndim in layout:
            offsets[field] = (offset, dtype, ndim)
            offset += 1 + ndim
        self.offsets = offsets
        text = _source_digest() + ",".join(
            f"{field}:{dtype}:{ndim}" for field, dtype, ndim in layout
        )
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        super().__init__(name=f"Packed{name}_{digest}")


@typeof_impl.register(Packed)
def _type_of(value: Packed, _context: Any) -> PackedType:
    return value.numba_type


register_model(PackedType)(models.OpaqueModel)


@unbox(PackedType)
def _unbox(_type: PackedType, value: Any, context: Any) -> Any:
    address = context.pyapi.object_getattr_string(value, "address")
    pointer = context.pyapi.long_as_voidptr(address)
    context.pyapi.decref(address)
    return NativeValue(pointer)


@infer_getattr
class _PackedAttribute(AttributeTemplate):  # type: ignore[misc]
    key = PackedType

    def generic_resolve(self, record: PackedType, field: str) -> Any:
        if field not in record.offsets:
            return None
        _, dtype, ndim = record.offsets[field]
        return types.Array(dtype, ndim, "C") if ndim else dtype


@lower_getattr_generic(PackedType)
def _load_field(context: Any, builder: Any, record: PackedType, value: Any, field: str) -> Any:
    offset, dtype, ndim = record.offsets[field]
    word = ir.IntType(64)
    block = builder.bitcast(value, word.as_pointer())

    def load(index: int) -> Any:
        value = builder.load(builder.gep(block, [ir.Constant(word, offset + index)]))
        # The block never changes: the compiler may keep what it has loaded once.
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    if ndim == 0:
        return load(0)
    array = arrayobj.make_array(types.Array(dtype, ndim, "C"))(context, builder)
    item = context.get_data_type(dtype)
    size = context.get_abi_sizeof(item)
    shape = [load(1 + axis) for axis in range(ndim)]
    strides = [ir.Constant(word, size)]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    arrayobj.populate_array(
        array,
        data=builder.inttoptr(load(0), item.as_pointer()),
        shape=shape,
        strides=strides,
        itemsize=ir.Constant(word, size),
        meminfo=None,
    )
    return array._getvalue()
