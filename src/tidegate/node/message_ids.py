"""The message ids of a replica, taken from blocks that the store reserves for its epoch.

The next block is reserved when half of one is used, long before it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidegate.core.errors import TidegateError, Unavailable
from tidegate.node.holding import Holding

log = logging.getLogger(__name__)

ID_BLOCK = 1_000_000
# Reserve the next block when fewer ids are left than this.
IDS_LOW = ID_BLOCK // 2


class MessageIds:
    """Reserved ids of one replica: those from `next_id` to `end - 1` are left."""

    __slots__ = ("_came", "_holding", "_reserving", "end", "next_id")

    def __init__(self, holding: Holding, came: Callable[[], None]) -> None:
        self._holding = holding
        # Called when more ids were reserved.
        self._came = came
        self._reserving: asyncio.Task[None] | None = None
        self.next_id = 0
        self.end = 0

    def take(self, count: int) -> int:
        """Take `count` ids and return the first.

        Raises `Unavailable` if so few are left that the next block has to be awaited.
        """
        if self.end - self.next_id < count:
            self.reserve_more()
            raise Unavailable("out of message ids for a moment, try again")
        first_id = self.next_id
        self.next_id += count
        if self.end - self.next_id < IDS_LOW:
            self.reserve_more()
        return first_id

    async def reserve(self) -> None:
        holding = self._holding
        end = await holding.store.reserve_ids(holding.info.queue_id, holding.epoch, ID_BLOCK)
        if end is None:
            holding.fence(holding.taken_over())
            return
        if self.end + ID_BLOCK != end:
            # Another owner has reserved a block in between, or this is the first one. The rest of
            # the old block is skipped, so that ids keep growing.
            self.next_id = end - ID_BLOCK
        self.end = end

    def reserve_more(self) -> None:
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.create_task(self._reserve_until_done(), name="reserve-ids")

    async def _reserve_until_done(self) -> None:
        backoff_s = 0.05
        while not self._holding.fenced:
            try:
                await self.reserve()
                break
            except TidegateError as failure:
                log.warning("no ids for %s yet: %s", self._holding.info.name, failure)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, 1.0)
        self._came()

    def fenced(self) -> None:
        if self._reserving is not None:
            self._reserving.cancel()
