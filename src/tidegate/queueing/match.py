"""Selection of messages by sender or context."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.model import Order
from tidegate.queueing.lane import Lane
from tidegate.queueing.rank import Rank
from tidegate.queueing.span import Span

# A message by its rank, and its position: lane, span and offset.
Found = tuple[Rank, Lane, Span, int]


class Match:
    """Selects messages by a sender, a context, or both."""

    __slots__ = ("asker", "context", "sender")

    def __init__(
        self,
        sender: int | None = None,
        context: int | None = None,
        asker: int | None = None,
    ) -> None:
        self.sender = sender
        self.context = context
        # The client that waits for a reply. Its own request has the same context and is no reply.
        self.asker = asker

    def find(self, span: Span) -> int | None:
        """Return the offset of the first matching message of the span; None if there is none."""
        segment = span.segment
        # Whole columns are searched in C first, since that is fast.
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
        """Return the first match in these lanes, in order; None if there is none."""
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
