"""Packets about how many messages a consumer may hold."""

from __future__ import annotations

from tidegate.core.model import Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Push, Request, Success


class SetPrefetch(Request):
    """Change how many messages this consumer may hold; 0: give it no more."""

    method = 0x4B
    answer = Success
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int


class SetConsumerPrefetch(Request):
    """As admin: set the prefetch of anyone's consumer."""

    method = 0x63
    answer = Success
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    client_id: int
    consumer: int
    prefetch: int
    # For as long as this connection lasts, or until it says 0; one trial at a time.
    trial: bool = False


class PrefetchChanged(Push):
    """An admin, or a loop, has set this consumer's prefetch."""

    method = 0x52
    consumer: int
    prefetch: int
    # Otherwise it is part of a trial: whoever subscribes again asks for what it had asked for.
    lasting: bool = True
