"""HTML and SVG text that cannot be built without escaping."""

import html
from collections.abc import Mapping

_VOID = frozenset({"meta", "link", "br"})


class Markup(str):
    """Text that is already HTML; every other text is escaped by `tag` and `join`."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Returns text with &, <, > and quotes escaped."""
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=True))


def join(*parts: str) -> Markup:
    """Returns the parts in order, escaped where they are not Markup."""
    return Markup("".join(escape(part) for part in parts))


def tag(name: str, attributes: Mapping[str, str | float], *children: str) -> Markup:
    """Returns an element; numbers get at most four decimals, all texts are escaped."""
    written = "".join(f' {key}="{_attribute(value)}"' for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def percent(part: float) -> str:
    """Returns a part of 1 as an SVG length in percent."""
    return f"{100 * part:.4f}".rstrip("0").rstrip(".") + "%"


def _attribute(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
