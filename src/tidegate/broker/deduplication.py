"""Which batches of which producer are stored, so that a batch is stored once.

A producer counts its batches up, so one number (the floor) covers all old ones. Producer ids below
0 mean queues in another store whose dead letters are copied here, in any order. For these no floor
can be assumed: a forgotten batch counts as not stored.
"""

from __future__ import annotations

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

    def forget(self, before: float) -> None:
        """Remove producers that have been silent since `before`."""
        self._marks = {p: mark for p, mark in self._marks.items() if mark.seen_at >= before}
