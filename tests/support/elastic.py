"""A logical queue under load, on real processes: who puts, who consumes, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from waiting import eventually_async

import tidegate
from tidegate.client.client import Client
from tidegate.core.decisions import Decision
from tidegate.core.topology import (
    DEFAULT_SCALING,
    ReplicaState,
    Scaling,
    Topology,
    with_scaling_keys,
)

PATIENCE_S = 50.0

# Quick enough to be watched.
LIVELY = {
    "min": 1,
    "max": 3,
    "policy": "load",
    "min_load": 10,
    "max_load": 40,
    "polling_interval": "200ms",
    "inhibition": "1s",
    "cooldown_period": "1s",
}


def lively(**changes: Any) -> Scaling:
    return with_scaling_keys(DEFAULT_SCALING, LIVELY | changes)


class Watched:
    """One logical queue, looked at from outside."""

    def __init__(self, mq: Client, queue: str, patience_s: float = PATIENCE_S) -> None:
        self.mq = mq
        self.queue = queue
        self._patience_s = patience_s

    async def topology(self) -> Topology:
        return await self.mq.topology(self.queue)

    async def serving(self) -> list[int]:
        return [
            place.number
            for place in (await self.topology()).replicas
            if place.state is ReplicaState.SERVING
        ]

    async def has_serving(self, at_least: int, at_most: int = 1000) -> list[int]:
        async def look() -> list[int] | None:
            found = await self.serving()
            return found if at_least <= len(found) <= at_most else None

        what = f"{at_least} to {at_most} replicas serve {self.queue}"
        return await eventually_async(look, what, self._patience_s)

    async def has_replicas(self, count: int) -> Topology:
        """All of them serve, and so many there are."""

        async def look() -> Topology | None:
            found = await self.topology()
            states = {place.state for place in found.replicas}
            is_so = len(found.replicas) == count and states <= {ReplicaState.SERVING}
            return found if is_so else None

        what = f"{self.queue} has {count} replicas that serve"
        return await eventually_async(look, what, self._patience_s)

    async def decided(self, rule: Callable[[Decision], bool], what: str) -> Decision:
        async def look() -> Decision | None:
            found = await self.mq.explain(self.queue, count=100)
            return next((decision for decision in found if rule(decision)), None)

        return await eventually_async(look, what, self._patience_s)


class Load:
    """Puts numbered messages at a rate that can be turned, and remembers what was confirmed."""

    def __init__(self, mq: Client, queue: str, per_s: float) -> None:
        self._mq = mq
        self._queue = queue
        self.per_s = per_s
        self.confirmed: set[int] = set()
        self._next = 0

    @property
    def is_settled(self) -> bool:
        """Whether no put is under way."""
        return len(self.confirmed) == self._next

    async def run(self) -> None:
        waiting: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                if self.per_s:
                    due += 1 / self.per_s
                    self._next += 1
                    task = asyncio.create_task(self._put(self._next))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                else:
                    due = loop.time() + 0.05
                await asyncio.sleep(max(due - loop.time(), 0))  # the rate of the load
        finally:
            await asyncio.gather(*waiting)

    async def _put(self, number: int) -> None:
        await self._mq.put(self._queue, str(number).encode())
        self.confirmed.add(number)


class Consumer:
    """Takes so many messages a second, and counts each."""

    def __init__(self, mq: Client, queue: str, per_s: float, seen: Counter[int]) -> None:
        self._mq = mq
        self._queue = queue
        self._per_s = per_s
        self._seen = seen
        self.unflagged: list[int] = []

    async def run(self) -> None:
        async with self._mq.subscribe(self._queue, prefetch=5) as subscription:
            async for message in subscription:
                await asyncio.sleep(1 / self._per_s)  # the handler's work
                number = int(message.payload)
                if self._seen[number] and not message.redelivered:
                    self.unflagged.append(number)
                self._seen[number] += 1
                message.ack()


@contextlib.asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    """While this lasts all of them run; one that fails fails the test."""
    tasks = [asyncio.create_task(one.run()) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


@contextlib.asynccontextmanager
async def clients(url: str, count: int) -> AsyncIterator[list[Client]]:
    """Connections of their own, which come back by themselves."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(tidegate.connect(url, mode="admin"))
            for _ in range(count)
        ]
