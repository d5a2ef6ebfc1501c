"""Parts of error messages about values that users wrote: the value, and suggestions."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args

from tidegate.core.secrecy import without_secrets

# How many characters of a value are shown, and how many are searched for secrets.
_SHOWN_MAX = 200
_SEARCHED_MAX = 10 * _SHOWN_MAX


def meant(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f", did you mean {close[0]}?"
    return "; there are " + ", ".join(names)


def allowed(kind: Any) -> str:
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


def shown(value: Any) -> str:
    """Return a value for an error message, without secrets and shortened if it is long."""
    try:
        # Shorten the text first, since searching a long text for secrets takes long.
        text = without_secrets(repr(value)[:_SEARCHED_MAX])
    except (ValueError, RecursionError):
        # Python refuses to write numbers of thousands of digits and very deeply nested values.
        return "(too long to show)"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
