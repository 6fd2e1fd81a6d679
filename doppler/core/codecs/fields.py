"""JSON of plain dataclasses, driven by their annotations: strict in types and in keys."""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from doppler.core.errors import FormatError, nearest

MAX_LISTED = 16
JSON_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def encode(value: Any) -> Any:
    """Returns the JSON value of dataclasses, enums, tuples and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(hint: Any, value: Any, where: str) -> Any:
    """Returns `value` as the type that `hint` names.

    Args:
        hint: int, float, str, bool, an Enum, a dataclass, `tuple[X, ...]` or `X | None`.
        value: What the JSON holds.
        where: Path of the value ("plan.json: placement.matmul_3"), for messages.

    Raises:
        FormatError: If the type is wrong, or a key of a dataclass is missing or unknown.
    """
    origin = typing.get_origin(hint)
    if origin is tuple:
        (item, _) = typing.get_args(hint)
        rows = expect_list(value, where)
        return tuple(decode(item, row, f"{where}[{index}]") for index, row in enumerate(rows))
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return None if value is None else decode(inner, value, where)
    if dataclasses.is_dataclass(hint):
        return decode_dataclass(typing.cast(type, hint), value, where)
    if issubclass(hint, enum.Enum):
        return _decode_enum(hint, value, where)
    return decode_scalar(hint, value, where)


def decode_dataclass(cls: type, value: Any, where: str) -> Any:
    """Returns an instance of the dataclass `cls`; every field is a key, and no other key is.

    Raises:
        FormatError: If a key is missing, unknown or of a wrong type.
    """
    hints = _hints(cls)
    document = expect_keys(value, hints, where)
    return cls(
        **{key: decode(hint, document[key], f"{where}.{key}") for key, hint in hints.items()}
    )


def decode_scalar(kind: type, value: Any, where: str) -> Any:
    """Returns a scalar of exactly this kind (an integer may stand for a float).

    Raises:
        FormatError: If it is of another kind; true and false are no integers.
    """
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise FormatError(f"{where} is {JSON_NAMES[kind]}, and the document has {value!r}")
    return kind(value)


def expect_object(value: Any, where: str) -> Mapping[str, Any]:
    """Returns `value` if it is a JSON object.

    Raises:
        FormatError: If it is anything else.
    """
    if not isinstance(value, dict):
        raise FormatError(f"{where} is an object, and the document has {_short(value)}")
    return value


def expect_list(value: Any, where: str) -> Sequence[Any]:
    """Returns `value` if it is a JSON list.

    Raises:
        FormatError: If it is anything else.
    """
    if not isinstance(value, list):
        raise FormatError(f"{where} is a list, and the document has {_short(value)}")
    return value


def expect_keys(value: Any, keys: typing.Iterable[str], where: str) -> Mapping[str, Any]:
    """Returns `value` if it is an object with exactly these keys.

    Raises:
        FormatError: Names the first key that is unknown or missing.
    """
    document = expect_object(value, where)
    valid = list(keys)
    for key in document:
        if key not in valid:
            raise FormatError(f"{where} has the unknown key {key!r}; {nearest(str(key), valid)}")
    for key in valid:
        if key not in document:
            raise FormatError(f"{where} lacks the key {key!r}")
    return document


def look_up(ids: Mapping[str, int], name: Any, what: str, where: str) -> int:
    """Returns the id of an op or a device by its name.

    Raises:
        FormatError: If the name is unknown.
    """
    decode_scalar(str, name, where)
    if name not in ids:
        raise FormatError(f"{where} names the unknown {what} {name!r}; {_near(name, ids)}")
    return ids[name]


def _near(name: str, ids: Mapping[str, int]) -> str:
    """The nearest name; all of them only where they are few."""
    tail = nearest(name, ids)
    if len(ids) <= MAX_LISTED:
        return tail
    hint, _, listed = tail.partition("Valid:")
    return hint.strip() if listed else f"there are {len(ids)} names"


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _decode_enum(cls: type[enum.Enum], value: Any, where: str) -> enum.Enum:
    valid = [member.value for member in cls]
    if value not in valid:
        raise FormatError(f"{where} is one of {', '.join(valid)}, and the document has {value!r}")
    return cls(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
