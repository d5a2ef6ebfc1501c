"""An engine as the conformance suite sees it: a URL, and what it can do beyond what all can.

The suite uses the public API only. What all engines must do has no name here; what one may lack
is a capability, and a test that needs it says what happens without it instead of being skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from waiting import eventually_async

import tidegate

PATIENCE_S = 60.0
LAST = b"the last one"


class Capability(enum.Enum):
    """What some engines do and others rightly do not."""

    # Higher priorities overtake: quorum queues keep the number and ignore it.
    PRIORITY_OVERTAKES = enum.auto()
    # Each delivery whose consumer died counts: classic queues only flag it, which is one at least.
    COUNTS_DEAD_CONSUMERS = enum.auto()
    # A smaller prefetch counts what is in the consumer's hands already: on quorum queues the
    # consumer begins anew beside what it holds.
    PREFETCH_COUNTS_WHAT_IS_HELD = enum.auto()
    # Dedup ids, groups, tenants, receivers.
    ADDRESSES_AND_GROUPS = enum.auto()


class Engine(NamedTuple):
    """One that the suite runs on."""

    name: str
    url: str
    capabilities: frozenset[Capability]

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def connect(self, **settings: Any) -> Any:
        return tidegate.connect(self.url, **settings)

    def app(self) -> tidegate.App:
        return tidegate.App(self.url)


async def take(subscription: Any, count: int) -> list[Any]:
    """The next messages; fails when they do not come."""
    stream: AsyncIterator[Any] = aiter(subscription)
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(stream) for _ in range(count)]


@contextlib.asynccontextmanager
async def dying_consumer(engine: Engine, queue: str, prefetch: int) -> AsyncIterator[Any]:
    """A subscription whose connection ends with the block, without a word about what it holds."""
    async with engine.connect() as mq:
        subscription = mq.subscribe(queue, prefetch=prefetch)
        await subscription.__aenter__()
        yield subscription


async def put_all(mq: Any, queue: str, payloads: list[bytes]) -> None:
    """One after the other, each confirmed."""
    for payload in payloads:
        await mq.put(queue, payload)


async def taken_until_last(mq: Any, queue: str) -> list[Any]:
    """Everything that waits in a queue, acknowledged: up to what is put behind it just now."""
    await mq.put(queue, LAST)
    found = []
    async with mq.subscribe(queue, prefetch=10) as subscription:
        stream = aiter(subscription)
        async with asyncio.timeout(PATIENCE_S):
            while (message := await anext(stream)).payload != LAST:
                found.append(message)
                await message.ack_confirmed()
            await message.ack_confirmed()
    return found


async def dead_letter(mq: Any, queue: str) -> Any:
    """The first dead letter of a queue, whose dead-letter queue may be made when first needed."""

    async def look() -> Any:
        try:
            async with mq.subscribe(f"{queue}.dead") as subscription:
                (letter,) = await take(subscription, 1)
                await letter.ack_confirmed()
                return letter
        except tidegate.QueueNotExisting:
            return None

    return await eventually_async(look)


def payloads_of(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]
