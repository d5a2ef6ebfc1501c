"""The load of the story: what customers put, and what each worker of the archive is to do.

The archive is always given a little more than its workers are to do, so that what they do follows
from their prefetch alone.
"""

from __future__ import annotations

import asyncio
import time

from tidegate.cli.demo.stage import Stage
from tidegate.cli.demo.story import (
    ARCHIVE,
    ARCHIVE_AHEAD,
    ARCHIVE_STOCK,
    ARCHIVED_AT_ONCE,
    ORDERS,
    SETTLE_S,
    Chapter,
)
from tidegate.client.client import Client
from tidegate.core.prefetch import PrefetchGoal

_RAMP_STEP_S = 0.25
_STOCK_S = 1.0


class Load:
    """Turned by chapters."""

    def __init__(self, stage: Stage, mq: Client) -> None:
        self._stage = stage
        self._mq = mq
        self._archivists = 0

    async def begin(self) -> None:
        """The archive's first worker, and the customers."""
        await self.add_archivist("archive")
        await self._stage.let_customers_in()

    async def add_archivist(self, app: str) -> None:
        """One more worker of the archive; from the next turn on there is work for it, too."""
        await self._stage.add_worker(app)
        self._archivists += 1

    async def stock_up(self) -> None:
        """So that the archive never has nothing to do."""
        self._put_at({ARCHIVE: ARCHIVE_STOCK / _STOCK_S})
        await asyncio.sleep(_STOCK_S)

    async def turn(self, chapter: Chapter, since_per_s: float | None = None) -> None:
        """To what a chapter says; evenly from one rate of orders to the other, if asked."""
        goal = PrefetchGoal(
            rate_per_s=chapter.archive_per_s, settle_s=SETTLE_S, high=ARCHIVED_AT_ONCE
        )
        await self._mq.set_policy(ARCHIVE, prefetch=goal)
        begun = time.monotonic()
        while since_per_s is not None:
            part = min((time.monotonic() - begun) / chapter.seconds, 1.0)
            self.put(chapter, since_per_s + part * (chapter.orders_per_s - since_per_s))
            if part >= 1.0:
                return
            await asyncio.sleep(_RAMP_STEP_S)
        self.put(chapter, chapter.orders_per_s)

    def put(self, chapter: Chapter, orders_per_s: float) -> None:
        """So many orders a second from now on, and enough for everyone at the archive."""
        archive_per_s = chapter.archive_per_s * self._archivists * ARCHIVE_AHEAD
        self._put_at({ORDERS: orders_per_s, ARCHIVE: archive_per_s})

    async def end(self) -> None:
        """No more puts, all have their answers; the archive may work as fast as it can."""
        assert self._stage.customers is not None
        await self._stage.customers.finish()
        self._stage.customers = None
        await self._mq.set_policy(ARCHIVE, prefetch=PrefetchGoal(manual=ARCHIVED_AT_ONCE))

    def _put_at(self, rates: dict[str, float]) -> None:
        assert self._stage.customers is not None
        self._stage.customers.put_at(rates)
