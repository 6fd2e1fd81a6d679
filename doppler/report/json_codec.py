"""Frozen dataclasses to JSON and back, strictly: unknown keys, wrong types and NaN are refused."""

import dataclasses
import enum
import json
import math
import types
import typing
from typing import Any, TypeVar

from doppler.core.errors import FormatError, nearest

_T = TypeVar("_T")


def to_json(value: object) -> Any:
    """Returns `value` as dicts, lists and scalars.

    Raises:
        FormatError: If a number is not finite or a type has no JSON form.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise FormatError(f"numbers in JSON are finite, and one is {value}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FormatError(
        f"a record holds numbers, texts and tuples, and it has {type(value).__name__}"
    )


def from_json(kind: type[_T], document: Any, where: str) -> _T:
    """Returns `document` as `kind`, a dataclass; `where` names the document in messages.

    Raises:
        FormatError: If a key is unknown or missing, or a value has another type; names the path.
    """
    return typing.cast(_T, _decode(kind, document, where))


def parse(text: str, where: str) -> Any:
    """Returns the JSON document in `text`; NaN and repeated keys are refused.

    Raises:
        FormatError: If the text is no JSON document.
    """

    def refuse(constant: str) -> Any:
        raise FormatError(f"numbers in JSON are finite, and {where} has {constant}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated = next((key for key in keys if keys.count(key) > 1), None)
        if repeated is not None:
            raise FormatError(f"keys are unique, and {where} repeats {repeated!r}")
        return dict(pairs)

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except (json.JSONDecodeError, RecursionError) as error:
        raise FormatError(f"{where} is not a JSON document: {error}") from error


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(item for item in typing.get_args(kind) if item is not type(None))
        return None if value is None else _decode(inner, value, where)
    if origin is tuple:
        item_kind = typing.get_args(kind)[0]
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return tuple(
            _decode(item_kind, item, f"{where}[{index}]") for index, item in enumerate(value)
        )
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, where)
    if issubclass(kind, enum.Enum):
        if value not in [member.value for member in kind]:
            tail = nearest(str(value), [str(member.value) for member in kind])
            raise FormatError(f"{where} is {value!r}, which is no {kind.__name__}; {tail}")
        return kind(value)
    return _decode_scalar(kind, value, where)


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in value:
        if key not in fields:
            raise FormatError(f"{where} has the unknown key {key!r}; {nearest(key, fields)}")
    for name in fields:
        if name not in value:
            raise FormatError(f"{where} lacks the key {name!r}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _decode(hints[name], value[name], f"{where}.{name}") for name in fields})


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is an int in Python, and not in JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
        raise _wrong(where, names[kind], value)
    return value


def _wrong(where: str, expected: str, value: Any) -> FormatError:
    return FormatError(f"{where} is {expected}, and the document has {value!r:.60}")
