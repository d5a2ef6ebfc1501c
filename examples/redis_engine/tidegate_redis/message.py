"""A message of Redis as an application sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from tidegate.client.message import check_seconds
from tidegate.core.errors import InvalidValue, LeaseLost
from tidegate.core.model import PRIORITY_DEFAULT, Death
from tidegate_redis import scripts

if TYPE_CHECKING:
    from tidegate_redis.subscription import RedisSubscription


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """What is stored and sent."""

    payload: bytes
    headers: dict[str, str] = {}
    content_type: str | None = None
    context: int | None = None
    priority: int = PRIORITY_DEFAULT
    reply_to: str | None = None


class RedisMessage:
    """One delivered message."""

    def __init__(
        self,
        queue: str,
        envelope: Envelope,
        message_id: int = 0,
        *,
        delivery_count: int = 1,
        flagged: bool = False,
        deaths: list[Death] | None = None,
        subscription: RedisSubscription | None = None,
        holder: str = "",
    ) -> None:
        self.queue = queue
        self.message_id = message_id
        self.payload = envelope.payload
        self.headers = envelope.headers
        self.content_type = envelope.content_type
        self.context = envelope.context
        self.priority = envelope.priority
        self.reply_to = envelope.reply_to
        self.delivery_count = delivery_count
        self.redelivered = flagged or delivery_count > 1
        self.deaths = deaths or []
        self.holder = holder
        self._subscription = subscription

    def _held_by(self) -> RedisSubscription:
        if self._subscription is None:
            raise InvalidValue("this message is not held: it was acknowledged when it was taken")
        return self._subscription

    def ack(self) -> None:
        """Acknowledge, without waiting."""
        self._held_by().settle_soon(self, scripts.ACK)

    async def ack_confirmed(self) -> None:
        """Acknowledge, and return when Redis has it; LeaseLost if it was no longer ours."""
        await self._settled(scripts.ACK)

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """It failed: deliver it again, flagged, after `delay` or as the queue backs off."""
        if delay is not None:
            check_seconds("delay", delay, at_least=0.0)
        wait_us = -1 if delay is None else round(delay * 1e6)
        await self._settled(scripts.NACK, wait_us, error or "")

    async def reject(self, *, error: str | None = None) -> None:
        """It is hopeless: to the dead letters."""
        await self._settled(scripts.REJECT, error or "")

    async def release(self) -> None:
        """It was not begun: to somebody else at once."""
        await self._settled(scripts.RELEASE)

    async def _settled(self, script: str, *more: object) -> None:
        if not await self._held_by().settle(self, script, *more):
            raise LeaseLost(f"message {self.message_id} is no longer ours")


class RedisBatch:
    """Messages that are taken together: here one."""

    def __init__(self, message: RedisMessage) -> None:
        self._message = message
        self.payloads = [message.payload]

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[RedisMessage]:
        yield self._message

    def ack(self) -> None:
        self._message.ack()

    async def ack_confirmed(self) -> None:
        await self._message.ack_confirmed()

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        await self._message.nack(delay=delay, error=error)
