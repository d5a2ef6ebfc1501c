"""In which line of a TOML text each key stands.

The standard library's parser does not tell, and people look for a line. The text is known to be
TOML when it comes here, so headers and the keys at the start of lines are enough; what stands
inside an inline table is found at the line of its key.
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
    """The line, from 1, of every table and key; that of the first one if a key comes twice."""
    lines: dict[Key, int] = {}
    table: Key = ()
    quote: str | None = None
    # Lines as TOML and editors count them; Python would also end one at a form feed.
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
            # Three quotes inside a string of the other kind open nothing.
            quote = next((q for q in _QUOTES if value.startswith(q) and value.count(q) % 2), None)
    return lines


def line_of(lines: Mapping[Key, int], path: Key) -> int | None:
    """Where a key stands, or else the table that it is in."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def _note(lines: dict[Key, int], path: Key, number: int) -> None:
    # `metrics.wait_p99.breach = …` mentions the tables above it as well.
    for depth in range(1, len(path) + 1):
        lines.setdefault(path[:depth], number)


def _parts(dotted: str) -> Key:
    return tuple(part.strip("\"'") for part in _ONE_PART.findall(dotted))
