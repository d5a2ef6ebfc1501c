"""The words of a complaint about what people wrote: the value, and what they may have meant."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args

from tidegate.core.secrecy import without_secrets

# Letters of a value that anybody reads, and of those that secrets are looked for in.
_SHOWN_MAX = 200
_SEARCHED_MAX = 10 * _SHOWN_MAX


def meant(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known: the nearest one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f", did you mean {close[0]}?"
    return "; there are " + ", ".join(names)


def allowed(kind: Any) -> str:
    """What a field of this type takes, in words: of a value that it does not take."""
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
    """A value as it was written, without secrets; of a long one the beginning."""
    try:
        # First of all shorter: to look for secrets takes longer the longer it is.
        text = without_secrets(repr(value)[:_SEARCHED_MAX])
    except (ValueError, RecursionError):
        # Python writes out no number of thousands of digits, and nothing nested so deep.
        return "(too long to show)"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
