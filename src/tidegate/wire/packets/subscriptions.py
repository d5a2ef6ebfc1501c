"""Packets to have messages pushed: the subscription, its deliveries, its end."""

from __future__ import annotations

from tidegate.core.model import Order
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Push, Request, Success
from tidegate.wire.packets.run import Run


class SubscribeResponse(Answer):
    """Deliveries will follow."""

    method = 0x42
    lease_ms: int


class Subscribe(Request):
    """Have messages pushed, at most `prefetch` of them unacknowledged."""

    method = 0x41
    answer = SubscribeResponse
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int
    order: Order = Order.PRIORITY
    automatic: bool = False
    # Only what is addressed to this client, who then counts as no consumer of the queue.
    mine_only: bool = False


class Unsubscribe(Request):
    """Stop; what is unacknowledged goes back."""

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
    """The subscription is over: the queue was deleted or moved to another node."""

    method = 0x50
    consumer: int
    code: int
    text: str
