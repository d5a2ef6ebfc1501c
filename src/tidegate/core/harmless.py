"""Texts that others wrote, made safe to show: names and errors must not steer what shows them."""

from __future__ import annotations

import re

# Control characters of both sets, ends of lines, what turns the direction of writing, and halves
# of characters, which have no bytes.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def harmless(text: str) -> str:
    """The text with whatever would steer a terminal or a page written out as an escape."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
