"""The line number of each key in a TOML text.

`tomllib` does not report lines, and problems need them. The text is already known to be valid TOML.
Therefore it suffices to find headers and keys at the start of a line. A key inside an inline table
has the line of the key that holds the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidegate.agreements import Metric, Unit
from tidegate.core.errors import InvalidValue
from tidegate.core.text import (
    DURATION_IS,
    SIZE_IS,
    escape_control_characters,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
    redacted_value,
    suggestion_for,
)

if TYPE_CHECKING:
    from tidegate.agreements.document import Resources


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


# The problems of a document: each with file, line, key, value, reason and remedy.
#
#     orders.toml:12: metrics.throughput.warning = 90: must lie above the breaching point …; write …
#
# An imported document goes through the same checks, with the lines of the original document. The
# author of an XML file therefore sees lines of the XML file.


_UNIT_IS = {
    Unit.SECONDS: DURATION_IS,
    Unit.BYTES: SIZE_IS,
    Unit.PER_SECOND: "a number per second",
    Unit.FRACTION: "a fraction below 1, such as 0.999",
}


@dataclass(frozen=True)
class DocumentProblem:
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
        return escape_control_characters(told)


class DocumentProblems:
    """The problems of one document, and the checks that all keys share."""

    def __init__(self, lines: Mapping[Key, int], source: str) -> None:
        self._source = source
        self._lines = lines
        self.all: list[DocumentProblem] = []

    def add(self, key: Key, what: str, value: Any = None, instead: str = "") -> None:
        self.all.append(
            DocumentProblem(
                file=self._source,
                line=line_of(self._lines, key),
                key=".".join(key),
                reason=what,
                value=None if value is None else redacted_value(value),
                instead=instead,
            )
        )

    def refuse_unknown(self, key: Key, table: Iterable[str], known: Iterable[str]) -> None:
        names = list(known)
        for word in table:
            if word not in names:
                self.add((*key, word), f"there is no such key{suggestion_for(word, names)}")

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


# Promises that contradict each other, or leave no time to keep them.
#
#     margin > slope · reconfiguration time
#
# Otherwise the breach comes before the reconfiguration that the warning starts has any effect.
# Example from TAPAS: a response time of 6 s, a warning at 4.8 s, and 1 s to reconfigure. In that
# second the response time can grow by 1 s, because a wait grows no faster than time passes. A
# duration therefore has a slope of 1 unless the document gives a smaller one. For other metrics the
# check needs a slope in the document.


# Seconds by which a waiting or response time can grow in one second.
TIME_SLOPE = 1.0
# A response contains wait and service, so it is never shorter than either.
_PARTS = {"response": ("wait", "service")}


def refuse_contradictions(
    metrics: Sequence[Metric], resources: Resources, complaints: DocumentProblems
) -> None:
    """Report every contradiction between the promises and the resources of a document."""
    for metric in metrics:
        for other in metrics:
            _refuse_crossing(metric, other, complaints)
        _refuse_haste(metric, resources.reconfiguration_s, complaints)


def slope_per_s(metric: Metric) -> float | None:
    """Return the fastest worsening of a metric per second; None if it is unknown."""
    if metric.slope_per_s is not None:
        return metric.slope_per_s
    return TIME_SLOPE if metric.unit is Unit.SECONDS else None


def margin_needed(metric: Metric, reconfiguration_s: float | None) -> float | None:
    """Return the margin that a timely warning must exceed; None if it is unknown."""
    slope = slope_per_s(metric)
    return None if slope is None or reconfiguration_s is None else slope * reconfiguration_s


def _refuse_crossing(metric: Metric, other: Metric, complaints: DocumentProblems) -> None:
    """Report a breaching point above that of a percentile which is never smaller.

    A lower percentile is never longer than a higher one. A part is never longer than its whole.
    """
    lower, higher = metric.percentile, other.percentile
    if lower is None or higher is None or metric.breach <= other.breach:
        return
    is_part = metric.stem in _PARTS.get(other.stem, ())
    if (metric.stem == other.stem and lower < higher) or (is_part and lower <= higher):
        complaints.add(
            ("metrics", metric.name, "breach"),
            f"is longer than that of {other.name}, but {metric.name} is never longer than "
            f"{other.name}: lower it, or leave it out",
        )


def _refuse_haste(
    metric: Metric, reconfiguration_s: float | None, complaints: DocumentProblems
) -> None:
    needed = margin_needed(metric, reconfiguration_s)
    if needed is None or reconfiguration_s is None:
        return
    # A learned margin may grow up to `room`.
    room = metric.room if metric.learned else metric.margin
    if room > needed:
        return
    slope = format_quantity(metric.unit, slope_per_s(metric) or 0.0)
    took = format_quantity(Unit.SECONDS, reconfiguration_s)
    said = " (nobody has said a slope: a time grows by 1 s in a second at most)"
    complaints.add(
        ("metrics", metric.name, "breach" if metric.learned else "warning"),
        f"leaves too little time: in the {took} that a reconfiguration takes it can get worse by "
        f"{format_quantity(metric.unit, needed)}, at {slope} a second"
        f"{said if metric.slope_per_s is None else ''}, and the margin is "
        f"{format_quantity(metric.unit, room)}: widen the margin, lower the slope or "
        f"reconfigure faster",
    )


# Quantities as text: rounded for sentences, and exact for documents.
#
# 4.8 s → "4.8s"      600 s → "10m"      536870912 bytes → "512MiB"      0.999 → 0.999


# In order of preference. Seconds are the fallback, in `format_exact_duration`.
_DURATIONS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_SIZES = {
    "GiB": 2**30,
    "MiB": 2**20,
    "KiB": 2**10,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
# A longer number is easier to read in a smaller unit.
_LETTERS_MAX = 6


def format_quantity(unit: Unit, value: float) -> str:
    """Return a quantity, rounded, for a sentence."""
    if math.isinf(value):
        return "without an end"
    match unit:
        case Unit.SECONDS:
            return format_duration(value)
        case Unit.BYTES:
            return format_size(int(value))
        case Unit.PER_SECOND:
            return f"{value:.4g}/s"
        case Unit.FRACTION:
            return f"{value:.6g}"


def format_exact_duration(duration_s: float) -> str:
    """Return a duration as text that parses to exactly the same number of seconds."""
    for unit, scale in _DURATIONS.items():
        number = format_plain_number(duration_s / scale)
        if duration_s >= scale and len(number) <= _LETTERS_MAX:
            word = f"{number}{unit}"
            if parse_duration_s(word) == duration_s:
                return word
    return f"{format_plain_number(duration_s)}s"


def format_exact_size(size_bytes: float) -> str:
    """Return a size as text that parses to exactly the same number of bytes."""
    whole = int(size_bytes)
    words = [f"{whole // scale}{unit}" for unit, scale in _SIZES.items() if whole % scale == 0]
    return min([word for word in words if parse_size_bytes(word) == whole], key=len)


def format_plain_number(value: float) -> str:
    """Return a number without an exponent and without trailing zeros."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
