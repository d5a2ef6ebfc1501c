"""The steerer's one connection: everything that it orders goes over it, and so does its lock.

The lock is an exclusive queue, which lives exactly as long as the connection that declared it. So
whoever lost the lock has lost the connection too, and nothing that it says arrives any more: no
epoch has to be compared. It is never reconnected; who wants to go on opens another and asks for the
lock again. A refusal of the broker ends the channel and not the connection: the next order gets a
new channel.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple, Self

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection

from tidegate.adapters.rabbitmq.address import RabbitmqAddress
from tidegate.adapters.rabbitmq.elastic.refusal import InTheWay, Locked, told
from tidegate.adapters.rabbitmq.elastic.topology import steerer_name
from tidegate.adapters.rabbitmq.failures import reaching
from tidegate.adapters.rabbitmq.leniency import read_leniently
from tidegate.adapters.rabbitmq.queues import is_classic_by
from tidegate.core.errors import QueueNotExisting

_CONNECT_S = 5.0
_ANSWER_S = 10.0
# An exclusive queue goes when the broker notices that its connection has: at once when a process
# was killed, after some heartbeats when its computer is gone.
_ASK_AGAIN_S = 0.5


class Length(NamedTuple):
    """What the broker says about a queue when asked for it: exact, and of this moment."""

    ready: int
    consumers: int


class SteererLink:
    """One connection, and a channel of it that works."""

    def __init__(self, address: RabbitmqAddress) -> None:
        self._address = address
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None

    async def open(self) -> Self:
        read_leniently()
        with reaching(self._address.shown, self._address.url.user):
            self._connection = await asyncio.wait_for(
                aiormq.connect(self._address.url, context=self._address.tls), _CONNECT_S
            )
        return self

    async def close(self) -> None:
        if self._connection is not None:
            # A broker that does not answer is left without a goodbye.
            with contextlib.suppress(Exception, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def channel(self) -> AbstractChannel:
        """One on which publishes are confirmed; another one after a refusal."""
        if self._channel is None or self._channel.is_closed:
            assert self._connection is not None, "not opened"
            with told(f"RabbitMQ at {self._address.shown}"):
                self._channel = await self._connection.channel(
                    publisher_confirms=True, on_return_raises=True, timeout=_CONNECT_S
                )
        return self._channel

    async def has_lock(self, queue: str) -> bool:
        """Whether we steer this queue from now on; False: somebody else does."""
        channel = await self.channel()
        try:
            with told(f"queue {queue!r}"):
                await channel.queue_declare(steerer_name(queue), exclusive=True, timeout=_ANSWER_S)
        except Locked:
            return False
        return True

    async def wait_for_lock(self, queue: str) -> None:
        """Until whoever steers the queue is gone."""
        while True:
            if await self.has_lock(queue):
                return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def length(self, name: str) -> Length | None:
        """How long a queue is; None: there is no such queue."""
        channel = await self.channel()
        try:
            with told(f"queue {name!r}"):
                found = await channel.queue_declare(name, passive=True, timeout=_ANSWER_S)
        except QueueNotExisting:
            return None
        return Length(found.message_count or 0, found.consumer_count or 0)

    async def is_classic(self, name: str) -> bool:
        """Whether an existing queue is a classic one, as far as the broker lets it be told."""
        try:
            await self.declare_queue(name, {"x-queue-type": "classic"})
        except InTheWay as refusal:
            return is_classic_by(str(refusal))
        return True

    async def declare_queue(self, name: str, arguments: dict[str, Any]) -> None:
        channel = await self.channel()
        with told(f"queue {name!r}"):
            await channel.queue_declare(
                name, durable=True, arguments=arguments or None, timeout=_ANSWER_S
            )

    async def bind(self, name: str, exchange: str, weight: int) -> None:
        channel = await self.channel()
        with told(f"queue {name!r}"):
            await channel.queue_bind(name, exchange, str(weight), timeout=_ANSWER_S)

    async def unbind(self, name: str, exchange: str, weight: int) -> None:
        """A binding that is not there, or no longer, is no error to the broker."""
        channel = await self.channel()
        with told(f"queue {name!r}"):
            await channel.queue_unbind(name, exchange, str(weight), timeout=_ANSWER_S)

    async def delete_queue(self, name: str, *, conditions: bool = True) -> None:
        """Only while nothing is ready in it and nobody consumes from it: else InTheWay."""
        channel = await self.channel()
        with told(f"queue {name!r}"):
            await channel.queue_delete(
                name, if_unused=conditions, if_empty=conditions, timeout=_ANSWER_S
            )
