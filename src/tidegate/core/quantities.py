"""Durations and sizes as people write them: `250ms`, `30s`, `5m`; `512MiB`, `16MB`, `1k`.

A duration always has its unit, since a bare number does not say which. A bare size is bytes; `k`,
`M` and `G` count in thousands, `Ki`, `Mi` and `Gi` in 1024s, with or without a `B`.
"""

from __future__ import annotations

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

DURATION_IS = "a duration: a number and one of us, ms, s, m, h, d, such as 250ms or 30s"
SIZE_IS = "a size: a number and one of B, kB, MB, GB, KiB, MiB, GiB, such as 16MiB"


def parse_duration_s(text: str) -> float:
    """The seconds that a duration such as `250ms` or `5m` stands for."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    # Case counts here: 5M could be minutes or months or a typing error, so it is none of them.
    scale = _SECONDS.get(match["unit"]) if match else None
    if match is None or scale is None:
        raise InvalidValue(f"{text!r} is not {DURATION_IS}")
    return float(match["number"]) * scale


def parse_size_bytes(text: str | int) -> int:
    """The bytes that a size such as `512MiB` or `16MB` stands for."""
    match = _NUMBER_AND_UNIT.fullmatch(str(text))
    scale = _BYTES.get(match["unit"].lower().removesuffix("b")) if match else None
    if match is None or scale is None:
        raise InvalidValue(f"{text!r} is not {SIZE_IS}")
    size_bytes = float(match["number"]) * scale
    if size_bytes != int(size_bytes):
        raise InvalidValue(f"{text!r} is not a whole number of bytes")
    # Whole numbers stay exact however large: a float holds only 53 bits.
    return int(match["number"]) * scale if match["number"].isdigit() else int(size_bytes)


def format_duration(duration_s: float) -> str:
    """A duration in its largest fitting unit: `250ms`, `1.5h`."""
    for unit in ("d", "h", "m", "s", "ms"):
        if duration_s >= _SECONDS[unit]:
            return f"{duration_s / _SECONDS[unit]:.4g}{unit}"
    return f"{duration_s / 1e-6:.4g}us" if duration_s else "0s"


def format_size(size_bytes: int) -> str:
    """A size in its largest fitting unit of 1024: `512MiB`, `1.5KiB`."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        scale = _BYTES[unit.lower()]
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g}{unit}B"
    return f"{size_bytes}B"
