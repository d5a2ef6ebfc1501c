"""What is wrong with a document: each complaint with file, line, key, value and reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tidegate.agreement.lines import Key, line_of, lines_of_keys
from tidegate.agreement.metrics import Unit
from tidegate.core.complaint import meant, shown
from tidegate.core.errors import InvalidValue
from tidegate.core.quantities import DURATION_IS, SIZE_IS, parse_duration_s, parse_size_bytes

_UNIT_IS = {
    Unit.SECONDS: DURATION_IS,
    Unit.BYTES: SIZE_IS,
    Unit.PER_SECOND: "a number per second",
    Unit.FRACTION: "a fraction below 1, such as 0.999",
}


class Complaints:
    """The complaints about one document, and the checks that every key needs."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines = lines_of_keys(text)
        self.all: list[str] = []

    def add(self, key: Key, what: str, value: Any = None) -> None:
        line = line_of(self._lines, key)
        where = self._source if line is None else f"{self._source}:{line}"
        said = "" if value is None else f" = {shown(value)}"
        self.all.append(f"{where}: {'.'.join(key)}{said}: {what}")

    def refuse_unknown(self, key: Key, table: Iterable[str], known: Iterable[str]) -> None:
        names = list(known)
        for word in table:
            if word not in names:
                self.add((*key, word), f"there is no such key{meant(word, names)}")

    def measure(self, key: Key, unit: Unit, value: Any, otherwise: str = "") -> float | None:
        """A value in its unit, above zero; None, and a complaint, if it is none."""
        try:
            number = _in_unit(unit, value)
        except InvalidValue:
            number = None
        if number is not None and 0.0 < number < (1.0 if unit is Unit.FRACTION else math.inf):
            return number
        self.add(key, f"must be {_UNIT_IS[unit]}, above 0{otherwise}", value)
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
