"""A span: adjacent messages of one segment in the same state.

Spans are the unit in which a queue works. Ten thousand fresh messages are a handful of spans; only
messages that are returned one by one are handled one by one.
"""

from __future__ import annotations

from tidegate.core.segment import Segment
from tidegate.queueing.lifecycle import Event, State, after


class Span:
    """Messages `low` to `high - 1` of a segment."""

    __slots__ = ("high", "low", "segment", "state")

    def __init__(self, segment: Segment, low: int, high: int, state: State) -> None:
        self.segment = segment
        self.low = low
        self.high = high
        self.state = state

    def __len__(self) -> int:
        return self.high - self.low

    def __repr__(self) -> str:
        return f"Span({self.first_id}+{len(self)}, {self.state.value})"

    @property
    def first_id(self) -> int:
        return self.segment.first_id + self.low

    @property
    def payload_bytes(self) -> int:
        return len(self.segment.body(self.low, self.high))

    def advance(self, event: Event) -> Span:
        self.state = after(self.state, event)
        return self

    def split(self, count: int) -> Span:
        """Cut off and return the first `count` messages; this span keeps the rest."""
        front = Span(self.segment, self.low, self.low + count, self.state)
        self.low += count
        return front

    def offsets_between(self, first_id: int, last_id: int) -> tuple[int, int]:
        """Return the offsets [low, high) of the span's messages with these ids."""
        starts = self.segment.first_id
        return max(self.low, first_id - starts), min(self.high, last_id + 1 - starts)

    def cut_out(self, low: int, high: int) -> tuple[Span | None, Span, Span | None]:
        """Return the parts before, inside and behind offsets `low` to `high - 1`; None: empty."""
        before = Span(self.segment, self.low, low, self.state) if low > self.low else None
        behind = Span(self.segment, high, self.high, self.state) if high < self.high else None
        return before, Span(self.segment, low, high, self.state), behind

    def parted(self, now: float) -> list[tuple[Span, bool]]:
        """Return the span in pieces, each with whether its messages have expired."""
        segment = self.segment
        if segment.expires_at is None or segment.expires_at > now:
            return [(self, False)]
        pieces: list[tuple[Span, bool]] = []
        for offset in range(self.low, self.high):
            expires_at = segment.expiry(offset)
            is_over = expires_at is not None and expires_at <= now
            if pieces and pieces[-1][1] is is_over:
                pieces[-1][0].high = offset + 1
            else:
                pieces.append((Span(segment, offset, offset + 1, self.state), is_over))
        return pieces
