"""The line number of each key in a TOML text.

`tomllib` does not report lines, and problems need them. The text is already known to be valid TOML.
Therefore it suffices to find headers and keys at the start of a line. A key inside an inline table
has the line of the key that holds the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Key = tuple[str, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*(?P<path>{_DOTTED})\s*\]\]?\s*(?:\#.*)?")
_ENTRY = re.compile(rf"\s*(?P<path>{_DOTTED})\s*=(?P<value>.*)")
_ONE_PART = re.compile(_PART)
_QUOTES = ('"""', "'''")


def lines_of_keys(text: str) -> dict[Key, int]:
    """Return the line, from 1, of every table and key; the first one if a key occurs twice."""
    lines: dict[Key, int] = {}
    table: Key = ()
    quote: str | None = None
    # TOML and editors end a line only at a line feed; str.splitlines() also splits at a form feed.
    for number, line in enumerate(text.split("\n"), start=1):
        if quote is not None:
            quote = None if quote in line else quote
            continue
        if header := _HEADER.fullmatch(line):
            table = _parts(header["path"])
            _note(lines, table, number)
        elif key := _ENTRY.match(line):
            _note(lines, table + _parts(key["path"]), number)
            value = key["value"].lstrip()
            # Three quotes inside a string of the other quote type do not open a multi-line string.
            quote = next((q for q in _QUOTES if value.startswith(q) and value.count(q) % 2), None)
    return lines


def line_of(lines: Mapping[Key, int], path: Key) -> int | None:
    """Return the line of a key, or else of the nearest table around it; None if there is none."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def _note(lines: dict[Key, int], path: Key, number: int) -> None:
    # `metrics.wait_p99.breach = …` also defines the tables above it.
    for depth in range(1, len(path) + 1):
        lines.setdefault(path[:depth], number)


def _parts(dotted: str) -> Key:
    return tuple(part.strip("\"'") for part in _ONE_PART.findall(dotted))
