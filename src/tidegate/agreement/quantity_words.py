"""Quantities as text: rounded for sentences, and exact for documents.

4.8 s → "4.8s"      600 s → "10m"      536870912 bytes → "512MiB"      0.999 → 0.999
"""

from __future__ import annotations

import math
from decimal import Decimal

from tidegate.agreement.metrics import Unit
from tidegate.core.quantities import (
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)

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


def worded(unit: Unit, value: float) -> str:
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


def duration_word(duration_s: float) -> str:
    """Return a duration as text that parses to exactly the same number of seconds."""
    for unit, scale in _DURATIONS.items():
        number = plain(duration_s / scale)
        if duration_s >= scale and len(number) <= _LETTERS_MAX:
            word = f"{number}{unit}"
            if parse_duration_s(word) == duration_s:
                return word
    return f"{plain(duration_s)}s"


def size_word(size_bytes: float) -> str:
    """Return a size as text that parses to exactly the same number of bytes."""
    whole = int(size_bytes)
    words = [f"{whole // scale}{unit}" for unit, scale in _SIZES.items() if whole % scale == 0]
    return min([word for word in words if parse_size_bytes(word) == whole], key=len)


def plain(value: float) -> str:
    """Return a number without an exponent and without trailing zeros."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
