"""Delayed messages: in memory when their time is near, else in the store only.

Everything up to a horizon, a pair of due time and id, is in memory. The rest is read from the store
in that order, well before it is due. A timer fires when the next message in memory is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidegate.core.errors import TidegateError
from tidegate.core.segment import Segment
from tidegate.node.holding import Holding

log = logging.getLogger(__name__)

CHUNK_SEGMENTS = 2000
CHUNK_BYTES = 4 * 1024 * 1024
# Messages that are due within this time are read even if memory is short.
NEAR_S = 5.0
# Longest timer: the wall clock may be set forward.
ALARM_S_MAX = 60.0
ALARM_S_MIN = 0.001
BEGINNING = (0.0, 0)
END = (float("inf"), 0)


class Later:
    """The delayed messages of one replica."""

    def __init__(
        self,
        holding: Holding,
        became_due: Callable[[], None],
        known: Callable[[list[Segment]], list[Segment]],
    ) -> None:
        self._holding = holding
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
        holding, delayed = self._holding, self._holding.queue.delayed
        delayed.in_store = await holding.store.count_due(holding.info.queue_id)
        if delayed.in_store:
            self._horizon = BEGINNING
            self.read_ahead()

    def add(self, segment: Segment) -> None:
        """Add a stored segment that is not due yet, in memory or beyond the horizon."""
        holding = self._holding
        key = _key(segment)
        if (
            holding.info.durable
            and key <= self._horizon
            and not holding.budget.has_room_for(segment.cost_bytes)
        ):
            # Memory is short: the messages that are due last stay in the store only.
            self._horizon = min(holding.queue.delayed.evict(), self._horizon)
        if key <= self._horizon:
            holding.queue.add_for_later(segment)
            self.set_alarm()
        else:
            holding.queue.delayed.in_store += segment.open
            if self._reading is not None:
                self._left_meanwhile.append(segment)

    # Timer

    def set_alarm(self) -> None:
        """Set the timer for the message that is due first."""
        holding = self._holding
        delayed, clock = holding.queue.delayed, holding.clock
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
        holding = self._holding
        if holding.fenced:
            return
        queue, clock = holding.queue, holding.clock
        if queue.release_due(clock.wall(), clock.monotonic()):
            self._became_due()
        self.set_alarm()
        self.read_ahead()

    # Reading from the store

    def read_ahead(self) -> None:
        """Start reading what is due soon, and more if memory has room."""
        holding = self._holding
        if not holding.queue.delayed.in_store or self._reading is not None or holding.fenced:
            return
        near = self._horizon[0] <= holding.clock.wall() + NEAR_S
        if near or (
            holding.budget.has_room_for(CHUNK_BYTES) and holding.queue.delayed.scheduled.count == 0
        ):
            self._reading = asyncio.create_task(self._read(), name="read-later")

    async def _read(self) -> None:
        holding = self._holding
        queue, delayed = holding.queue, holding.queue.delayed
        behind = self._horizon
        try:
            segments = await holding.store.read_due(
                holding.info.queue_id, behind, CHUNK_SEGMENTS, CHUNK_BYTES
            )
        except TidegateError as failure:
            log.warning("cannot read what is due in %s yet: %s", holding.info.name, failure)
            await asyncio.sleep(0.2)
        else:
            if holding.fenced or self._horizon != behind:
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

    def forget(self) -> None:
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
