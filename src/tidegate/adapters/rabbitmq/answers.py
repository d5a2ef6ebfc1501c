"""Replies to whoever asked by direct reply-to, on a connection of their own.

The name to reply to came with the request, so anybody can have written it. RabbitMQ (3.10) ends the
connection on which it gets a reply to a name of this kind that is none. On the worker's own
connection everything in its hands would go back, the request too, and with it the same again, for
ever; on the one that it publishes on, whatever is on its way would be sent twice. So it ends a
connection that carries nothing but replies. What was on its way there is sent once more, alone:
whose reply ends a connection again is not answered. (Nor is it when the broker has gone: then
whoever asked has lost its channel too, and waits for nothing.)
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
    """One client's replies of that kind."""

    def __init__(self, address: RabbitmqAddress, reconnect_s: float, outage: Outage) -> None:
        self._address = address
        self._reconnect_s = reconnect_s
        self._lifeline = Lifeline(address, reconnect_s, outage, opens_when_needed=True)
        self._publisher = Publisher(self._lifeline)
        self._alone = asyncio.Lock()

    async def send(self, payload: bytes, properties: Properties, reply_to: str) -> bool:
        """Whether RabbitMQ took it; QueueNotExisting when nobody waits for it."""
        try:
            await self._publisher.publish(payload, properties, reply_to, once=True)
        except RetryLater:
            if self._lifeline.is_blocked:
                raise  # as would another connection be
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
