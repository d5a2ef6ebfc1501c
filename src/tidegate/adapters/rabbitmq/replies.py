"""Requests and their replies by RabbitMQ's direct reply-to.

A request is published on the channel that consumes from `amq.rabbitmq.reply-to`, with that name as
its reply address. RabbitMQ replaces it by an address of this channel. The reply goes to the default
exchange under that address, and needs no queue and no permission.

A requester that loses its connection gets no reply, and NoReply at its timeout. A request without a
confirm is published again.
"""

from __future__ import annotations

import asyncio
import secrets

from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.adapters.rabbitmq.answers import DIRECT
from tidegate.adapters.rabbitmq.failures import telling
from tidegate.adapters.rabbitmq.lifeline import Lifeline, Patience
from tidegate.adapters.rabbitmq.properties import Properties, resent
from tidegate.core.errors import NoReply, Unavailable


class Replies:
    """The requests of one client that wait for a reply."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[DeliveredMessage]] = {}

    async def ask(
        self, queue: str, payload: bytes, properties: Properties, timeout_s: float
    ) -> DeliveredMessage:
        correlation_id = str(secrets.randbits(62))
        properties.reply_to = DIRECT
        properties.correlation_id = correlation_id
        reply: asyncio.Future[DeliveredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self._publish(queue, payload, properties)
                return await reply
        except TimeoutError:
            why = f": {self._lifeline.blocked()}" if self._lifeline.is_blocked else ""
            raise NoReply(f"no reply from queue {queue!r} within {timeout_s:g} s{why}") from None
        finally:
            del self._waiting[correlation_id]

    async def _publish(self, queue: str, payload: bytes, properties: Properties) -> None:
        """Publish a request until it is confirmed; the caller's timeout ends the attempts."""
        patience = Patience(self._lifeline)
        is_perhaps_stored = False
        while True:
            try:
                channel = await self._open_channel(patience)
                with telling(f"queue {queue!r}"):
                    if is_perhaps_stored:
                        properties = resent(properties)
                    is_perhaps_stored = True
                    async with self._lifeline.unless_blocked(patience):
                        await channel.basic_publish(
                            payload, routing_key=queue, properties=properties, mandatory=True
                        )
                return
            except Unavailable as lost:
                await patience.wait(lost)

    async def _open_channel(self, patience: Patience) -> AbstractChannel:
        async with self._opening:
            await self._lifeline.unblocked(patience)
            if self._channel is None or self._channel.is_closed:
                channel = await self._lifeline.channel(confirms=True)
                with telling("replies"):
                    await channel.basic_consume(DIRECT, self._replied, no_ack=True)
                self._channel = channel
            return self._channel

    async def _replied(self, delivered: DeliveredMessage) -> None:
        waiting = self._waiting.get(delivered.header.properties.correlation_id or "")
        if waiting is not None and not waiting.done():
            waiting.set_result(delivered)
