"""Packets about the number of messages that a consumer may hold."""

from __future__ import annotations

from tidegate.core.model import Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Push, Request, Success


class SetPrefetch(Request):
    """Change how many messages this consumer may hold; 0 stops deliveries."""

    method = 0x4B
    answer = Success
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int


class SetConsumerPrefetch(Request):
    """Set the prefetch of any client's consumer; needs admin mode."""

    method = 0x63
    answer = Success
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    client_id: int
    consumer: int
    prefetch: int
    # Part of an experiment, which ends with this connection or with a prefetch of 0. A consumer has
    # at most one experiment at a time.
    trial: bool = False


class PrefetchChanged(Push):
    """An administrator or a control loop has changed this consumer's prefetch."""

    method = 0x52
    consumer: int
    prefetch: int
    # False during an experiment: a client that subscribes again then uses its own former value.
    lasting: bool = True
