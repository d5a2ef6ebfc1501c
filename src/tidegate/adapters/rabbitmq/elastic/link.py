"""The single connection of an elastic queue's controller, which also holds the lock.

The lock is an exclusive queue, which lives exactly as long as the connection that declared it. A
controller that has lost the lock has also lost its connection, and none of its commands arrive any
more. So no epoch is needed.

The connection never reconnects. A controller that wants to continue opens another one and takes the
lock again. A refusal by the broker closes only the channel; the next command opens a new one.
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
# The broker deletes the exclusive queue when it notices the end of the connection: at once if the
# process was killed, after some heartbeats if its machine is gone.
_ASK_AGAIN_S = 0.5


class Length(NamedTuple):
    """A queue's length and consumers from a passive declaration: exact at that moment."""

    ready: int
    consumers: int


class SteererLink:
    """One connection to the broker, with one open channel."""

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
            # Do not wait for a broker that does not answer.
            with contextlib.suppress(Exception, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def channel(self) -> AbstractChannel:
        """Return the channel, with publisher confirms; open another one after a refusal."""
        if self._channel is None or self._channel.is_closed:
            assert self._connection is not None, "not opened"
            with told(f"RabbitMQ at {self._address.shown}"):
                self._channel = await self._connection.channel(
                    publisher_confirms=True, on_return_raises=True, timeout=_CONNECT_S
                )
        return self._channel

    async def has_lock(self, queue: str) -> bool:
        """Take the lock of a queue; return False if another controller holds it."""
        channel = await self.channel()
        try:
            with told(f"queue {queue!r}"):
                await channel.queue_declare(steerer_name(queue), exclusive=True, timeout=_ANSWER_S)
        except Locked:
            return False
        return True

    async def wait_for_lock(self, queue: str) -> None:
        """Wait until the lock of a queue is free, and take it."""
        while True:
            if await self.has_lock(queue):
                return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def length(self, name: str) -> Length | None:
        """Return a queue's length and consumers; None if it does not exist."""
        channel = await self.channel()
        try:
            with told(f"queue {name!r}"):
                found = await channel.queue_declare(name, passive=True, timeout=_ANSWER_S)
        except QueueNotExisting:
            return None
        return Length(found.message_count or 0, found.consumer_count or 0)

    async def is_classic(self, name: str) -> bool:
        """Return whether an existing queue is classic, as far as the broker's refusal shows it."""
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
        """Remove a binding; a missing binding is no error to the broker."""
        channel = await self.channel()
        with told(f"queue {name!r}"):
            await channel.queue_unbind(name, exchange, str(weight), timeout=_ANSWER_S)

    async def delete_queue(self, name: str, *, conditions: bool = True) -> None:
        """Delete a queue.

        With `conditions` it raises NameConflict if the queue has ready messages or consumers.
        """
        channel = await self.channel()
        with told(f"queue {name!r}"):
            await channel.queue_delete(
                name, if_unused=conditions, if_empty=conditions, timeout=_ANSWER_S
            )
