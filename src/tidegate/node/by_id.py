"""Messages by their ids: browsed, listed and acknowledged by who holds none of them.

Part of what waits is in memory, part in the store only. What is looked at there is read in chunks
and stays; what is acknowledged comes to memory, so many at a time, and goes. Whatever somebody
asks for, others have their turn in between.
"""

from __future__ import annotations

import asyncio

from tidegate.core.id_ranges import Range, joined
from tidegate.node.dispatch import Dispatch
from tidegate.node.holding import Holding
from tidegate.node.settling import Settling
from tidegate.queueing.lane import NO_ID
from tidegate.queueing.span import Span

# In which waiting ids are listed; whoever asks gets the others next time.
WAITING_RANGES_MAX = 10_000
# That are looked at before others have their turn: some milliseconds.
WAITING_SPANS_PER_TURN = 5000
# In which ids are acknowledged before others have their turn.
RANGES_PER_TURN = 200


class ById:
    """The messages of one replica, by their ids."""

    def __init__(self, holding: Holding, dispatch: Dispatch, settling: Settling) -> None:
        self._holding = holding
        self._dispatch = dispatch
        self._settling = settling

    async def browse(
        self, limit: int, first_id: int = 0, last_id: int = NO_ID
    ) -> tuple[list[Span], int | None]:
        """Messages that wait and have these ids, in order; from where on there may be more."""
        queue = self._holding.queue
        segments, through = await self._dispatch.tail.look(first_id, last_id)
        if self._holding.fenced:
            raise self._holding.taken_over()
        # Only now: while the store was read, messages may have come back from it.
        spans = queue.contents.browse(limit, first_id, through)
        for segment in segments:
            spans += queue.tails.pieces(segment, first_id, through)
        spans.sort(key=lambda span: span.first_id)
        shown: list[Span] = []
        for span in spans:
            if len(span) > limit:
                span = span.split(limit)
            shown.append(span)
            limit -= len(span)
            if limit <= 0:
                through = span.first_id + len(span) - 1
                break
        return shown, through + 1 if through < last_id else None

    async def waiting_ids(self, limit: int, last_id: int) -> list[Range]:
        """Which messages for anyone are in memory, the lowest ids first, in ranges.

        Nothing only if nothing waits: what the store holds comes to memory before its turn.
        """
        holding = self._holding
        if holding.policy.paused:
            return []
        queue = holding.queue
        through = min(last_id, queue.tails.anyones_begin - 1)
        while not (spans := self._waiting(limit, 0, through)):
            if queue.tails.anyones_begin > last_id:
                break
            if not await self._dispatch.tail.more():
                # Memory is short: better out of order than nothing.
                through = last_id
                spans = self._waiting(limit, 0, through)
                break
            through = min(last_id, queue.tails.anyones_begin - 1)
        ids = joined(map(_ids_of, spans))
        while len(spans) == WAITING_SPANS_PER_TURN and len(ids) < WAITING_RANGES_MAX:
            limit -= sum(map(len, spans))
            await asyncio.sleep(0)
            spans = self._waiting(limit, ids[-1][1] + 1, through)
            ids = joined([*ids, *map(_ids_of, spans)])
        if holding.fenced or not holding.may_deliver():
            # Another owner may have given them to somebody.
            raise holding.taken_over()
        return ids[:WAITING_RANGES_MAX]

    def _waiting(self, limit: int, first_id: int, last_id: int) -> list[Span]:
        return self._holding.queue.contents.browse(
            limit, first_id, last_id, for_anyone=True, spans_max=WAITING_SPANS_PER_TURN
        )

    async def acknowledge(self, ranges: list[Range]) -> int:
        """Messages for anyone that wait are done, and that is on disk; how many there were."""
        holding = self._holding
        apart = joined(ranges)
        count = 0
        try:
            for at in range(0, len(apart), RANGES_PER_TURN):
                some = apart[at : at + RANGES_PER_TURN]
                for first_id, last_id in some:
                    count += await self._acknowledge_tail(first_id, last_id)
                if holding.fenced:
                    break
                count += self._settling.settle_waiting(holding.queue.contents.take_between(some))
                await asyncio.sleep(0)
        finally:
            if not holding.fenced:
                # Groups have gone on, heads are short, limits have room.
                self._dispatch.dispatch()
        await self._settling.on_disk()
        if holding.fenced:
            raise holding.taken_over()
        return count

    async def _acknowledge_tail(self, first_id: int, last_id: int) -> int:
        """Of a range, while only the store holds some of it: so many at a time come and go."""
        holding = self._holding
        queue = holding.queue
        count = 0
        while first_id <= last_id and queue.tails.has_between(first_id, last_id, for_anyone=True):
            through = await self._dispatch.tail.pull_between(first_id, last_id)
            if holding.fenced:
                break
            taken = queue.contents.take_between([(first_id, through)])
            count += self._settling.settle_waiting(taken)
            first_id = through + 1
        return count


def _ids_of(span: Span) -> Range:
    return span.first_id, span.first_id + len(span) - 1
