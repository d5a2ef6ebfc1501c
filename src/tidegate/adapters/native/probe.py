"""A probe consumer on Tidegate nodes, on a temporary queue that its connection owns."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable

from tidegate.adapters.probe import PREFETCH_FIRST, Probe
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.client.subscription import Subscription
from tidegate.core.errors import QueueNotExisting, TidegateError
from tidegate.core.tunable import PROBE_BYTES_MAX

PREFIX = "tidegate.tune."
# Messages that are browsed, without taking them, to measure their size.
LOOKED_AT = 20
SIZE_BYTES_DEFAULT = 256


async def native_probe(
    client: Client, queue: str, *, handler_s: float, size_bytes: int | None
) -> Probe:
    """Open a probe beside `queue`, as durable and with messages as large.

    `size_bytes` None means the mean size of the waiting messages.
    """
    info = await client.queue(queue)
    if size_bytes is None:
        size_bytes = min(await _size_of_messages(client, queue), PROBE_BYTES_MAX)
    own = NativeProbeQueue(client, queue, durable=info.durable)
    probe = Probe(own, queue, handler_s=handler_s, size_bytes=size_bytes)
    await probe.open()
    return probe


class NativeProbeQueue:
    """A `ProbeQueue` on a client that the caller opens and closes."""

    put_at_once = 500

    def __init__(self, client: Client, queue: str, *, durable: bool) -> None:
        self._client = client
        self._durable = durable
        self.name = f"{PREFIX}{queue}.{secrets.token_hex(4)}"
        self._is_made = False
        self._subscription: Subscription | None = None
        self._consuming: asyncio.Task[None] | None = None
        self._turns: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self._client.create_queue(self.name, durable=self._durable, ephemeral=True)
        self._is_made = True

    async def put(self, payloads: list[bytes]) -> None:
        await self._client.put_many(self.name, payloads)

    async def consume(self, handle: Callable[[], Awaitable[None]]) -> None:
        self._subscription = self._client.subscribe(self.name, prefetch=PREFETCH_FIRST)
        await self._subscription.__aenter__()
        self._consuming = asyncio.create_task(self._take(self._subscription, handle))

    async def _take(
        self, subscription: Subscription, handle: Callable[[], Awaitable[None]]
    ) -> None:
        async def turn(message: Message) -> None:
            await handle()
            message.ack()

        async for message in subscription:
            task = asyncio.create_task(turn(message))
            self._turns.add(task)
            task.add_done_callback(self._turns.discard)

    async def apply_prefetch(self, prefetch: int) -> None:
        assert self._subscription is not None
        await self._subscription.set_prefetch(prefetch)

    async def close(self) -> None:
        tasks = {*self._turns, *([self._consuming] if self._consuming else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._subscription is not None:
            with contextlib.suppress(TidegateError):
                await self._subscription.__aexit__(None, None, None)
        if self._is_made:
            # The node deletes an ephemeral queue when its client's session ends.
            with contextlib.suppress(QueueNotExisting):
                await self._client.delete_queue(self.name)
            self._is_made = False


async def _size_of_messages(client: Client, queue: str) -> int:
    """Return the mean size of waiting messages, without taking them."""
    sizes = [len(message.payload) for message in await client.browse(queue, limit=LOOKED_AT)]
    return round(sum(sizes) / len(sizes)) if sizes else SIZE_BYTES_DEFAULT
