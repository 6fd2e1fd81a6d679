"""JSON whose objects know their line, for readers whose messages name it."""

import bisect
import json
import json.decoder
import json.scanner
from typing import Any

from doppler.core.errors import FormatError


class LinedObject(dict[str, Any]):
    """A JSON object and the line that it begins on."""

    line: int = 0


def parse_json(text: str, where: str) -> Any:
    """Returns what JSON text holds; every object is a `LinedObject`.

    Raises:
        FormatError: If it is no JSON, repeats a key, or holds NaN or infinity; names the line.
    """
    try:
        return _Decoder(text).decode(text)
    except RecursionError as error:
        raise FormatError(f"{where} is nested too deeply to be a document") from error
    except json.JSONDecodeError as error:
        raise FormatError(f"{where}, line {error.lineno}: {error.msg}") from error


class _Decoder(json.JSONDecoder):
    """The standard decoder in Python, which tells where an object begins."""

    def __init__(self, text: str) -> None:
        super().__init__(parse_constant=self._refuse)
        self._text = text
        self._breaks = [position for position, letter in enumerate(text) if letter == "\n"]
        self.parse_object = self._parse_object
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _parse_object(
        self,
        start: tuple[str, int],
        strict: bool,
        scan_once: Any,
        object_hook: Any,
        object_pairs_hook: Any,
        memo: Any = None,
    ) -> tuple[LinedObject, int]:
        def build(pairs: list[tuple[str, Any]]) -> LinedObject:
            result = LinedObject()
            for key, value in pairs:
                if key in result:
                    message = f"the key {key!r} stands twice in one object"
                    raise json.JSONDecodeError(message, self._text, start[1])
                result[key] = value
            result.line = bisect.bisect_left(self._breaks, start[1]) + 1
            return result

        value, end = json.decoder.JSONObject(start, strict, scan_once, None, build, memo)  # type: ignore[attr-defined]
        return value, end

    def _refuse(self, name: str) -> Any:
        raise json.JSONDecodeError(f"{name} is no JSON number", self._text, self._text.find(name))
