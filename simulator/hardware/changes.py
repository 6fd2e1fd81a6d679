"""What-if: the catalogue with one number changed, written `ENTRY.NUMBER*2`.

ENTRY is the name of a GPU, CPU or link (`a100_sxm4_40`, `nvlink3`), or stands for those that a
machine uses: `gpu`, `cpu`, `nvlink`, `pcie`, `socket`, `network`. NUMBER is a figure of the entry
(`bytes_per_s`, `latency_ns`, `launch_ns`, `num_sms`, ...); `flop_per_s.bf16` is the rate of one
data type, `flop_per_s` those of all. The operators are `*`, `/`, `+`, `-` and `:` (set).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, TypeVar

from doppler.core.errors import ConfigError, nearest
from simulator.hardware.catalogue import Catalogue
from simulator.hardware.entries import Figure, Rate
from simulator.hardware.machines import split_name

_Number = TypeVar("_Number", Figure, Rate)

SYNTAX = "ENTRY.NUMBER and one of *2, /2, +10, -10, :10 (set)"
POSITIVE = ("bytes_per_s", "memory_bytes_per_s", "flop_per_s", "num_sms", "memory_bytes")
_CHANGE = re.compile(r"\s*(\w+)\.(\w+)(?:\.(\w+))?\s*([*/+:-])\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of one number.

    Attributes:
        entry: Entry that it belongs to.
        number: Its name, such as "bytes_per_s" or "flop_per_s.bf16".
        before, after: Its value.
        source: Where the value before came from.
    """

    entry: str
    number: str
    before: int
    after: int
    source: str


def change_catalogue(
    catalogue: Catalogue, machine: str, text: str
) -> tuple[Catalogue, tuple[Change, ...]]:
    """Returns the catalogue with one number changed, and what changed.

    Args:
        catalogue: What is known.
        machine: Named machine, for entries such as `nvlink`; "@dtype" is ignored.
        text: The change, such as "nvlink.bytes_per_s*2".

    Raises:
        ConfigError: If the text is no change, the machine uses no such entry, the entry has no
            such number, or the number would leave its range.
    """
    match = _CHANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"a change is written {SYNTAX}, and {text!r} is not")
    name, number, dtype, operator, operand = match.groups()
    used = _used_entries(catalogue, machine)
    if name not in used:
        raise ConfigError(f"{machine!r} uses no entry {name!r}; {nearest(name, used)}")
    changed = catalogue
    changes: list[Change] = []
    for kind, entry in used[name]:
        table: Mapping[str, Any] = getattr(changed, kind)
        new = _changed(table[entry], number, dtype, (operator, Fraction(operand)), text, changes)
        changed = replace(changed, **{kind: {**table, entry: new}})
    return changed, tuple(changes)


def _used_entries(catalogue: Catalogue, machine: str) -> dict[str, list[tuple[str, str]]]:
    """Name of an entry, or what it stands for -> (table, entry)."""
    node, _, network = catalogue.node_of(split_name(machine)[0])
    used: dict[str, list[tuple[str, str]]] = {}
    wires = [node.nvlink, node.pcie, node.socket, network] if node.gpu else []
    for kind, role, entry in (
        ("gpus", "gpu", node.gpu),
        ("cpus", "cpu", node.cpu),
        *(("links", catalogue.links[wire].family, wire) for wire in wires if wire),
    ):
        if entry is not None:
            used.setdefault(role, []).append((kind, entry))
            used[entry] = [(kind, entry)]
    return used


def _changed(
    entry: Any,
    number: str,
    dtype: str | None,
    operation: tuple[str, Fraction],
    text: str,
    changes: list[Change],
) -> Any:
    values = {item.name: getattr(entry, item.name) for item in fields(entry)}
    numbers = [key for key, value in values.items() if _is_number(value)]
    if number not in numbers:
        raise ConfigError(f"{entry.name!r} has no number {number!r}; {nearest(number, numbers)}")
    value = values[number]
    if isinstance(value, Figure):
        if dtype is not None:
            raise ConfigError(f"{number} of {entry.name!r} is one number, and {text!r} asks a part")
        new, change = _apply(entry.name, number, value, operation, text)
        changes.append(change)
        return replace(entry, **{number: new})
    dtypes = [rate.dtype for rate in value]
    if dtype is not None and dtype not in dtypes:
        raise ConfigError(f"{entry.name!r} has no rate {dtype!r}; {nearest(dtype, dtypes)}")
    rates = []
    for rate in value:
        if dtype in (None, rate.dtype):
            new_rate, change = _apply(entry.name, f"{number}.{rate.dtype}", rate, operation, text)
            rates.append(new_rate)
            changes.append(change)
        else:
            rates.append(rate)
    return replace(entry, **{number: tuple(rates)})


def _is_number(value: object) -> bool:
    return isinstance(value, Figure) or (
        isinstance(value, tuple) and bool(value) and all(isinstance(item, Rate) for item in value)
    )


def _apply(
    entry: str, number: str, figure: _Number, operation: tuple[str, Fraction], text: str
) -> tuple[_Number, Change]:
    operator, operand = operation
    before = Fraction(figure.value)
    if operator == "/" and operand == 0:
        raise ConfigError(f"nothing is divided by 0, and {text!r} asks for it")
    after = round(
        {
            "*": lambda: before * operand,
            "/": lambda: before / operand,
            "+": lambda: before + operand,
            "-": lambda: before - operand,
            ":": lambda: operand,
        }[operator]()
    )
    least = 1 if number.partition(".")[0] in POSITIVE else 0
    if after < least:
        raise ConfigError(
            f"{number} of {entry!r} is at least {least}, and {text!r} makes it {after}"
        )
    change = Change(
        entry=entry, number=number, before=figure.value, after=after, source=figure.source
    )
    return replace(figure, value=after, source=f"what if {text}", confirmed=False), change
