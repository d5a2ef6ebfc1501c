"""A subscription that loses what it stands on, while other things happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from waiting import LIMIT_S

from tidegate.core.errors import TidegateError, Unavailable
from tidegate.engines.rabbitmq.subscription import RabbitmqSubscription
from tidegate.engines.rabbitmq.topology import ReplicaSource

BEFORE = [ReplicaSource("orders")]
AFTER = [ReplicaSource("orders"), ReplicaSource("orders#1", "orders#1.holders")]


class Stand:
    """A consumer, until it is lost."""

    def __init__(self, sources: list[ReplicaSource]) -> None:
        self.sources = sources
        self.lost = False
        self.losing = asyncio.Event()
        self.followed = asyncio.Event()

    async def wait_closed(self) -> TidegateError:
        await self.losing.wait()
        self.lost = True
        return Unavailable("lost")

    async def follow(self, sources: list[ReplicaSource]) -> None:
        self.sources = sources
        self.followed.set()

    async def end(self) -> None:
        self.lost = True


class Standing(RabbitmqSubscription):
    """The second consumer is made only when the test allows it."""

    def __init__(self) -> None:
        self.replicas = BEFORE
        self.listeners: list[Callable[[], None]] = []
        self.consumers: list[Stand] = []
        self.making, self.made = asyncio.Event(), asyncio.Event()
        client: Any = SimpleNamespace(
            connection=SimpleNamespace(reconnect_s=1.0, is_closed=False, connected=self._connected),
            news=SimpleNamespace(on_news=self._on_news),
            spawn=asyncio.create_task,
        )
        super().__init__(client, "orders", 10, automatic=False)

    async def _connected(self) -> None: ...

    def _on_news(self, queue: str, heard: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(heard)
        return lambda: None

    async def _sources(self) -> list[ReplicaSource]:
        return self.replicas

    async def _new_consumer(self) -> Any:
        consumer = Stand(await self._sources())
        self.consumers.append(consumer)
        if len(self.consumers) > 1:
            self.making.set()
            await self.made.wait()
        return consumer


async def test_a_replica_that_comes_while_a_lost_connection_is_made_good_is_consumed_from() -> None:
    async with Standing() as subscription, asyncio.timeout(LIMIT_S):
        subscription.consumers[0].losing.set()
        await subscription.making.wait()
        subscription.replicas = AFTER
        for heard in subscription.listeners:
            heard()
        # The task that follows the topology looks at the lost consumer.
        await asyncio.sleep(0)

        subscription.made.set()
        await subscription.consumers[1].followed.wait()

        assert subscription.consumers[1].sources == AFTER


async def test_a_subscription_counts_how_often_it_was_interrupted() -> None:
    async with Standing() as subscription, asyncio.timeout(LIMIT_S):
        at_first = subscription.interruptions
        subscription.consumers[0].losing.set()
        await subscription.making.wait()

        assert (at_first, subscription.interruptions) == (0, 1)
