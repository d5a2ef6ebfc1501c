"""Replies by direct reply-to, sent over a connection of their own.

The reply address comes with the request, so its sender can forge it. RabbitMQ (3.10) closes the
connection that publishes to an invalid address of this kind. Each shared connection would suffer:

- On the consuming connection, all held messages would return to their queues, the request included,
  and the same would happen again without end.
- On the publishing connection, all publishes under way would be sent twice.

So these replies use a connection that carries nothing else. If it closes, each reply under way is
sent once more, alone, on a fresh connection. A reply that closes that one too is dropped. A reply
is also dropped if the broker is gone: then the requester has lost its channel and waits no more.
"""

from __future__ import annotations

import asyncio
import logging

from tidegate.adapters.rabbitmq.address import RabbitmqAddress
from tidegate.adapters.rabbitmq.lifeline import Lifeline
from tidegate.adapters.rabbitmq.outage import Outage
from tidegate.adapters.rabbitmq.properties import Properties
from tidegate.adapters.rabbitmq.publisher import Publisher
from tidegate.core.errors import RetryLater

log = logging.getLogger(__name__)

DIRECT = "amq.rabbitmq.reply-to"


class Answers:
    """One client's replies to direct reply-to addresses."""

    def __init__(self, address: RabbitmqAddress, reconnect_s: float, outage: Outage) -> None:
        self._address = address
        self._reconnect_s = reconnect_s
        self._lifeline = Lifeline(address, reconnect_s, outage, opens_when_needed=True)
        self._publisher = Publisher(self._lifeline)
        self._alone = asyncio.Lock()

    async def send(self, payload: bytes, properties: Properties, reply_to: str) -> bool:
        """Publish a reply; return whether RabbitMQ accepted it.

        Raises QueueNotExisting if the requester no longer waits, and RetryLater while RabbitMQ
        blocks publishers.
        """
        try:
            await self._publisher.publish(payload, properties, reply_to, once=True)
        except RetryLater:
            if self._lifeline.is_blocked:
                raise  # another connection would be blocked too
            return await self._sent_alone(payload, properties, reply_to)
        return True

    async def close(self) -> None:
        await self._lifeline.close()

    async def _sent_alone(self, payload: bytes, properties: Properties, reply_to: str) -> bool:
        async with self._alone:
            lifeline = Lifeline(self._address, self._reconnect_s)
            try:
                await lifeline.open()
                await Publisher(lifeline).publish(payload, properties, reply_to, once=True)
            except RetryLater as failure:
                if lifeline.is_blocked:
                    raise
                log.warning(
                    "a request was not answered: is the name to reply to forged?",
                    extra={"reply_to": reply_to, "reason": str(failure)},
                )
                return False
            finally:
                await lifeline.close()
        return True
