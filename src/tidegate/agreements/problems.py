"""The problems of a document: each with file, line, key, value, reason and remedy.

    orders.toml:12: metrics.throughput.warning = 90: must lie above the breaching point …; write …

An imported document goes through the same checks, with the lines of the original document. The
author of an XML file therefore sees lines of the XML file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.agreement.lines import Key, line_of
from tidegate.agreement.metrics import Unit
from tidegate.core.complaint import meant, shown
from tidegate.core.errors import InvalidValue
from tidegate.core.harmless import harmless
from tidegate.core.quantities import DURATION_IS, SIZE_IS, parse_duration_s, parse_size_bytes

_UNIT_IS = {
    Unit.SECONDS: DURATION_IS,
    Unit.BYTES: SIZE_IS,
    Unit.PER_SECOND: "a number per second",
    Unit.FRACTION: "a fraction below 1, such as 0.999",
}


@dataclass(frozen=True)
class Complaint:
    """One problem in a document, or one value that another format cannot express."""

    file: str
    line: int | None
    key: str
    reason: str
    # The value as written; None if there was none.
    value: str | None = None
    # The replacement to suggest; empty if the reason already contains it.
    instead: str = ""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        what = self.key if self.value is None else f"{self.key} = {self.value}"
        remedy = f"; write {self.instead}" if self.instead else ""
        told = ": ".join(part for part in (where, what, f"{self.reason}{remedy}") if part)
        # The text comes from the document. Escape it, so that it cannot control the terminal.
        return harmless(told)


class Complaints:
    """The problems of one document, and the checks that all keys share."""

    def __init__(self, lines: Mapping[Key, int], source: str) -> None:
        self._source = source
        self._lines = lines
        self.all: list[Complaint] = []

    def add(self, key: Key, what: str, value: Any = None, instead: str = "") -> None:
        self.all.append(
            Complaint(
                file=self._source,
                line=line_of(self._lines, key),
                key=".".join(key),
                reason=what,
                value=None if value is None else shown(value),
                instead=instead,
            )
        )

    def refuse_unknown(self, key: Key, table: Iterable[str], known: Iterable[str]) -> None:
        names = list(known)
        for word in table:
            if word not in names:
                self.add((*key, word), f"there is no such key{meant(word, names)}")

    def measure(self, key: Key, unit: Unit, value: Any, otherwise: str = "") -> float | None:
        """Return a positive value in its unit; report a problem and return None otherwise.

        `otherwise` is appended to the reason.
        """
        try:
            number = _in_unit(unit, value)
        except (InvalidValue, OverflowError, ValueError):
            # ValueError includes an integer with more digits than Python converts.
            number = None
        if number is not None and 0.0 < number < (1.0 if unit is Unit.FRACTION else math.inf):
            return number
        self.add(key, f"must be {_UNIT_IS[unit]}, above 0{otherwise}", value)
        return None

    def number(self, key: Key, value: Any, what: str, *, least: float = 0.0) -> float | None:
        """Return a finite number >= `least`; report a problem and return None otherwise."""
        try:
            if is_number(value) and least <= float(value) < math.inf:
                return float(value)
        except OverflowError:
            # The integer is too large for a float.
            pass
        self.add(key, f"must be {what}", value)
        return None

    def count(self, key: Key, value: Any, *, least: int, most: int) -> int | None:
        """Return a whole number within bounds; report a problem and return None otherwise."""
        if isinstance(value, int) and is_number(value) and least <= value <= most:
            return value
        self.add(key, f"must be a whole number from {least} to {most}", value)
        return None

    def text(self, key: Key, value: Any) -> str | None:
        """Return a text that is not blank; report a problem and return None otherwise."""
        if isinstance(value, str) and value.strip():
            return value
        self.add(key, "must be a text that is not empty", value)
        return None


def is_number(value: Any) -> bool:
    """Return whether a value is an int or float; a bool is not a number here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_unit(unit: Unit, value: Any) -> float | None:
    if unit is Unit.SECONDS:
        return parse_duration_s(value) if isinstance(value, str) else None
    if unit is Unit.BYTES:
        is_size = isinstance(value, str) or (is_number(value) and isinstance(value, int))
        return float(parse_size_bytes(value)) if is_size else None
    return float(value) if is_number(value) else None
