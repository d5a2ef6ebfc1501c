"""Packets to take a single message, and to withdraw such a read."""

from __future__ import annotations

from tidegate.core.model import Order
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request, Success
from tidegate.wire.packets.run import Run


class ReadMessageResponse(Answer):
    """The message, under a lease if one was asked for."""

    method = 0x34
    run: Run


class ReadMessage(Request):
    """Take one message, at once or when one arrives within `wait_ms`.

    With `lease_ms` it must be acknowledged (as consumer 0). Without, the node considers it
    acknowledged when it sends it.
    """

    method = 0x33
    answer = ReadMessageResponse
    right = Right.READ
    queue_id: int
    order: Order = Order.OLDEST
    sender: int | None = None
    wait_ms: int = 0
    lease_ms: int | None = None


class ReadResponseResponse(Answer):
    """The reply."""

    method = 0x36
    run: Run


class ReadResponse(Request):
    """Take the reply to a request of this client, by its context."""

    method = 0x35
    answer = ReadResponseResponse
    right = Right.READ
    queue_id: int
    context: int
    wait_ms: int = 0
    lease_ms: int | None = None


class Withdraw(Request):
    """End a waiting read, which is then answered with an error."""

    method = 0x39
    answer = Success
    right = Right.READ
    queue_id: int
    read_packet_id: int
