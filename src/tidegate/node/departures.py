"""Messages that leave a replica by another way than an acknowledgement.

The caller takes messages out and then reports the result with one of `stay`, `handed_over`, `left`
or `drop`. In between the messages are in the state `LEAVING`: no consumer gets them.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core.ports import Settlement
from tidegate.core.segment import Segment
from tidegate.node.dispatch import Dispatch
from tidegate.node.holding import Holding
from tidegate.node.lifecycle_watch import DROPPED, MOVED
from tidegate.node.settling import Settling
from tidegate.queueing.lifecycle import Event
from tidegate.queueing.span import Span


class Departures:
    """Takes messages out of one replica and records what became of them."""

    def __init__(self, holding: Holding, dispatch: Dispatch, settling: Settling) -> None:
        self._holding = holding
        self._dispatch = dispatch
        self._settling = settling
        # First ids of whole segments that are being transferred; a purge must leave them alone.
        self.segments: dict[int, Segment] = {}
        # Whether a transfer from here is unfinished, so that its messages are in no queue.
        self.has_open_moves = False

    def take_ready(self, count: int) -> list[Span]:
        """Take up to `count` unaddressed messages, oldest first."""
        spans = self._holding.queue.take_regardless(count)
        return [span.advance(Event.GIVEN_UP) for span in spans]

    def stay(self, spans: list[Span]) -> None:
        """Return messages to the queue that were taken out but did not leave."""
        self._no_longer_leaving(spans)
        if not self._holding.fenced:
            self._holding.queue.stay(spans)
            self._dispatch.serve_all()

    def take_segments(
        self, is_wanted: Callable[[Segment, bool], bool], count: int, bytes_max: int, ids_max: int
    ) -> list[list[Span]]:
        """Take whole segments, oldest first, for which `is_wanted` returns true.

        See `MessagesById.take_segments` for the limits.
        """
        chosen = self._holding.queue.contents.take_segments(is_wanted, count, bytes_max, ids_max)
        for spans in chosen:
            self.segments[spans[0].segment.first_id] = spans[0].segment
            for span in spans:
                span.advance(Event.GIVEN_UP)
        return chosen

    def _no_longer_leaving(self, spans: list[Span]) -> None:
        for span in spans:
            self.segments.pop(span.segment.first_id, None)

    def handed_over(self, chosen: list[list[Span]]) -> None:
        """Remove whole segments that another replica has now, after the transfer is on disk."""
        if self._holding.fenced:
            return
        spans = [span for pieces in chosen for span in pieces]
        self._no_longer_leaving(spans)
        self._holding.note_ended(spans, MOVED)
        for span in spans:
            self._holding.queue.done(span, Event.MOVED)
        self._holding.meters.handed_over.add(sum(map(len, spans)))
        self._dispatch.serve_all()
        self._holding.made_room()

    def settlement_of(self, spans: list[Span]) -> Settlement | None:
        """Return what to store when these messages leave; None for a transient queue."""
        if not self._holding.info.durable:
            return None
        settlement = Settlement(self._holding.info.queue_id, self._holding.epoch)
        leaving: dict[Segment, list[Span]] = {}
        for span in spans:
            leaving.setdefault(span.segment, []).append(span)
        for segment, pieces in leaving.items():
            if segment.open == sum(map(len, pieces)):
                settlement.finished.append(segment.first_id)
                if segment.failed is not None:
                    settlement.forgotten.append(segment.first_id)
            else:
                settlement.partly[segment.first_id] = [(span.low, span.high) for span in pieces]
        return settlement

    def left(self, spans: list[Span], settlement: Settlement | None, outcome: str) -> None:
        """Remove messages that have left, after their `settlement` is on disk."""
        if self._holding.fenced:
            return
        self._holding.note_ended(spans, outcome)
        written = set(settlement.finished) if settlement is not None else set()
        for span in spans:
            finished = self._holding.queue.done(span, Event.MOVED)
            # The rest of the segment may have been settled since `settlement` was made.
            if finished and span.segment.first_id not in written:
                self._settling.note_done(span, True)
        self._dispatch.serve_all()
        self._holding.made_room()

    def drop(self, spans: list[Span], outcome: str = DROPPED) -> None:
        """Settle messages that were given up and go nowhere, or are in their target already."""
        if self._holding.fenced:
            return
        self._holding.note_ended(spans, outcome)
        for span in spans:
            self._settling.note_done(span, self._holding.queue.done(span, Event.MOVED))
        self._holding.made_room()
