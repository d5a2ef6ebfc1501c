"""Who asks about a queue for the first time, and others who do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import LIMIT_S

from tidegate.core.errors import Unavailable
from tidegate.engines.rabbitmq.topology import TopologyFeed


class SlowNews(TopologyFeed):
    """What it learns of a queue comes when it comes."""

    def __init__(self) -> None:
        connection: Any = SimpleNamespace(reconnect_s=10.0, is_closed=False)
        super().__init__(connection)
        self.came = asyncio.Event()
        self.cuts = 0

    async def _learn(self, queue: str) -> None:
        await self.came.wait()
        if self.cuts:
            self.cuts -= 1
            raise Unavailable("the connection was lost")
        self._known[queue] = None


@pytest.mark.parametrize("turns", range(6))
async def test_topology_requests_are_answered_in_order(turns: int) -> None:
    news = SlowNews()
    went_on: list[int] = []

    async def ask(number: int) -> None:
        await news.topology("orders")
        went_on.append(number)

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as asking:
        for number in range(5):
            asking.create_task(ask(number))
        await asyncio.sleep(0)
        news.came.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.create_task(ask(5))

    assert went_on == [0, 1, 2, 3, 4, 5]


async def test_a_connection_that_is_lost_meanwhile_is_put_up_with() -> None:
    news = SlowNews()
    news.came.set()
    news.cuts = 2

    assert await news.topology("orders") is None
    assert news.cuts == 0
