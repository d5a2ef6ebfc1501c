"""Messages for later: in memory when their time is near, else in the store only.

Everything up to a horizon (a time, and an id for ties) is in memory. Beyond it the store is read
in that order, well before it is due. An alarm rings when the next message in memory is.
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
# What is due within this time is read from the store whatever memory says.
NEAR_S = 5.0
# An alarm is never set further than this: clocks are turned.
ALARM_S_MAX = 60.0
ALARM_S_MIN = 0.001
BEGINNING = (0.0, 0)
END = (float("inf"), 0)


class Later:
    """What of one replica waits for its time."""

    def __init__(
        self,
        holding: Holding,
        became_due: Callable[[], None],
        known: Callable[[list[Segment]], list[Segment]],
    ) -> None:
        self._holding = holding
        self._became_due = became_due
        # Without those that are stored this very moment: they come by themselves.
        self._known = known
        self._horizon: tuple[float, int] = END
        self._reading: asyncio.Task[None] | None = None
        # What was left to the store while it was being read, and may not have been found there.
        self._left_meanwhile: list[Segment] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")

    async def load(self) -> None:
        """Everything a new owner finds is in the store."""
        holding, delayed = self._holding, self._holding.queue.delayed
        delayed.in_store = await holding.store.count_due(holding.info.queue_id)
        if delayed.in_store:
            self._horizon = BEGINNING
            self.read_ahead()

    def add(self, segment: Segment) -> None:
        """A stored segment whose time has not come."""
        holding = self._holding
        key = _key(segment)
        if (
            holding.info.durable
            and key <= self._horizon
            and not holding.budget.has_room_for(segment.cost_bytes)
        ):
            # What is due last waits in the store only.
            self._horizon = min(holding.queue.delayed.evict(), self._horizon)
        if key <= self._horizon:
            holding.queue.add_for_later(segment)
            self.set_alarm()
        else:
            holding.queue.delayed.in_store += segment.open
            if self._reading is not None:
                self._left_meanwhile.append(segment)

    # The alarm

    def set_alarm(self) -> None:
        """Ring when the next message is due; none but the earliest counts."""
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
        """Let in what is due."""
        holding = self._holding
        if holding.fenced:
            return
        queue, clock = holding.queue, holding.clock
        if queue.release_due(clock.wall(), clock.monotonic()):
            self._became_due()
        self.set_alarm()
        self.read_ahead()

    # Beyond memory

    def read_ahead(self) -> None:
        """Bring back what is due soon, and more while there is room."""
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
                # Nothing is there where we counted something.
                delayed.in_store = sum(segment.open for segment in self._left_meanwhile)
            if not delayed.in_store:
                self._horizon = END
        finally:
            self._reading = None
            self._left_meanwhile = []
        self.release()

    def _with_what_was_left(self, segments: list[Segment]) -> list[Segment]:
        """What was read, and what was stored since among it: the horizon is about to pass it."""
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
        """Everything was purged."""
        self._horizon = END
        self._left_meanwhile = []

    def fenced(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._reading is not None:
            self._reading.cancel()


def _key(segment: Segment) -> tuple[float, int]:
    """Where a segment stands in the order in which they are due."""
    assert segment.due_at is not None
    return (segment.due_at, segment.first_id)
