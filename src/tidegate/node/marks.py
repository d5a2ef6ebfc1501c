"""Which batches of which producer are stored: the memory behind "stored once"."""

from __future__ import annotations

# Batches above the floor that are kept apart. A producer has far fewer in flight, so what
# is older is settled; a producer that puts to several queues leaves gaps for ever.
ABOVE_MAX = 1024


class ProducerMark:
    """Batch numbers that are stored: all up to `floor`, and some above."""

    __slots__ = ("above", "floor", "seen_at")

    def __init__(self) -> None:
        self.seen_at = 0.0
        self.floor = 0
        self.above: set[int] = set()

    def __contains__(self, batch: int) -> bool:
        return batch <= self.floor or batch in self.above

    def add(self, batch: int) -> None:
        above = self.above
        above.add(batch)
        while self.floor + 1 in above:
            self.floor += 1
            above.discard(self.floor)
        if len(above) > ABOVE_MAX:
            self.floor = sorted(above)[ABOVE_MAX // 2]
            self.above = {batch for batch in above if batch > self.floor}


class ProducerMarks:
    """The marks of one queue. The store has the same, written with the messages."""

    __slots__ = ("_marks",)

    def __init__(
        self, stored: dict[int, list[tuple[int, int]]] | None = None, now: float = 0.0
    ) -> None:
        self._marks: dict[int, ProducerMark] = {}
        for producer, ranges in (stored or {}).items():
            for low, high in ranges:
                mark = self._marks.setdefault(producer, ProducerMark())
                mark.seen_at = now
                if low <= 1:
                    mark.floor = high - 1
                    continue
                for batch in range(low, high):
                    mark.add(batch)

    def has(self, producer: int, batch: int) -> bool:
        mark = self._marks.get(producer)
        return mark is not None and batch in mark

    def add(self, producer: int, batch: int, now: float) -> None:
        mark = self._marks.get(producer)
        if mark is None:
            mark = self._marks[producer] = ProducerMark()
        mark.seen_at = now
        mark.add(batch)

    def forget(self, before: float) -> None:
        """Producers that have been silent for longer than the window."""
        self._marks = {p: mark for p, mark in self._marks.items() if mark.seen_at >= before}
