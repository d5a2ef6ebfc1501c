"""The receive buffer of a subscription: messages received and not yet taken.

Messages of a lost consumer are dropped, since the node has returned them to their queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator

from tidegate.client.leg import Leg
from tidegate.client.message import Message, MessageBatch
from tidegate.core.errors import InvalidValue, TidegateError


class Inbox:
    """Batches in the order of arrival. Several tasks may take messages from it."""

    __slots__ = (
        "_arrived",
        "_failure",
        "_news",
        "_opened",
        "_opened_left",
        "_opened_of",
        "delivered",
        "is_open",
    )

    def __init__(self) -> None:
        self._arrived: deque[MessageBatch] = deque()
        # The rest of the batch that is iterated message by message, and its consumer.
        self._opened: Iterator[Message] = iter(())
        self._opened_of: Leg | None = None
        self._opened_left = 0
        # Messages received since the subscription began.
        self.delivered = 0
        self._news = asyncio.Event()
        self._failure: TidegateError | None = None
        self.is_open = False

    def take_in(self, batches: list[MessageBatch]) -> None:
        self._arrived.extend(batches)
        self.delivered += sum(map(len, batches))
        self._news.set()

    def fail(self, error: TidegateError) -> None:
        """End the iteration: all tasks that wait for messages raise `error`."""
        self._failure = error
        self._news.set()

    def close(self) -> None:
        self.is_open = False
        self._news.set()  # wakes the iterating tasks, which raise `InvalidValue`

    # Taking messages

    @property
    def held(self) -> int:
        """Messages received but not yet taken by the application."""
        opened_of = self._opened_of
        opened = 0 if opened_of is None or opened_of.lost else self._opened_left
        return opened + sum(map(len, self._arrived))

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Iterate over batches."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            await self._wait_for_news()

    async def messages(self) -> AsyncIterator[Message]:
        """Iterate over messages."""
        while True:
            opened = self._opened
            for message in opened:
                self._opened_left -= 1
                if message._holder.lost:  # type: ignore[union-attr]
                    break
                yield message
            if opened is not self._opened:
                continue  # another task has opened the next batch, and not finished it
            if self._arrived:
                batch = self._arrived.popleft()
                self._opened, self._opened_of = iter(batch), batch._holder  # type: ignore[assignment]
                self._opened_left = len(batch)
                self._news.set()  # other tasks may take messages of this batch, too
                # Let acknowledgements and other tasks run between two batches.
                await asyncio.sleep(0)
            else:
                await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self.is_open:
            raise InvalidValue("the subscription is not open: use `async with mq.subscribe(...)`")
        self._news.clear()
        await self._news.wait()

    # Returning messages

    def untouched(self, leg: Leg) -> list[tuple[int, int]]:
        """Remove the messages of a consumer that were not taken; return their tags as ranges."""
        opened: list[Message] = []
        if self._opened_of is leg:
            opened, self._opened_left = list(self._opened), 0
        ranges = [(tag, tag) for tag in (message._run.tag + message._index for message in opened)]
        ranges += [batch._tags() for batch in self._arrived if batch._holder is leg]
        self.forget(leg)
        return ranges

    def forget(self, leg: Leg) -> None:
        """Drop the messages of a lost consumer."""
        self._arrived = deque(batch for batch in self._arrived if batch._holder is not leg)
