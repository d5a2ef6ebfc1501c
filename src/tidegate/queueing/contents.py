"""Access to the messages in memory by their ids, whether ready or waiting for their group."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice

from tidegate.core.id_ranges import Range, holds
from tidegate.core.segment import Segment
from tidegate.queueing.lane import NO_ID
from tidegate.queueing.lanes import Lanes
from tidegate.queueing.receiver import ANYONE, receiver_of
from tidegate.queueing.row import between, span_first_id
from tidegate.queueing.span import Span
from tidegate.queueing.turnstile import Turnstile

# Spans that one call examines before the event loop runs; some milliseconds.
_SPANS_LOOKED_AT = 5000


class Contents:
    """Browses messages without moving them, and takes them out regardless of their order."""

    __slots__ = ("_lanes", "_turnstile")

    def __init__(self, lanes: Lanes, turnstile: Turnstile) -> None:
        self._lanes = lanes
        self._turnstile = turnstile

    # Reading

    def oldest(self) -> Segment | None:
        """Return the oldest segment in memory with a ready message; None if there is none."""
        heads = [lane.oldest for lane in self._lanes if lane.count]
        all_groups = self._turnstile.by_receiver.values()
        heads += [span for groups in all_groups if (span := groups.oldest) is not None]
        return min(heads, key=span_first_id).segment if heads else None

    def browse(
        self,
        limit: int,
        first_id: int = 0,
        last_id: int = NO_ID,
        *,
        for_anyone: bool = False,
        spans_max: int | None = None,
    ) -> list[Span]:
        """Return up to `limit` ready messages with these ids, in order, without moving them."""
        seen: list[Span] = []
        if first_id > last_id:
            return seen
        # Only as many spans as needed are examined, however many messages wait.
        for span in islice(self._between(first_id, last_id, for_anyone), spans_max):
            if limit <= 0:
                break
            low, high = span.offsets_between(first_id, last_id)
            high = min(high, low + limit)
            seen.append(Span(span.segment, low, high, span.state))
            limit -= high - low
        return seen

    def segments(self) -> Iterator[Segment]:
        """Yield the segments with messages that are ready or wait for their group, in order."""
        for segment, _ in groupby(self._between(0, NO_ID, False), key=lambda span: span.segment):
            yield segment

    def _between(self, first_id: int, last_id: int, for_anyone: bool) -> Iterator[Span]:
        """Yield the spans that hold these ids, in order."""
        receivers = [ANYONE] if for_anyone else list(self._lanes.by_receiver)
        rows: list[Iterable[Span]] = [
            between(row, first_id, last_id)
            for each in receivers
            for lane in self._lanes.by_receiver[each].values()
            for row in lane.rows()
        ]
        rows += [
            sorted(
                (span for span in groups if first_id <= span.first_id <= last_id), key=span_first_id
            )
            for each, groups in self._turnstile.by_receiver.items()
            if each in receivers
        ]
        return heapq.merge(*rows, key=span_first_id)

    # Taking

    def take_between(self, ranges: list[Range]) -> list[Span]:
        """Take the unaddressed messages with these ids.

        The ranges are in order and do not touch.
        """
        if not ranges:
            return []
        waiting = self._turnstile.waiting(ANYONE)
        taken = [span for span in waiting if holds(ranges, span.first_id)]
        for span in taken:
            self._turnstile.remove(ANYONE, span)
        return taken + self._lanes.take_between(ranges)

    def take_segments(
        self, is_wanted: Callable[[Segment, bool], bool], count: int, bytes_max: int, ids_max: int
    ) -> list[list[Span]]:
        """Take whole segments that are wanted, oldest first. Whole: all open messages are ready.

        `is_wanted` is asked about every segment in order, with whether it is whole. Returns the
        spans of each taken segment. The last one may exceed `count` and `bytes_max`. The segments
        together have at most `ids_max` messages, where done messages count too.
        """
        chosen: list[list[Span]] = []
        looked_at = islice(self._between(0, NO_ID, False), _SPANS_LOOKED_AT)
        for segment, pieces in groupby(looked_at, key=lambda span: span.segment):
            spans = list(pieces)
            is_whole = sum(map(len, spans)) == segment.open
            if not is_wanted(segment, is_whole) or not is_whole:
                continue
            if segment.count > ids_max:
                break
            ids_max -= segment.count
            count -= segment.open
            bytes_max -= segment.payload_bytes
            chosen.append(spans)
            if count <= 0 or bytes_max <= 0:
                break
        for spans in chosen:
            for span in spans:
                self._withdraw(span)
        return chosen

    def _withdraw(self, span: Span) -> None:
        """Take a ready span out of its lane or out of the group gate."""
        receiver = receiver_of(span.segment, span.low)
        lane = self._lanes.lane(receiver, span.segment.priority)
        if lane.find(span) is span:
            self._lanes.cut_out(lane, span, span.low, span.high)
        else:
            self._turnstile.remove(receiver, span)
