"""Foreign texts made safe to show, so that names and errors cannot control a terminal or page."""

from __future__ import annotations

import re

# Control characters, line separators, characters that change the writing direction, lone surrogates
# and noncharacters.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def harmless(text: str) -> str:
    """Return the text with all characters that control a terminal or page replaced by escapes."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
