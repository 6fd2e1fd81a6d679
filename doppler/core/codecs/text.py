"""JSON text that people can read and diff: one line per entry, one line per short row."""

import json
from typing import Any

LINE_LENGTH = 160


def format_json(value: Any) -> str:
    """Returns the text of a JSON value; what fits on a line stands on one, key order is kept."""
    return _format(value, "") + "\n"


def _format(value: Any, indent: str) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict | list) or not value:
        return text
    if indent and len(indent) + len(text) <= LINE_LENGTH and not _is_long(value):
        return text
    inner = indent + " "
    if isinstance(value, dict):
        rows = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_format(item, inner)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    rows = [f"{inner}{_format(item, inner)}" for item in value]
    return "[\n" + ",\n".join(rows) + f"\n{indent}]"


def _is_long(value: Any) -> bool:
    """A table of rows is never one line, so that a new row is a one-line difference."""
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, dict | list) and item for item in items)
