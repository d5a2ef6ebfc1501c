"""Sessions of an instance that drains: theirs until a time, then elected anew as if it were gone.

HAProxy knows no such time. It is looked at before every order, and four times a second in between.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidegate.core.hosting import Backend


def within_grace(backends: Iterable[Backend], now_s: float) -> list[Backend]:
    """The same; who drains has its `sessions_until` only while that lies ahead."""
    return [
        msgspec.structs.replace(one, sessions_until=None)
        if one.sessions_until is not None and one.sessions_until <= now_s
        else one
        for one in backends
    ]
