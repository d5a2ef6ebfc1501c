"""Messages that wait for their time: put for later, or to be tried again later."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tidegate.queueing.span import Span

NEVER = float("inf")


class Schedule:
    """Spans by the time at which they are due, on whichever clock their owner reads."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        # Ids break ties, so what is due together comes in order; a span is in here once.
        self._heap: list[tuple[float, int, Span]] = []
        self.count = 0

    def add(self, due: float, span: Span) -> None:
        heapq.heappush(self._heap, (due, span.first_id, span))
        self.count += len(span)

    @property
    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def take_due(self, now: float) -> list[Span]:
        """What is due, which thereby leaves."""
        due: list[Span] = []
        while self._heap and self._heap[0][0] <= now:
            span = heapq.heappop(self._heap)[2]
            self.count -= len(span)
            due.append(span)
        return due

    def take_all(self) -> list[tuple[float, Span]]:
        """Everything with its time, in order, which thereby leaves."""
        heap, self._heap, self.count = self._heap, [], 0
        return [(due, span) for due, _, span in sorted(heap, key=lambda entry: entry[:2])]

    def __iter__(self) -> Iterator[Span]:
        return (span for _, _, span in self._heap)
