"""The load of the demo: rates of the producers, and target rates of the archive's workers.

The archive always gets slightly more messages than its target rates, so that its rate depends on
the prefetch only.
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
    """Sets the load for each step."""

    def __init__(self, stage: Stage, mq: Client) -> None:
        self._stage = stage
        self._mq = mq
        self._archivists = 0

    async def begin(self) -> None:
        """Start the first worker of the archive, and the producers."""
        await self.add_archivist("archive")
        await self._stage.let_customers_in()

    async def add_archivist(self, app: str) -> None:
        """Add a worker of the archive; the next change of load includes work for it."""
        await self._stage.add_worker(app)
        self._archivists += 1

    async def stock_up(self) -> None:
        """Put a stock of messages, so that the archive never runs out of work."""
        self._put_at({ARCHIVE: ARCHIVE_STOCK / _STOCK_S})
        await asyncio.sleep(_STOCK_S)

    async def turn(self, chapter: Chapter, since_per_s: float | None = None) -> None:
        """Set the load of a step; with `since_per_s`, ramp the orders evenly from that rate."""
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
        """Set the rate of orders, and a rate that suffices for all workers of the archive."""
        archive_per_s = chapter.archive_per_s * self._archivists * ARCHIVE_AHEAD
        self._put_at({ORDERS: orders_per_s, ARCHIVE: archive_per_s})

    async def end(self) -> None:
        """Stop the producers, wait for confirmations, and let the archive drain at full speed."""
        assert self._stage.customers is not None
        await self._stage.customers.finish()
        self._stage.customers = None
        await self._mq.set_policy(ARCHIVE, prefetch=PrefetchGoal(manual=ARCHIVED_AT_ONCE))

    def _put_at(self, rates: dict[str, float]) -> None:
        assert self._stage.customers is not None
        self._stage.customers.put_at(rates)
