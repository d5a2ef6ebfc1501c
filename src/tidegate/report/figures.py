"""Formatting of numbers: three significant digits, thousands separated, always with a unit.

The same number looks the same in a sentence, a table and a chart.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

# A narrow space at which lines do not break.
THIN = "\u202f"
NOTHING = "–"


def number(value: float | None) -> str:
    """Format a number with at least three significant digits: `0.0312`, `4.27`, `63.1`, `12 408`.

    `None`, NaN and infinity become a dash.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size == 0:
        return "0"
    decimals = 0 if size >= 99.95 else min(max(2 - math.floor(math.log10(size)), 0), 6)
    text = f"{size:,.{decimals}f}"
    if "." in text and value == int(value):
        text = text.rstrip("0").rstrip(".")
    return ("−" if value < 0 else "") + text.replace(",", THIN)


def count(value: float | None) -> str:
    """Format a whole number."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f}".replace(",", THIN).replace("-", "−")


def counted(value: int, one: str, many: str = "") -> str:
    """Format a number of things: `1 queue`, `12 queues`."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def with_unit(value: float | None, unit: str) -> str:
    """Format a number with its unit; a missing number becomes a dash without a unit."""
    text = number(value)
    return text if text == NOTHING or not unit else f"{text} {unit}"


def rate(value_per_s: float | None) -> str:
    """Format a number of messages per second."""
    return with_unit(value_per_s, "msg/s")


def percent(fraction: float | None) -> str:
    """Format a fraction of one as a percentage: `98.8 %`."""
    if fraction is None or not math.isfinite(fraction):
        return NOTHING
    size = abs(100 * fraction)
    # Rounding must not turn nearly all into 100 %, nor nearly none into 0 %.
    if 99.995 <= size < 100 and fraction > 0:
        return "over 99.99 %"
    if 0 < size < 0.005 and fraction > 0:
        return "under 0.01 %"
    decimals = 2 if 99 < size < 100 or 0 < size < 1 else 1
    text = f"{size:,.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return ("−" if fraction < 0 and text != "0" else "") + text.replace(",", THIN) + " %"


_DURATIONS = ((86400.0, "d", 2), (3600.0, "h", 2), (60.0, "min", 2), (1.0, "s", 1), (1e-3, "ms", 1))


def duration(duration_s: float | None) -> str:
    """Format a duration in a suitable unit: `312 µs`, `4.27 ms`, `1.5 s`, `3.2 h`."""
    if duration_s is None or not math.isfinite(duration_s):
        return NOTHING
    size = abs(duration_s)
    for scale, unit, at_least in _DURATIONS:
        if size >= scale * at_least:
            return with_unit(duration_s / scale, unit)
    return "0 s" if size == 0 else with_unit(duration_s / 1e-6, "µs")


def moment(at: datetime) -> str:
    """Format a time to the minute, in UTC: `16 Nov 2026, 08:00`."""
    return f"{at.astimezone(UTC):%-d %b %Y, %H:%M}"


def clock(at: datetime) -> str:
    """Format a time to the second, in UTC, with its date: `16 Nov 08:00:10`."""
    return f"{at.astimezone(UTC):%-d %b %H:%M:%S}"


def from_seconds(at_s: float) -> datetime:
    """Return the time of a number of seconds since 1970."""
    return datetime.fromtimestamp(at_s, UTC)


def sentence(words: str) -> str:
    """Add a full stop unless the text ends with a punctuation mark."""
    return words if words.endswith((".", "!", "?")) else f"{words}."
