"""What waits in the store only, and how it comes back into memory before its turn.

The front of a tail is read in chunks whenever the head in memory runs short. A reader that
wants something particular (from a sender, a reply, messages addressed to it) has the store
searched for it, and what is found is pulled out of the middle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from tidegate.core.errors import TidegateError
from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.node.consumer import Reader
from tidegate.node.holding import Holding
from tidegate.queueing.lane import Lane
from tidegate.queueing.match import Match
from tidegate.queueing.rank import EVERYTHING

log = logging.getLogger(__name__)

# A head shorter than this is filled up, in chunks of the same size.
HEAD_BYTES_LOW = 4 * 1024 * 1024
CHUNK_SEGMENTS = 4000
# Segments that one search brings back.
FOUND_SEGMENTS = 16
ALL_BYTES = 1 << 62


class TailReader:
    """Reads the tails of one replica."""

    def __init__(
        self,
        holding: Holding,
        came_back: Callable[[], None],
        known: Callable[[list[Segment]], list[Segment]],
    ) -> None:
        self._holding = holding
        self._came_back = came_back
        # Without those that are stored this very moment, by another connection than puts before
        # and behind them: they come by themselves.
        self._known = known
        self._reading: asyncio.Task[None] | None = None
        self._searches: set[asyncio.Task[None]] = set()
        # Receivers for whom a search is under way.
        self._searched_for: set[int] = set()

    async def load(self) -> None:
        """Everything a new owner finds is a tail."""
        holding = self._holding
        for lane in await holding.store.lanes(holding.info.queue_id):
            holding.queue.tails.lane(lane.priority, lane.addressed).expect_tail(
                lane.first_id, lane.last_id, lane.count, lane.payload_bytes, lane.arrived_at
            )
        self.fill_head()

    def head_bytes_least(self) -> int:
        """What a queue may keep in memory however full the node is."""
        return min(HEAD_BYTES_LOW // 4, self._holding.limits.memory_bytes // 64)

    def fill_head(self) -> None:
        """Read the next part of a tail, before its turn."""
        holding = self._holding
        if self._reading is not None or holding.fenced:
            return
        wanted = holding.queue.tails.wanted(HEAD_BYTES_LOW)
        room = holding.budget.has_room_for(HEAD_BYTES_LOW)
        self._note_stalled([lane for lane, _ in wanted], room)
        for lane, addressed in wanted:
            short = lane.waits_for_tail or lane.head_bytes < self.head_bytes_least()
            if not lane.stalled and (room or (short and not addressed)):
                self._reading = asyncio.create_task(
                    self._read(lane.priority, addressed), name="read-tail"
                )
                return

    def _note_stalled(self, lanes: list[Lane], room: bool) -> None:
        """Leave tails alone whose heads are full of messages that wait for their groups."""
        held_bytes_max = self._holding.limits.memory_bytes // 4 if room else self.head_bytes_least()
        for lane in lanes:
            was_stalled = lane.stalled
            lane.stalled = self._holding.queue.turnstile.is_crowded(lane, held_bytes_max)
            if lane.stalled and not was_stalled:
                # Others may have waited for this one.
                asyncio.get_running_loop().call_soon(self._came_back)

    async def _read(self, priority: int, addressed: bool) -> None:
        holding = self._holding
        lane = holding.queue.tails.lane(priority, addressed)
        part = 1 if holding.budget.has_room_for(HEAD_BYTES_LOW) else 8
        asked = (lane.tail_from, lane.tail_last)
        try:
            segments = await holding.store.read_lane(
                holding.info.queue_id,
                priority,
                addressed,
                *asked,
                CHUNK_SEGMENTS // part,
                HEAD_BYTES_LOW // part,
            )
        except TidegateError as failure:
            log.warning("cannot read the tail of %s yet: %s", holding.info.name, failure)
            await asyncio.sleep(0.2)
        else:
            if not segments and (lane.tail_from, lane.tail_last) == asked:
                # Nothing is there where we counted something: it was purged meanwhile.
                holding.queue.forget_tail(lane)
            elif not segments:
                # A new tail has begun behind what we asked for.
                holding.queue.skip_tail(lane, asked[1] + 1)
            elif lane.tail_count:
                holding.queue.bring_back(self._known(segments))
        finally:
            self._reading = None
        if not holding.fenced:
            self._came_back()
            self.fill_head()

    # Searching

    def search(
        self, reader: Reader, is_served: Callable[[], bool], not_found: Callable[[], None]
    ) -> None:
        """Look for what a reader wants until it is served, or there is nothing more to look at."""

        async def search() -> None:
            if reader.match is None:
                await self._pull_addressed(reader.client_id)
                while not is_served() and self._is_coming():
                    assert self._reading is not None
                    await asyncio.wait([self._reading])
            else:
                await self._pull_matches(reader, is_served)
                reader.horizon = EVERYTHING
            if not is_served():
                not_found()

        self._start(search())

    async def _pull_matches(self, reader: Reader, is_served: Callable[[], bool]) -> None:
        """In the reader's order, so that the first one found is the first one there is."""
        priorities: list[int | None] = [None]
        if reader.order is Order.PRIORITY:
            tails = self._holding.queue.tails.wanted(ALL_BYTES)
            priorities = [*sorted({lane.priority for lane, _ in tails}, reverse=True)]
        for priority in priorities:
            from_id = self._first_id(priority)
            while from_id is not None:
                found = await self._pull(from_id, reader.client_id, reader.match, priority)
                if found is None:
                    return
                is_last = len(found) < FOUND_SEGMENTS
                from_id = None if is_last else found[-1].open_end_id
                reader.horizon = (0 if priority is None else -priority, from_id or ALL_BYTES)
                if is_served():
                    return

    def _is_coming(self) -> bool:
        """Whether more of what is for anyone is on its way from the store."""
        if not self._holding.queue.tails.has_any_for_anyone:
            return False
        self.fill_head()
        return self._reading is not None

    async def more(self) -> bool:
        """Wait for what is on its way from the store; False when nothing is.

        For who found nothing to take. Whether something is in memory says nothing: it may be for
        somebody else, or behind what is still in the store.
        """
        if not self._is_coming():
            return False
        assert self._reading is not None
        await asyncio.wait([self._reading])
        return True

    async def more_of_all(self) -> bool:
        """The same for who takes what is addressed, too."""
        if not self._holding.queue.tails.count:
            return False
        self.fill_head()
        if self._reading is None:
            return False
        await asyncio.wait([self._reading])
        return True

    def search_for_receiver(self, client_id: int) -> None:
        """Bring back all that is addressed to a client that is here."""
        if (
            client_id in self._searched_for
            or self._holding.queue.tails.unsearched_from(client_id) is None
        ):
            return

        async def search() -> None:
            await self._pull_addressed(client_id)
            if not self._holding.fenced:
                self._came_back()

        self._searched_for.add(client_id)
        task = self._start(search())
        task.add_done_callback(lambda _: self._searched_for.discard(client_id))

    async def _pull_addressed(self, client_id: int) -> None:
        queue = self._holding.queue
        while (from_id := queue.tails.unsearched_from(client_id)) is not None:
            end = queue.tails.addressed_end
            found = await self._pull(from_id, client_id, None)
            if found is None:
                return
            if len(found) == FOUND_SEGMENTS:
                end = min(end, found[-1].open_end_id)
            queue.searched(client_id, end)

    def _first_id(self, priority: int | None) -> int | None:
        wanted = self._holding.queue.tails.wanted(ALL_BYTES)
        starts = [lane.tail_from for lane, _ in wanted if priority in (None, lane.priority)]
        return min(starts, default=None)

    async def _pull(
        self, from_id: int, client_id: int, match: Match | None, priority: int | None = None
    ) -> list[Segment] | None:
        """Pull what matches into memory; None when the store cannot be asked."""
        holding = self._holding
        try:
            segments = await holding.store.find_segments(
                holding.info.queue_id,
                from_id,
                client_id,
                None if match is None else match.sender,
                None if match is None else match.context,
                priority,
                FOUND_SEGMENTS,
            )
        except TidegateError as failure:
            log.warning("cannot search the tail of %s: %s", holding.info.name, failure)
            return None
        if holding.fenced:
            return None
        holding.queue.bring_back(self._known(segments), pulled=True)
        return segments

    def _start(self, search: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(search)
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)
        return task

    async def look(self, first_id: int, last_id: int) -> tuple[list[Segment], int]:
        """Segments of the store that hold these ids, and up to which id these are all."""
        holding = self._holding
        if not holding.queue.tails.has_between(first_id, last_id):
            return [], last_id
        found = await holding.store.read_between(
            holding.info.queue_id, first_id, last_id, CHUNK_SEGMENTS, HEAD_BYTES_LOW
        )
        # Cut short or not: nobody but the store knows, and it is asked again from there.
        through = min(max(found[-1].open_end_id - 1, first_id), last_id) if found else last_id
        return self._known(found), through

    async def pull_between(self, first_id: int, last_id: int) -> int:
        """Bring messages for anyone back by their ids, so many at a time; up to which id."""
        found, through = await self.look(first_id, last_id)
        if not self._holding.fenced:
            for_anyone = [segment for segment in found if segment.receivers is None]
            self._holding.queue.bring_back(for_anyone, pulled=True)
        return through

    def fenced(self) -> None:
        for task in (self._reading, *self._searches):
            if task is not None:
                task.cancel()
