"""Numbers as text: `12,345`, `1.2 ms`, `3.4 s`, `128 MiB`."""

from __future__ import annotations

from tidegate.core.quantities import format_size

_SPARKS = "▁▂▃▄▅▆▇█"


def count(number: float) -> str:
    """Return a whole number with thousands separators."""
    return f"{number:,.0f}"


def milliseconds(duration_ms: float) -> str:
    """Return a duration with three significant digits."""
    if duration_ms >= 1000:
        return seconds(duration_ms / 1e3)
    if duration_ms >= 100:
        return f"{duration_ms:.0f} ms"
    return f"{duration_ms:.1f} ms" if duration_ms >= 10 else f"{duration_ms:.2f} ms"


def seconds(duration_s: float) -> str:
    """Return a duration as text in seconds, minutes, hours or days."""
    if duration_s < 100:
        return f"{duration_s:.1f} s"
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration_s >= 2 * length_s:
            return f"{duration_s / length_s:.1f} {unit}"
    return f"{duration_s:.0f} s"


def size(size_bytes: int) -> str:
    """Return a size in units of 1024."""
    return format_size(size_bytes)


def yes_no(value: bool) -> str:
    """Return "yes" or "no"."""
    return "yes" if value else "no"


def sparkline(values: list[float], width: int) -> str:
    """Return the last values as bars one character wide, scaled to the largest of them."""
    shown = values[-width:]
    highest = max(shown, default=0.0)
    if highest <= 0:
        return (_SPARKS[0] * len(shown)).rjust(width)
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[round(max(one, 0.0) / highest * steps)] for one in shown).rjust(width)
