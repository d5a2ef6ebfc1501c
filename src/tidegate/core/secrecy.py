"""Removal of passwords from texts: one rule for log lines, errors and lock files."""

from __future__ import annotations

import re

# Match up to the last @ before a slash or space, since a password may contain an unescaped @.
_URL_PASSWORD = re.compile(r"(?P<start>\b[a-z][a-z0-9+.-]*://[^\s:/@?#]*):[^\s/]*@", re.IGNORECASE)
_NAMED_SECRET = re.compile(r"\b(?P<name>password|passwd|secret|token)=(?:'[^']*'|[^\s&,;]+)", re.I)


def without_secrets(text: str) -> str:
    """Return the text with every URL password and every `password=…` replaced by stars."""
    return _NAMED_SECRET.sub(r"\g<name>=***", _URL_PASSWORD.sub(r"\g<start>:***@", text))
