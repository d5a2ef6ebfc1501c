"""The inbox of a subscription: messages that have arrived, until somebody takes them.

What came with a leg that was lost has gone back to its queue, and is dropped here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator

from tidegate.client.leg import Leg
from tidegate.client.message import Message, MessageBatch
from tidegate.core.errors import InvalidValue, TidegateError


class Inbox:
    """Batches in the order in which they came. Several tasks may take from it."""

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
        # The rest of the batch that is being taken message by message, and whose it is.
        self._opened: Iterator[Message] = iter(())
        self._opened_of: Leg | None = None
        self._opened_left = 0
        # Messages that have come since it began.
        self.delivered = 0
        self._news = asyncio.Event()
        self._failure: TidegateError | None = None
        self.is_open = False

    def take_in(self, batches: list[MessageBatch]) -> None:
        self._arrived.extend(batches)
        self.delivered += sum(map(len, batches))
        self._news.set()

    def fail(self, error: TidegateError) -> None:
        """Nothing more comes; whoever waits hears why."""
        self._failure = error
        self._news.set()

    def close(self) -> None:
        self.is_open = False
        self._news.set()  # tasks that still iterate hear that it is over

    # Taking

    @property
    def held(self) -> int:
        """Messages that lie here, not yet taken by anybody."""
        opened_of = self._opened_of
        opened = 0 if opened_of is None or opened_of.lost else self._opened_left
        return opened + sum(map(len, self._arrived))

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Messages as they come together."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            await self._wait_for_news()

    async def messages(self) -> AsyncIterator[Message]:
        """Message by message."""
        while True:
            opened = self._opened
            for message in opened:
                self._opened_left -= 1
                if message._holder.lost:  # type: ignore[union-attr]
                    break
                yield message
            if opened is not self._opened:
                continue  # another task has opened the next batch meanwhile, and not emptied it
            if self._arrived:
                batch = self._arrived.popleft()
                self._opened, self._opened_of = iter(batch), batch._holder  # type: ignore[assignment]
                self._opened_left = len(batch)
                self._news.set()  # whoever shares the subscription may help with it
                # Between batches, so that acknowledgements and other tasks get their turn.
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

    # Going back

    def untouched(self, leg: Leg) -> list[tuple[int, int]]:
        """Tags of what nobody has looked at, which thereby is no longer here."""
        opened: list[Message] = []
        if self._opened_of is leg:
            opened, self._opened_left = list(self._opened), 0
        ranges = [(tag, tag) for tag in (message._run.tag + message._index for message in opened)]
        ranges += [batch._tags() for batch in self._arrived if batch._holder is leg]
        self.forget(leg)
        return ranges

    def forget(self, leg: Leg) -> None:
        """What came with it has gone back."""
        self._arrived = deque(batch for batch in self._arrived if batch._holder is not leg)
