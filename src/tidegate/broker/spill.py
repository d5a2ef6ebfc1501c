"""Reads back messages that are in the store only, before their turn.

Theory of operation

If memory is short, the queue keeps only the head of each lane in memory; the rest (the tail) is in
the store. `fill_head` reads the front of a tail in chunks whenever a head is shorter than
`HEAD_BYTES_LOW`. One such read runs at a time.

Reads that select messages, and receivers of addressed messages, cannot wait for the front of a
tail. For them the store is searched, and matching segments are pulled out of the middle of the
tail. `SpilledRanges` notes pulled segments, so that they are not added again when the front reaches
them.

A segment that is being committed right now may be found in the store before its writer admits it.
`known` filters these.

A lane is stalled if its head consists of messages that wait for earlier ones of their groups.
Reading more would only fill the memory, so its tail is left alone until one of them is done.

Failures: if the store does not answer, a read is repeated after 0.2 s and a search gives up; the
next event starts it again. A purge or another owner may have removed what was counted: the tail is
then shortened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from tidegate.core.errors import TidegateError
from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.queueing.lanes import Lane
from tidegate.queueing.queue import MessageSelector
from tidegate.queueing.spans import AFTER_ALL

if TYPE_CHECKING:
    from tidegate.broker.context import ReplicaContext
    from tidegate.broker.dispatch import PendingRead


log = logging.getLogger(__name__)

# A head with fewer bytes is filled up, in chunks of this size.
HEAD_BYTES_LOW = 4 * 1024 * 1024
SPILL_CHUNK_SEGMENTS = 4000
# Segments that one search reads.
FOUND_SEGMENTS = 16
ALL_BYTES = 1 << 62


class SpillReader:
    """Reads the tails of one replica."""

    def __init__(
        self,
        context: ReplicaContext,
        came_back: Callable[[], None],
        known: Callable[[list[Segment]], list[Segment]],
    ) -> None:
        self._context = context
        self._came_back = came_back
        # Removes segments that are being stored right now: their writer admits them.
        self._known = known
        self._reading: asyncio.Task[None] | None = None
        self._searches: set[asyncio.Task[None]] = set()
        # Receivers for which a search is running.
        self._searched_for: set[int] = set()

    async def load(self) -> None:
        """Count what the store has, as tails; called when the queue has been claimed."""
        context = self._context
        for lane in await context.store.lanes(context.info.queue_id):
            context.queue.spilled.lane(lane.priority, lane.addressed).expect_tail(
                lane.first_id, lane.last_id, lane.count, lane.payload_bytes, lane.arrived_at
            )
        self.fill_head()

    def head_bytes_least(self) -> int:
        """Return the bytes that a queue may keep in memory however full the node is."""
        return min(HEAD_BYTES_LOW // 4, self._context.limits.memory_bytes // 64)

    def fill_head(self) -> None:
        """Start reading the front of a tail if a head is short."""
        context = self._context
        if self._reading is not None or context.fenced:
            return
        wanted = context.queue.spilled.wanted(HEAD_BYTES_LOW)
        room = context.budget.has_room_for(HEAD_BYTES_LOW)
        self._note_stalled([lane for lane, _ in wanted], room)
        for lane, addressed in wanted:
            short = lane.waits_for_tail or lane.head_bytes < self.head_bytes_least()
            if not lane.stalled and (room or (short and not addressed)):
                self._reading = asyncio.create_task(
                    self._read(lane.priority, addressed), name="read-tail"
                )
                return

    def _note_stalled(self, lanes: list[Lane], room: bool) -> None:
        """Mark lanes as stalled whose heads are full of messages that wait for their groups."""
        held_bytes_max = self._context.limits.memory_bytes // 4 if room else self.head_bytes_least()
        for lane in lanes:
            was_stalled = lane.stalled
            lane.stalled = self._context.queue.group_gate.is_crowded(lane, held_bytes_max)
            if lane.stalled and not was_stalled:
                # Clients may have waited for this tail. Without it they can get later messages.
                asyncio.get_running_loop().call_soon(self._came_back)

    async def _read(self, priority: int, addressed: bool) -> None:
        context = self._context
        lane = context.queue.spilled.lane(priority, addressed)
        part = 1 if context.budget.has_room_for(HEAD_BYTES_LOW) else 8
        asked = (lane.tail_from, lane.tail_last)
        try:
            segments = await context.store.read_lane(
                context.info.queue_id,
                priority,
                addressed,
                *asked,
                SPILL_CHUNK_SEGMENTS // part,
                HEAD_BYTES_LOW // part,
            )
        except TidegateError as failure:
            log.warning("cannot read the tail of %s yet: %s", context.info.name, failure)
            await asyncio.sleep(0.2)
        else:
            if not segments and (lane.tail_from, lane.tail_last) == asked:
                # The store has nothing where messages were counted: they were purged meanwhile.
                context.queue.forget_tail(lane)
            elif not segments:
                # A new tail has begun behind the requested ids.
                context.queue.skip_tail(lane, asked[1] + 1)
            elif lane.tail_count:
                context.queue.bring_back(self._known(segments))
        finally:
            self._reading = None
        if not context.fenced:
            self._came_back()
            self.fill_head()

    # Searching

    def search(
        self, reader: PendingRead, is_served: Callable[[], bool], not_found: Callable[[], None]
    ) -> None:
        """Search the store for a read until it is answered or nothing is left to search."""

        async def search() -> None:
            if reader.match is None:
                await self._pull_addressed(reader.client_id)
                while not is_served() and self._is_coming():
                    assert self._reading is not None
                    await asyncio.wait([self._reading])
            else:
                await self._pull_matches(reader, is_served)
                reader.horizon = AFTER_ALL
            if not is_served():
                not_found()

        self._start(search())

    async def _pull_matches(self, reader: PendingRead, is_served: Callable[[], bool]) -> None:
        """Pull matches in the order of the read, so that the first one found is the right one."""
        priorities: list[int | None] = [None]
        if reader.order is Order.PRIORITY:
            tails = self._context.queue.spilled.wanted(ALL_BYTES)
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
        """Start reading for any client if needed; return whether a read is running."""
        if not self._context.queue.spilled.has_any_for_anyone:
            return False
        self.fill_head()
        return self._reading is not None

    async def more(self) -> bool:
        """Wait for the next chunk for any client; False if nothing is left in the store.

        Callers use it after they found nothing to take. That memory is not empty does not help
        them: its messages may be for another client, or behind those in the store.
        """
        if not self._is_coming():
            return False
        assert self._reading is not None
        await asyncio.wait([self._reading])
        return True

    async def more_of_all(self) -> bool:
        """Wait for the next chunk of any tail, addressed or not; False if nothing is left."""
        if not self._context.queue.spilled.count:
            return False
        self.fill_head()
        if self._reading is None:
            return False
        await asyncio.wait([self._reading])
        return True

    def search_for_receiver(self, client_id: int) -> None:
        """Pull all messages that are addressed to a client."""
        if (
            client_id in self._searched_for
            or self._context.queue.spilled.unsearched_from(client_id) is None
        ):
            return

        async def search() -> None:
            await self._pull_addressed(client_id)
            if not self._context.fenced:
                self._came_back()

        self._searched_for.add(client_id)
        task = self._start(search())
        task.add_done_callback(lambda _: self._searched_for.discard(client_id))

    async def _pull_addressed(self, client_id: int) -> None:
        queue = self._context.queue
        while (from_id := queue.spilled.unsearched_from(client_id)) is not None:
            end = queue.spilled.addressed_end
            found = await self._pull(from_id, client_id, None)
            if found is None:
                return
            if len(found) == FOUND_SEGMENTS:
                end = min(end, found[-1].open_end_id)
            queue.searched(client_id, end)

    def _first_id(self, priority: int | None) -> int | None:
        wanted = self._context.queue.spilled.wanted(ALL_BYTES)
        starts = [lane.tail_from for lane, _ in wanted if priority in (None, lane.priority)]
        return min(starts, default=None)

    async def _pull(
        self,
        from_id: int,
        client_id: int,
        match: MessageSelector | None,
        priority: int | None = None,
    ) -> list[Segment] | None:
        """Pull matching segments into memory and return them; None if the store does not answer."""
        context = self._context
        try:
            segments = await context.store.find_segments(
                context.info.queue_id,
                from_id,
                client_id,
                None if match is None else match.sender,
                None if match is None else match.context,
                priority,
                FOUND_SEGMENTS,
            )
        except TidegateError as failure:
            log.warning("cannot search the tail of %s: %s", context.info.name, failure)
            return None
        if context.fenced:
            return None
        context.queue.bring_back(self._known(segments), pulled=True)
        return segments

    def _start(self, search: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(search)
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)
        return task

    async def read(self, first_id: int, last_id: int) -> tuple[list[Segment], int]:
        """Read segments with these ids from the store without adding them to the queue.

        Returns them and the id up to which they are complete.
        """
        context = self._context
        if not context.queue.spilled.has_between(first_id, last_id):
            return [], last_id
        found = await context.store.read_between(
            context.info.queue_id, first_id, last_id, SPILL_CHUNK_SEGMENTS, HEAD_BYTES_LOW
        )
        # Only the store knows whether the result was cut short. The next call asks from there on.
        through = min(max(found[-1].open_end_id - 1, first_id), last_id) if found else last_id
        return self._known(found), through

    async def pull_between(self, first_id: int, last_id: int) -> int:
        """Pull one chunk of unaddressed messages with these ids into memory.

        Returns the id up to which the chunk is complete.
        """
        found, through = await self.read(first_id, last_id)
        if not self._context.fenced:
            for_anyone = [segment for segment in found if segment.receivers is None]
            self._context.queue.bring_back(for_anyone, pulled=True)
        return through

    def fenced(self) -> None:
        for task in (self._reading, *self._searches):
            if task is not None:
                task.cancel()


# Delayed messages: in memory when their time is near, else in the store only.
#
# Everything up to a horizon, a pair of due time and id, is in memory. The rest is read from the
# store in that order, well before it is due. A timer fires when the next message in memory is due.


DELAYED_CHUNK_SEGMENTS = 2000
DELAYED_CHUNK_BYTES = 4 * 1024 * 1024
# Messages that are due within this time are read even if memory is short.
NEAR_S = 5.0
# Longest timer: the wall clock may be set forward.
ALARM_S_MAX = 60.0
ALARM_S_MIN = 0.001
BEGINNING = (0.0, 0)
END = (float("inf"), 0)


class DelayedReader:
    """The delayed messages of one replica."""

    def __init__(
        self,
        context: ReplicaContext,
        became_due: Callable[[], None],
        known: Callable[[list[Segment]], list[Segment]],
    ) -> None:
        self._context = context
        self._became_due = became_due
        # Removes segments that are being stored right now: their writer adds them.
        self._known = known
        self._horizon: tuple[float, int] = END
        self._reading: asyncio.Task[None] | None = None
        # Segments that were left in the store while it was being read. The read may have missed
        # them.
        self._left_meanwhile: list[Segment] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")

    async def load(self) -> None:
        """Count what the store has; called when the queue has been claimed."""
        context, delayed = self._context, self._context.queue.delayed
        delayed.in_store = await context.store.count_due(context.info.queue_id)
        if delayed.in_store:
            self._horizon = BEGINNING
            self.read_ahead()

    def add(self, segment: Segment) -> None:
        """Add a stored segment that is not due yet, in memory or beyond the horizon."""
        context = self._context
        key = _key(segment)
        if (
            context.info.durable
            and key <= self._horizon
            and not context.budget.has_room_for(segment.cost_bytes)
        ):
            # Memory is short: the messages that are due last stay in the store only.
            self._horizon = min(context.queue.delayed.evict(), self._horizon)
        if key <= self._horizon:
            context.queue.add_for_later(segment)
            self.set_alarm()
        else:
            context.queue.delayed.in_store += segment.open
            if self._reading is not None:
                self._left_meanwhile.append(segment)

    # Timer

    def set_alarm(self) -> None:
        """Set the timer for the message that is due first."""
        context = self._context
        delayed, clock = context.queue.delayed, context.clock
        wait_s = min(
            delayed.scheduled.next_due - clock.wall(),
            delayed.retrying.next_due - clock.monotonic(),
            ALARM_S_MAX,
        )
        if wait_s == ALARM_S_MAX and not delayed.scheduled.count and not delayed.retrying.count:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(wait_s, ALARM_S_MIN)
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.release()

    def release(self) -> None:
        """Make due messages ready, then set the timer and read ahead."""
        context = self._context
        if context.fenced:
            return
        queue, clock = context.queue, context.clock
        if queue.release_due(clock.wall(), clock.monotonic()):
            self._became_due()
        self.set_alarm()
        self.read_ahead()

    # Reading from the store

    def read_ahead(self) -> None:
        """Start reading what is due soon, and more if memory has room."""
        context = self._context
        if not context.queue.delayed.in_store or self._reading is not None or context.fenced:
            return
        near = self._horizon[0] <= context.clock.wall() + NEAR_S
        if near or (
            context.budget.has_room_for(DELAYED_CHUNK_BYTES)
            and context.queue.delayed.scheduled.count == 0
        ):
            self._reading = asyncio.create_task(self._read(), name="read-later")

    async def _read(self) -> None:
        context = self._context
        queue, delayed = context.queue, context.queue.delayed
        behind = self._horizon
        try:
            segments = await context.store.read_due(
                context.info.queue_id, behind, DELAYED_CHUNK_SEGMENTS, DELAYED_CHUNK_BYTES
            )
        except TidegateError as failure:
            log.warning("cannot read what is due in %s yet: %s", context.info.name, failure)
            await asyncio.sleep(0.2)
        else:
            if context.fenced or self._horizon != behind:
                return
            for segment in self._known(self._with_what_was_left(segments)):
                delayed.in_store = max(delayed.in_store - segment.open, 0)
                queue.add_for_later(segment)
                self._horizon = _key(segment)
            if not segments:
                # The store has nothing where messages were counted.
                delayed.in_store = sum(segment.open for segment in self._left_meanwhile)
            if not delayed.in_store:
                self._horizon = END
        finally:
            self._reading = None
            self._left_meanwhile = []
        self.release()

    def _with_what_was_left(self, segments: list[Segment]) -> list[Segment]:
        """Return `segments` and the segments among them that were stored during the read.

        The horizon moves past them, so they would not be read again.
        """
        if not segments or not self._left_meanwhile:
            return segments
        last = _key(segments[-1])
        found = {segment.first_id for segment in segments}
        missed = [
            segment
            for segment in self._left_meanwhile
            if segment.first_id not in found and _key(segment) < last
        ]
        return sorted([*segments, *missed], key=_key)

    def clear(self) -> None:
        """Reset after a purge."""
        self._horizon = END
        self._left_meanwhile = []

    def fenced(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._reading is not None:
            self._reading.cancel()


def _key(segment: Segment) -> tuple[float, int]:
    """Return the position of a segment in the order of due times."""
    assert segment.due_at is not None
    return (segment.due_at, segment.first_id)
