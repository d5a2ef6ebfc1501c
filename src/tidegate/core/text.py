"""Durations, sizes and rates as text: `250ms`, `5m`; `512MiB`, `16MB`, `1k`; `400/s`.

A duration needs a unit, since a bare number is ambiguous. A bare size is in bytes. `k`, `M` and `G`
are powers of 1000; `Ki`, `Mi` and `Gi` are powers of 1024; a `B` may follow.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Iterable
from types import NoneType
from typing import Any, TypeAlias, get_args

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


def format_duration_long(duration_s: float) -> str:
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


# Parts of error messages about values that users wrote: the value, and suggestions.

_SEARCHED_MAX = 10 * _SHOWN_MAX


def suggestion_for(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f", did you mean {close[0]}?"
    return "; there are " + ", ".join(names)


def expected_type(kind: Any) -> str:
    """Return in words which values a field of this type accepts."""
    kinds = [one for one in get_args(kind) or (kind,) if one is not NoneType]
    words = [_ALLOWED.get(one) or _one_of(one) for one in kinds]
    if NoneType in get_args(kind):
        words.append("none")
    return " or ".join(words)


_ALLOWED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _one_of(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(str(one.value) for one in kind)
    return f"a {getattr(kind, '__name__', kind)}"


def redacted_value(value: Any) -> str:
    """Return a value for an error message, without secrets and shortened if it is long."""
    try:
        # Shorten the text first, since searching a long text for secrets takes long.
        text = redact_secrets(repr(value)[:_SEARCHED_MAX])
    except (ValueError, RecursionError):
        # Python refuses to write numbers of thousands of digits and very deeply nested values.
        return "(too long to show)"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


# Control characters, line separators, characters that change the writing direction, lone surrogates
# and noncharacters.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def escape_control_characters(text: str) -> str:
    """Return the text with all characters that control a terminal or page replaced by escapes."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# Match up to the last @ before a slash or space, since a password may contain an unescaped @.
_URL_PASSWORD = re.compile(r"(?P<start>\b[a-z][a-z0-9+.-]*://[^\s:/@?#]*):[^\s/]*@", re.IGNORECASE)
_NAMED_SECRET = re.compile(r"\b(?P<name>password|passwd|secret|token)=(?:'[^']*'|[^\s&,;]+)", re.I)


def redact_secrets(text: str) -> str:
    """Return the text with every URL password and every `password=…` replaced by stars."""
    return _NAMED_SECRET.sub(r"\g<name>=***", _URL_PASSWORD.sub(r"\g<start>:***@", text))


# The operand type of laws in plain arithmetic: a number, a numpy array, or a Spark Column.
#
# These types have + − × ÷, comparisons, and `&` between comparisons in common, and nothing else.
# Laws that use `Term` therefore contain no `max` and no `if`. The type is `Any`, since a result has
# the type of the operands. No type can express that without importing numpy and Spark.


Term: TypeAlias = Any


# Numbers as text: `12,345`, `1.2 ms`, `3.4 s`, `128 MiB`.


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
