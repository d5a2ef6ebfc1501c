"""Packets of subscriptions: registration, deliveries, and the end."""

from __future__ import annotations

from tidegate.core.model import Order
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Push, Request, Success
from tidegate.wire.packets.run import Run


class SubscribeResponse(Answer):
    """The consumer is registered; deliveries will follow."""

    method = 0x42
    lease_ms: int


class Subscribe(Request):
    """Register a consumer: the node pushes messages, at most `prefetch` of them unacknowledged."""

    method = 0x41
    answer = SubscribeResponse
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int
    order: Order = Order.PRIORITY
    automatic: bool = False
    # Only messages addressed to this client, which then does not count as a consumer of the queue.
    mine_only: bool = False


class Unsubscribe(Request):
    """Unregister a consumer; its unacknowledged messages return to the queue."""

    method = 0x43
    answer = Success
    right = Right.READ
    queue_id: int
    consumer: int


class Deliver(Push):
    """Messages for a consumer; payloads in the body."""

    method = 0x4E
    consumer: int
    runs: list[Run]


class ConsumerEnded(Push):
    """The consumer has ended, since the queue was deleted or moved to another node."""

    method = 0x50
    consumer: int
    code: int
    text: str
