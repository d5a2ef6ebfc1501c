"""A probe consumer on RabbitMQ, on a temporary queue.

The queue in question is only declared passively. The probe's prefetch changes live by
`basic.qos(global=true)` on a channel of its own, which classic queues support.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractIncomingMessage,
    AbstractQueue,
)

from tidegate.adapters.probe import PREFETCH_FIRST, Probe
from tidegate.adapters.rabbitmq.address import RabbitmqAddress, parse_address
from tidegate.adapters.rabbitmq.failures import reaching, telling
from tidegate.adapters.rabbitmq.management import ManagementApi, usual_address
from tidegate.core.errors import TidegateError
from tidegate.core.tunable import PROBE_BYTES_MAX

SIZE_BYTES_DEFAULT = 256
CONNECT_S = 10.0
# Lifetime of the queue if the probe is killed before it consumes.
UNUSED_MS = 60_000


async def rabbitmq_probe(
    url: str, queue: str, *, handler_s: float, size_bytes: int | None
) -> Probe:
    """Connect and open a probe beside `queue`.

    `size_bytes` None means the mean size of the waiting messages. Raises QueueNotExisting,
    Forbidden, NotAuthenticated or Unavailable.
    """
    address = parse_address(url)
    async with contextlib.AsyncExitStack() as opened:
        feeding = await opened.enter_async_context(await _connected(address))
        consuming = await opened.enter_async_context(await _connected(address))
        with telling(f"queue {queue!r} at {address.shown}"):
            async with consuming.channel() as looking:
                await looking.declare_queue(queue, passive=True)
        if size_bytes is None:
            size_bytes = min(await _size_of_messages(address, queue), PROBE_BYTES_MAX)
        own = RabbitmqProbeQueue(feeding, consuming)
        probe = Probe(own, queue, handler_s=handler_s, size_bytes=size_bytes)
        with telling("a queue for the probe (amq.gen-…); --worker needs none"):
            await probe.open()
        # The probe closes the connections from here on.
        opened.pop_all()
    return probe


class RabbitmqProbeQueue:
    """A `ProbeQueue` on two connections: RabbitMQ throttles a publishing one, and its acks too."""

    # Each put costs 0.1 ms of the event loop, which also consumes.
    put_at_once = 50

    def __init__(self, feeding: AbstractConnection, consuming: AbstractConnection) -> None:
        self._feeding = feeding
        self._consuming = consuming
        self._puts: AbstractChannel | None = None
        self._takes: AbstractChannel | None = None
        self._queue: AbstractQueue | None = None

    @property
    def name(self) -> str:
        return "" if self._queue is None else self._queue.name

    async def open(self) -> None:
        self._takes = await self._consuming.channel(publisher_confirms=False)
        await self._takes.set_qos(PREFETCH_FIRST, global_=True)
        # Not exclusive, since another connection feeds it. RabbitMQ deletes it with its last
        # consumer.
        self._queue = await self._takes.declare_queue(
            auto_delete=True, arguments={"x-expires": UNUSED_MS}
        )
        self._puts = await self._feeding.channel(publisher_confirms=False)

    async def put(self, payloads: list[bytes]) -> None:
        assert self._puts is not None
        for payload in payloads:
            await self._puts.default_exchange.publish(aio_pika.Message(payload), self.name)

    async def consume(self, handle: Callable[[], Awaitable[None]]) -> None:
        assert self._queue is not None

        async def turn(message: AbstractIncomingMessage) -> None:
            await handle()
            # If the channel is closed, the queue and its messages are deleted anyway.
            with contextlib.suppress(aio_pika.exceptions.AMQPError, RuntimeError):
                await message.ack()

        await self._queue.consume(turn)

    async def apply_prefetch(self, prefetch: int) -> None:
        assert self._takes is not None
        await self._takes.set_qos(prefetch, global_=True)

    async def close(self) -> None:
        if self._queue is not None:
            # RabbitMQ would delete it with its last consumer; this does it at once.
            with contextlib.suppress(aio_pika.exceptions.AMQPError, RuntimeError):
                await self._queue.delete(if_unused=False, if_empty=False)
        await self._feeding.close()
        await self._consuming.close()


async def _connected(address: RabbitmqAddress) -> AbstractConnection:
    with reaching(address.shown, address.url.user):
        return await aio_pika.connect(address.url, timeout=CONNECT_S, ssl_context=address.tls)


async def _size_of_messages(address: RabbitmqAddress, queue: str) -> int:
    """Return the mean size of waiting messages by the management API, or the default."""
    url = address.url
    try:
        api = ManagementApi(
            usual_address(url.host), url.user or "", url.password or "", url.path[1:] or "/"
        )
        found = [one for one in await api.queues(queue) if one.name == queue]
    except TidegateError:
        return SIZE_BYTES_DEFAULT
    waiting = sum(one.messages or 0 for one in found)
    if not waiting:
        return SIZE_BYTES_DEFAULT
    return round(sum(one.message_bytes or 0 for one in found) / waiting)
