"""A match: which messages a selective read wants."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.model import Order
from tidegate.queueing.lane import Lane
from tidegate.queueing.rank import Rank
from tidegate.queueing.span import Span

# A message by its rank, and where it lies: its lane, its span and its offset.
Found = tuple[Rank, Lane, Span, int]


class Match:
    """A sender, a context, or both."""

    __slots__ = ("asker", "context", "sender")

    def __init__(
        self,
        sender: int | None = None,
        context: int | None = None,
        asker: int | None = None,
    ) -> None:
        self.sender = sender
        self.context = context
        # Who waits for a reply: its own request has the same context, and is none.
        self.asker = asker

    def find(self, span: Span) -> int | None:
        """The offset of the first message of the span that matches."""
        segment = span.segment
        # Whole columns are searched at the speed of C before messages are looked at one by one.
        if self.sender is not None and self.sender not in segment.senders:
            return None
        if self.context is not None and self.context not in (segment.contexts or ()):
            return None
        for offset in range(span.low, span.high):
            if self.sender is not None and segment.sender(offset) != self.sender:
                continue
            if self.context is not None and segment.context(offset) != self.context:
                continue
            if (
                self.asker is not None
                and segment.receivers is None
                and segment.sender(offset) == self.asker
            ):
                continue
            return offset
        return None

    def first(self, lanes: Iterable[Lane], order: Order) -> Found | None:
        """The first message in order that matches, out of what these lanes have in memory."""
        best: Found | None = None
        for lane in lanes:
            for span in lane.spans():
                offset = self.find(span)
                if offset is None:
                    continue
                message_id = span.segment.first_id + offset
                rank = (-lane.priority if order is Order.PRIORITY else 0, message_id)
                if best is None or rank < best[0]:
                    best = (rank, lane, span, offset)
                break
        return best
