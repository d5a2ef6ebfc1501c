"""Deduplication of messages by their dedup id.

An id is stored, under way, or unknown. A message whose id is under way has to wait, since the
commit may still fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidegate.core.errors import Unavailable
from tidegate.core.model import Attributes

if TYPE_CHECKING:
    from tidegate.broker.context import ReplicaContext


# The dedup ids that were stored within the deduplication window.


class DedupWindow:
    """Dedup ids with the monotonic time at which they were stored, oldest first."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def load(self, ages_s: dict[str, float], now: float) -> None:
        """Add ids that another node or part has stored, `ages_s` seconds ago.

        Of two times of one id the later one counts.
        """
        seen = self._seen
        news: dict[str, float] = {}
        for dedup_id, age_s in ages_s.items():
            if dedup_id not in seen or seen[dedup_id] < now - age_s:
                seen.pop(dedup_id, None)
                news[dedup_id] = now - age_s
        if not news:
            return
        # Most new ids are about as young as the newest known ones. Only these are sorted again.
        oldest = min(news.values())
        while seen and next(reversed(seen.values())) > oldest:
            dedup_id, seen_at = seen.popitem()
            news[dedup_id] = seen_at
        seen.update(sorted(news.items(), key=lambda item: item[1]))

    def has(self, dedup_id: str, now: float, window_s: float) -> bool:
        seen = self._seen.get(dedup_id)
        return seen is not None and now - seen < window_s

    def add(self, dedup_ids: list[str], now: float) -> None:
        for dedup_id in dedup_ids:
            # Removed first, so that the ids stay in order of time.
            self._seen.pop(dedup_id, None)
            self._seen[dedup_id] = now

    def expire(self, now: float, window_s: float) -> None:
        """Remove ids that are older than the window."""
        seen = self._seen
        while seen:
            oldest = next(iter(seen))
            if now - seen[oldest] < window_s:
                return
            del seen[oldest]


class Deduplication:
    """The dedup ids of one replica."""

    __slots__ = ("_context", "_decided", "stored", "under_way")

    def __init__(self, context: ReplicaContext, decided: Callable[[], None]) -> None:
        self._context = context
        # Called when the result of ids under way is known.
        self._decided = decided
        self.stored = DedupWindow()
        # Ids of messages that are being stored.
        self.under_way: set[str] = set()

    async def learn(self) -> None:
        """Read the ids that were stored within the window, by this replica or by former ones."""
        context = self._context
        ages_s = await context.store.dedup_ids(context.info.queue_id, context.policy.dedup_window_s)
        self.stored.load(ages_s, context.clock.monotonic())

    def expire(self) -> None:
        """Remove ids that were stored before the window."""
        context = self._context
        self.stored.expire(context.clock.monotonic(), context.policy.dedup_window_s)

    def duplicates(
        self, attributes: Sequence[Attributes | None] | None, seen: set[str]
    ) -> set[int]:
        """Return the offsets of messages whose ids are stored or occur in `seen`.

        Adds all ids to `seen`. Raises `Unavailable` if an id is under way.
        """
        context = self._context
        monotonic, window_s = context.clock.monotonic(), context.policy.dedup_window_s
        found: set[int] = set()
        for offset, each in enumerate(attributes or ()):
            dedup_id = None if each is None else each.dedup_id
            if dedup_id is None:
                continue
            if dedup_id in self.under_way:
                raise Unavailable(f"a message with dedup id {dedup_id!r} is on its way: try again")
            if dedup_id in seen or self.stored.has(dedup_id, monotonic, window_s):
                found.add(offset)
            seen.add(dedup_id)
        context.meters.deduplicated.add(len(found))
        return found

    def settled(self, dedup_ids: Iterable[str]) -> None:
        """Note that these ids are no longer under way, and resume batches that waited for them."""
        self.under_way.difference_update(dedup_ids)
        self._decided()


# Which batches of which producer are stored, so that a batch is stored once.
#
# A producer counts its batches up, so one number (the floor) covers all old ones. Producer ids
# below 0 mean queues in another store whose dead letters are copied here, in any order. For these
# no floor can be assumed: a forgotten batch counts as not stored.


