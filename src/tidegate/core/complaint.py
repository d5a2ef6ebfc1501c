"""The words of a complaint about what people wrote: the value, and what they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from tidegate.core.secrecy import without_secrets


def meant(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known: the nearest one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f", did you mean {close[0]}?"
    return "; there are " + ", ".join(names)


def shown(value: Any) -> str:
    """A value as it was written, without secrets."""
    return without_secrets(repr(value))
