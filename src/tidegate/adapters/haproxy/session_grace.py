"""The session grace of draining instances.

A draining instance keeps its sessions until a given time; then they go to other instances. HAProxy
has no such timer. The door checks the time before every command, and four times a second in
between.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidegate.core.hosting import Backend


def within_grace(backends: Iterable[Backend], now_s: float) -> list[Backend]:
    """Return the backends; a `sessions_until` that has passed becomes None."""
    return [
        msgspec.structs.replace(one, sessions_until=None)
        if one.sessions_until is not None and one.sessions_until <= now_s
        else one
        for one in backends
    ]
