"""Messages of a replica that leave it for another queue, or for good.

Whoever takes them out says what has become of them: they stay, they have left, or they are another
queue's. In between they are nobody's.
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
    """What leaves one replica by other ways than an acknowledgement."""

    def __init__(self, holding: Holding, dispatch: Dispatch, settling: Settling) -> None:
        self._holding = holding
        self._dispatch = dispatch
        self._settling = settling
        # First ids of whole segments on their way to another queue: a purge leaves them alone.
        self.segments: dict[int, Segment] = {}
        # Whether something that was to leave is neither here nor there, as far as is known.
        self.has_open_moves = False

    def take_ready(self, count: int) -> list[Span]:
        """Up to `count` messages for anyone, the oldest first, which thereby are nobody's."""
        spans = self._holding.queue.take_regardless(count)
        return [span.advance(Event.GIVEN_UP) for span in spans]

    def stay(self, spans: list[Span]) -> None:
        """Messages that were to leave do not."""
        self._no_longer_leaving(spans)
        if not self._holding.fenced:
            self._holding.queue.stay(spans)
            self._dispatch.serve_all()

    def take_segments(
        self, is_wanted: Callable[[Segment, bool], bool], count: int, bytes_max: int, ids_max: int
    ) -> list[list[Span]]:
        """Whole segments, the oldest first, which thereby are nobody's."""
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
        """Whole segments are another queue's now, and that is on disk."""
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
        """What to write when these messages leave; None when nothing of them is in the store."""
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
        """They have left, and that is on disk."""
        if self._holding.fenced:
            return
        self._holding.note_ended(spans, outcome)
        written = set(settlement.finished) if settlement is not None else set()
        for span in spans:
            finished = self._holding.queue.done(span, Event.MOVED)
            # The others of its segment may have been settled meanwhile.
            if finished and span.segment.first_id not in written:
                self._settling.note_done(span, True)
        self._dispatch.serve_all()
        self._holding.made_room()

    def drop(self, spans: list[Span], outcome: str = DROPPED) -> None:
        """Messages that were given up, and have nowhere to go, or are there already."""
        if self._holding.fenced:
            return
        self._holding.note_ended(spans, outcome)
        for span in spans:
            self._settling.note_done(span, self._holding.queue.done(span, Event.MOVED))
        self._holding.made_room()
