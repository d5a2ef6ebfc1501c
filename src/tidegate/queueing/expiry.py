"""Expiry of messages, by their own time to live or by the policy of their queue."""

from __future__ import annotations

from tidegate.core.segment import Segment
from tidegate.queueing.schedule import NEVER
from tidegate.queueing.span import Span


class Expiry:
    """Notes when the next message may expire, so that no scan runs before."""

    __slots__ = ("next_at", "ttl_s")

    def __init__(self) -> None:
        # When the first message in memory may expire.
        self.next_at = NEVER
        # Time to live of messages that have none of their own; None: unlimited.
        self.ttl_s: float | None = None

    def begin(self, segment: Segment) -> None:
        """Note the expiry of a segment that enters memory."""
        if self.ttl_s is not None:
            segment.expire_by_policy(self.ttl_s)
        if segment.expires_at is not None:
            self.next_at = min(self.next_at, segment.expires_at)

    def resume(self, segment: Segment) -> None:
        """Note the expiry of messages that are returned; leased ones are not scanned."""
        if segment.expires_at is not None:
            self.next_at = min(self.next_at, segment.expires_at)

    def ranges(self, span: Span, now: float) -> list[tuple[int, int]]:
        """Return the expired offsets of a span, and note the next expiry of the others."""
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