# Batches above the floor that are kept apart. A producer has far fewer under way, so older ones are
# decided. A producer that puts to several queues leaves gaps that are never filled.
ABOVE_MAX = 1024
# Batches in any order that are kept, several times as many as are copied at once. A forgotten one
# is copied twice at worst, if the node died while copying. A wrongly assumed one would be lost.
ANY_ORDER_MAX = 4096


class ProducerMark:
    """Stored batch numbers of a producer: all up to `floor`, and some above."""

    __slots__ = ("above", "floor", "seen_at")

    def __init__(self) -> None:
        self.seen_at = 0.0
        self.floor = 0
        self.above: set[int] = set()

    def __contains__(self, batch: int) -> bool:
        return batch <= self.floor or batch in self.above

    def load(self, ranges: list[tuple[int, int]]) -> None:
        """Add the ranges [low, high) that the store has, in order."""
        for low, high in ranges:
            if low <= 1:
                self.floor = high - 1
                continue
            for batch in range(low, high):
                self.add(batch)

    def add(self, batch: int) -> None:
        above = self.above
        above.add(batch)
        while self.floor + 1 in above:
            self.floor += 1
            above.discard(self.floor)
        if len(above) > ABOVE_MAX:
            self.floor = sorted(above)[ABOVE_MAX // 2]
            self.above = {batch for batch in above if batch > self.floor}


class AnyOrderMark:
    """Stored batch numbers without an order; the oldest are forgotten."""

    __slots__ = ("_batches", "seen_at")

    def __init__(self) -> None:
        self.seen_at = 0.0
        self._batches: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, batch: int) -> bool:
        return batch in self._batches

    def load(self, ranges: list[tuple[int, int]]) -> None:
        """Add the ranges [low, high) that the store has, the highest numbers as the newest.

        The store does not keep the order in which they came.
        """
        highest: list[int] = []
        for low, high in reversed(ranges):
            room = ANY_ORDER_MAX - len(highest)
            highest.extend(range(high - 1, max(low, high - room) - 1, -1))
        for batch in reversed(highest):
            self.add(batch)

    def add(self, batch: int) -> None:
        # Removed first, so that the numbers stay in order of time.
        self._batches.pop(batch, None)
        self._batches[batch] = None
        if len(self._batches) > ANY_ORDER_MAX:
            del self._batches[next(iter(self._batches))]


class ProducerMarks:
    """The marks of one queue. The store has the same, written with the messages."""

    __slots__ = ("_marks",)

    def __init__(
        self, stored: dict[int, list[tuple[int, int]]] | None = None, now: float = 0.0
    ) -> None:
        self._marks: dict[int, ProducerMark | AnyOrderMark] = {}
        for producer, ranges in (stored or {}).items():
            mark = self._mark_of(producer)
            mark.seen_at = now
            mark.load(ranges)

    def _mark_of(self, producer: int) -> ProducerMark | AnyOrderMark:
        mark = self._marks.get(producer)
        if mark is None:
            mark = self._marks[producer] = AnyOrderMark() if producer < 0 else ProducerMark()
        return mark

    def has(self, producer: int, batch: int) -> bool:
        mark = self._marks.get(producer)
        return mark is not None and batch in mark

    def add(self, producer: int, batch: int, now: float) -> None:
        mark = self._mark_of(producer)
        mark.seen_at = now
        mark.add(batch)

    def expire(self, before: float) -> None:
        """Remove producers that have been silent since `before`."""
        self._marks = {p: mark for p, mark in self._marks.items() if mark.seen_at >= before}


# Requests under way by producer and batch.
#
# A client whose connection broke sends its request again. The second one must share the result of
# the first one, and not run beside it.


Result = TypeVar("Result")


class InFlightRequests(Generic[Result]):
    """Runs one request for each key at a time; equal requests share its result."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[int, int], asyncio.Task[Result]] = {}

    async def run(
        self, key: tuple[int, int], work: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(work())
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        # The request runs to its end even if its caller is cancelled.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel the requests under way; the store knows which of them were done."""
        under_way = list(self._under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
