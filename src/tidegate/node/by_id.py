"""Messages by their ids: browsed, listed and acknowledged without a lease.

Some waiting messages are in memory, others in the store only. Browsing reads the latter in chunks
and leaves them there. Acknowledging brings them into memory first, one chunk at a time. Long
operations let the event loop run in between.
"""

from __future__ import annotations

import asyncio

from tidegate.core.id_ranges import Range, joined
from tidegate.node.dispatch import Dispatch
from tidegate.node.holding import Holding
from tidegate.node.settling import Settling
from tidegate.queueing.lane import NO_ID
from tidegate.queueing.span import Span

# Ranges of waiting ids in one answer; the client asks again for the rest.
WAITING_RANGES_MAX = 10_000
# Spans that are listed before the event loop runs; some milliseconds.
WAITING_SPANS_PER_TURN = 5000
# Ranges of ids that are acknowledged before the event loop runs.
RANGES_PER_TURN = 200


class ById:
    """Browses, lists and acknowledges the messages of one replica by their ids."""

    def __init__(self, holding: Holding, dispatch: Dispatch, settling: Settling) -> None:
        self._holding = holding
        self._dispatch = dispatch
        self._settling = settling

    async def browse(
        self, limit: int, first_id: int = 0, last_id: int = NO_ID
    ) -> tuple[list[Span], int | None]:
        """Return waiting messages with these ids, in order.

        Also returns the id from which on there may be more; None: there are no more.
        """
        queue = self._holding.queue
        segments, through = await self._dispatch.tail.look(first_id, last_id)
        if self._holding.fenced:
            raise self._holding.taken_over()
        # Listed only after the store was read: messages may have come into memory meanwhile.
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
        """Return the ids of unaddressed messages in memory, lowest first, as ranges.

        The result is empty only if nothing waits or the queue is paused: messages in the store only
        are brought into memory first.
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
                # Memory is short: ids out of order are better than none.
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
            # Another owner may have delivered these messages.
            raise holding.taken_over()
        return ids[:WAITING_RANGES_MAX]

    def _waiting(self, limit: int, first_id: int, last_id: int) -> list[Span]:
        return self._holding.queue.contents.browse(
            limit, first_id, last_id, for_anyone=True, spans_max=WAITING_SPANS_PER_TURN
        )

    async def acknowledge(self, ranges: list[Range]) -> int:
        """Acknowledge unaddressed waiting messages and wait for the disk; return their number."""
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
                # Groups may have been freed, heads may be short, and limits may have room.
                self._dispatch.dispatch()
        await self._settling.on_disk()
        if holding.fenced:
            raise holding.taken_over()
        return count

    async def _acknowledge_tail(self, first_id: int, last_id: int) -> int:
        """Acknowledge messages of a range that are in the store only, one chunk at a time."""
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
