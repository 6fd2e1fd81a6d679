"""A record of arrays that compiled code takes as one pointer.

A tuple of arrays costs numba two reference counts and seven arguments per array and call; a packed
record costs one pointer, and `record.field` in compiled code is a load. The arrays stay owned by
the Python object, which must outlive the call.
"""

import hashlib
import operator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, signature
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)


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
        # Room around it, so that no other thread writes to a cache line that this one reads.
        room = [0] * 16
        self._block = np.array([*room, *words, *room], np.int64)[16:]
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


class FieldArray(types.Type):
    """Type of one array field; its elements can be read and written, nothing else.

    Unlike numba's arrays it does not count a negative index from the end, and every access says
    which field it touches, so that the compiler knows that a store to one field leaves what it has
    loaded from the others as it was (fields of a record never share memory).
    """

    def __init__(self, record: str, field: str, dtype: Any, ndim: int) -> None:
        self.field, self.dtype, self.ndim = f"{record}.{field}", dtype, ndim
        super().__init__(name=f"Field({record}.{field},{dtype},{ndim})")


@register_model(FieldArray)
class _FieldModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, field: FieldArray) -> None:
        members = [("data", types.CPointer(field.dtype))]
        members += [(f"extent{axis}", types.intp) for axis in range(field.ndim)]
        super().__init__(manager, field, members)


@infer_getattr
class _PackedAttribute(AttributeTemplate):  # type: ignore[misc]
    key = PackedType

    def generic_resolve(self, record: PackedType, field: str) -> Any:
        if field not in record.offsets:
            return None
        _, dtype, ndim = record.offsets[field]
        return FieldArray(record.name, field, dtype, ndim) if ndim else dtype


@infer_getattr
class _FieldAttribute(AttributeTemplate):  # type: ignore[misc]
    key = FieldArray

    def generic_resolve(self, field: FieldArray, attribute: str) -> Any:
        return types.intp if attribute == "size" else None


def _index_type(field: FieldArray, index: Any) -> Any:
    """The index as numba shall cast it, or None if it does not fit the field."""
    if field.ndim == 1 and isinstance(index, types.Integer):
        return types.intp
    if isinstance(index, types.BaseTuple) and len(index) == field.ndim:
        return types.UniTuple(types.intp, field.ndim)
    return None


@infer_global(operator.getitem)
class _FieldLoad(AbstractTemplate):  # type: ignore[misc]
    key = operator.getitem

    def generic(self, arguments: Any, _keywords: Any) -> Any:
        field, index = arguments
        if isinstance(field, FieldArray) and (cast := _index_type(field, index)):
            return signature(field.dtype, field, cast)
        return None


@infer_global(operator.setitem)
class _FieldStore(AbstractTemplate):  # type: ignore[misc]
    key = operator.setitem

    def generic(self, arguments: Any, _keywords: Any) -> Any:
        field, index, _ = arguments
        if isinstance(field, FieldArray) and (cast := _index_type(field, index)):
            return signature(types.none, field, cast, field.dtype)
        return None


def _own_memory(module: Any, instruction: Any, field: FieldArray) -> Any:
    """Marks an access: those of different fields never touch the same memory (LLVM's TBAA)."""
    root = module.add_metadata([ir.MetaDataString(module, "packed")])
    kind = module.add_metadata([ir.MetaDataString(module, field.field), root])
    zero = ir.Constant(ir.IntType(64), 0)
    instruction.set_metadata("tbaa", module.add_metadata([kind, kind, zero]))
    return instruction


def _address(context: Any, builder: Any, field: FieldArray, value: Any, index: Any) -> Any:
    array = cgutils.create_struct_proxy(field)(context, builder, value)
    if field.ndim > 1:
        offset, *others = cgutils.unpack_tuple(builder, index)
        for axis, at in enumerate(others, start=1):
            offset = builder.add(builder.mul(offset, getattr(array, f"extent{axis}")), at)
        index = offset
    return builder.gep(array.data, [index])


@lower_builtin(operator.getitem, FieldArray, types.intp)
@lower_builtin(operator.getitem, FieldArray, types.BaseTuple)
def _load(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    field = sig.args[0]
    loaded = builder.load(_address(context, builder, field, *arguments))
    return _own_memory(builder.module, loaded, field)


@lower_builtin(operator.setitem, FieldArray, types.intp, types.Any)
@lower_builtin(operator.setitem, FieldArray, types.BaseTuple, types.Any)
def _store(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    field, (value, index, item) = sig.args[0], arguments
    stored = builder.store(item, _address(context, builder, field, value, index))
    _own_memory(builder.module, stored, field)
    return context.get_dummy_value()


@lower_getattr_generic(FieldArray)
def _size(context: Any, builder: Any, field: FieldArray, value: Any, _attribute: str) -> Any:
    array = cgutils.create_struct_proxy(field)(context, builder, value)
    size = array.extent0
    for axis in range(1, field.ndim):
        size = builder.mul(size, getattr(array, f"extent{axis}"))
    return size


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
    kind = FieldArray(record.name, field, dtype, ndim)
    array = cgutils.create_struct_proxy(kind)(context, builder)
    array.data = builder.inttoptr(load(0), context.get_data_type(dtype).as_pointer())
    for axis in range(ndim):
        setattr(array, f"extent{axis}", load(1 + axis))
    return array._getvalue()
