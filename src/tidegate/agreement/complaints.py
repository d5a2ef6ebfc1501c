"""What is wrong with a document: each complaint with file, line, key, value, reason and remedy.

    orders.toml:12: metrics.throughput.warning = 90: must lie above the breaching point …; write …

A document that was imported is read by the same checks, with the lines of what it was imported
from: whoever wrote XML hears of a line of XML.
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
    """One thing that is wrong, or that another format cannot say."""

    file: str
    line: int | None
    key: str
    reason: str
    # As it was written; None when nothing was.
    value: str | None = None
    # What to write; empty where the reason says it already.
    instead: str = ""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        what = self.key if self.value is None else f"{self.key} = {self.value}"
        remedy = f"; write {self.instead}" if self.instead else ""
        told = ": ".join(part for part in (where, what, f"{self.reason}{remedy}") if part)
        # Keys are others' words, and must not steer the terminal that shows them.
        return harmless(told)


class Complaints:
    """The complaints about one document, and the checks that every key needs."""

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
        """A value in its unit, above zero; None, and a complaint, if it is none."""
        try:
            number = _in_unit(unit, value)
        except (InvalidValue, OverflowError, ValueError):
            # Also a whole number of more digits than Python writes out.
            number = None
        if number is not None and 0.0 < number < (1.0 if unit is Unit.FRACTION else math.inf):
            return number
        self.add(key, f"must be {_UNIT_IS[unit]}, above 0{otherwise}", value)
        return None

    def number(self, key: Key, value: Any, what: str, *, least: float = 0.0) -> float | None:
        """A finite number from `least` on; None, and a complaint, if it is none."""
        try:
            if is_number(value) and least <= float(value) < math.inf:
                return float(value)
        except OverflowError:
            # A whole number beyond all that are measured.
            pass
        self.add(key, f"must be {what}", value)
        return None

    def count(self, key: Key, value: Any, *, least: int, most: int) -> int | None:
        """A whole number within bounds; None, and a complaint, if it is none."""
        if isinstance(value, int) and is_number(value) and least <= value <= most:
            return value
        self.add(key, f"must be a whole number from {least} to {most}", value)
        return None

    def text(self, key: Key, value: Any) -> str | None:
        """A text that says something; None, and a complaint, if it is none."""
        if isinstance(value, str) and value.strip():
            return value
        self.add(key, "must be a text that is not empty", value)
        return None


def is_number(value: Any) -> bool:
    """TOML's true is a Python number, and no number to people."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_unit(unit: Unit, value: Any) -> float | None:
    if unit is Unit.SECONDS:
        return parse_duration_s(value) if isinstance(value, str) else None
    if unit is Unit.BYTES:
        is_size = isinstance(value, str) or (is_number(value) and isinstance(value, int))
        return float(parse_size_bytes(value)) if is_size else None
    return float(value) if is_number(value) else None
