"""Durations, sizes and rates as text: `250ms`, `5m`; `512MiB`, `16MB`, `1k`; `400/s`.

A duration needs a unit, since a bare number is ambiguous. A bare size is in bytes. `k`, `M` and `G`
are powers of 1000; `Ki`, `Mi` and `Gi` are powers of 1024; a `B` may follow.
"""

from __future__ import annotations

import math
import re

from tidegate.core.errors import InvalidValue

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}
_NUMBER_AND_UNIT = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zµ]*)\s*", re.IGNORECASE)
RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h)\s*")
# The most characters of a value that an error shows.
_SHOWN_MAX = 200

DURATION_IS = "a duration: a number and one of us, ms, s, m, h, d, such as 250ms or 30s"
SIZE_IS = "a size: a number and one of B, kB, MB, GB, KiB, MiB, GiB, such as 16MiB"

RATE_IS = "a rate such as 400/s or 90/m"


def parse_duration_s(text: str) -> float:
    """Return the seconds of a duration such as `250ms` or `5m`."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    # Case matters: 5M could mean minutes, months or a typing error, so it is rejected.
    scale = _SECONDS.get(match["unit"]) if match else None
    if match is None or scale is None or not _is_finite(match["number"], scale):
        raise InvalidValue(f"{text[:_SHOWN_MAX]!r} is not {DURATION_IS}")
    return float(match["number"]) * scale


def parse_size_bytes(text: str | int) -> int:
    """Return the bytes of a size such as `512MiB` or `16MB`."""
    match = _NUMBER_AND_UNIT.fullmatch(str(text))
    scale = _BYTES.get(match["unit"].lower().removesuffix("b")) if match else None
    if match is None or scale is None or not _is_finite(match["number"], scale):
        raise InvalidValue(f"{str(text)[:_SHOWN_MAX]!r} is not {SIZE_IS}")
    size_bytes = float(match["number"]) * scale
    if size_bytes != int(size_bytes):
        raise InvalidValue(f"{text!r} is not a whole number of bytes")
    # Compute whole numbers with integers, since a float holds only 53 bits.
    return int(match["number"]) * scale if match["number"].isdigit() else int(size_bytes)


def parse_rate_per_s(text: str) -> float:
    """Return the messages per second of a rate such as `400/s` or `90/m`."""
    match = RATE.fullmatch(text)
    if match is None or not _is_finite(match[1]):
        raise InvalidValue(f"{text[:_SHOWN_MAX]!r} is not {RATE_IS}")
    return float(match[1]) / _SECONDS[match[2]]


def _is_finite(number: str, scale: float = 1.0) -> bool:
    """Return whether the value is finite; a number of hundreds of digits becomes infinite."""
    return math.isfinite(float(number) * scale)


def format_duration(duration_s: float) -> str:
    """Return a duration in its largest fitting unit: `250ms`, `1.5h`."""
    for unit in ("d", "h", "m", "s", "ms"):
        if duration_s >= _SECONDS[unit]:
            return f"{duration_s / _SECONDS[unit]:.4g}{unit}"
    return f"{duration_s / 1e-6:.4g}us" if duration_s else "0s"


def spoken_duration(duration_s: float) -> str:
    """Return a duration for people, to the second: `17 s`, `1 min 17 s`, `2 h`, `3 d 4 h`."""
    left = max(int(duration_s), 0)
    parts = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        parts.append((count, unit))
    first = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    # Show the two largest units only, since smaller ones do not matter then.
    said = [f"{count} {unit}" for count, unit in parts[first : first + 2] if count]
    return " ".join(said) or "0 s"


def format_size(size_bytes: int) -> str:
    """Return a size in its largest fitting unit of 1024: `512MiB`, `1.5KiB`."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        scale = _BYTES[unit.lower()]
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g}{unit}B"
    return f"{size_bytes}B"
