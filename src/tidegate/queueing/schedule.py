"""Messages by the time at which they are due."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tidegate.queueing.span import Span

NEVER = float("inf")


class Schedule:
    """Spans by due time, on the clock that the caller reads."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        # Ids break ties, so that messages due together come in order. A span is here only once.
        self._heap: list[tuple[float, int, Span]] = []
        self.count = 0

    def add(self, due: float, span: Span) -> None:
        heapq.heappush(self._heap, (due, span.first_id, span))
        self.count += len(span)

    @property
    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def take_due(self, now: float) -> list[Span]:
        """Take the spans that are due."""
        due: list[Span] = []
        while self._heap and self._heap[0][0] <= now:
            span = heapq.heappop(self._heap)[2]
            self.count -= len(span)
            due.append(span)
        return due

    def take_all(self) -> list[tuple[float, Span]]:
        """Take all spans with their due times, in order."""
        heap, self._heap, self.count = self._heap, [], 0
        return [(due, span) for due, _, span in sorted(heap, key=lambda entry: entry[:2])]

    def __iter__(self) -> Iterator[Span]:
        return (span for _, _, span in self._heap)
