"""Expiry: whose time is over, by what messages say themselves or by what their queue says."""

from __future__ import annotations

from tidegate.core.segment import Segment
from tidegate.queueing.schedule import NEVER
from tidegate.queueing.span import Span


class Expiry:
    """When to look again, so that nobody looks at messages whose time is not over."""

    __slots__ = ("next_at", "ttl_s")

    def __init__(self) -> None:
        # When the first message in memory may expire.
        self.next_at = NEVER
        # How long messages live that say nothing themselves.
        self.ttl_s: float | None = None

    def begin(self, segment: Segment) -> None:
        """A segment comes to memory."""
        if self.ttl_s is not None:
            segment.expire_by_policy(self.ttl_s)
        if segment.expires_at is not None:
            self.next_at = min(self.next_at, segment.expires_at)

    def resume(self, segment: Segment) -> None:
        """Something of it comes back: while it was held, nobody looked at its time."""
        if segment.expires_at is not None:
            self.next_at = min(self.next_at, segment.expires_at)

    def ranges(self, span: Span, now: float) -> list[tuple[int, int]]:
        """Offsets whose time is over; of the others the next expiry is noted."""
        segment = span.segment
        if segment.expires_at is None:
            return []
        if segment.expires_at > now:
            self.next_at = min(self.next_at, segment.expires_at)
            return []
        ranges: list[tuple[int, int]] = []
        for offset in range(span.low, span.high):
            expires_at = segment.expiry(offset)
            if expires_at is None:
                continue
            if expires_at > now:
                self.next_at = min(self.next_at, expires_at)
            elif ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
        return ranges
