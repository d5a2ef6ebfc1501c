"""The tails of a queue: messages that are in the store only, since memory is short.

The tail of unaddressed messages belongs to their lane: see `Lane`. Addressed messages have one tail
for each priority, for all receivers together. The messages of one receiver are found by searching
the store; how far that was done is noted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.queueing.lanes import NO_ID, Lane, has_groups
from tidegate.queueing.spans import ANYONE, MessageState, Rank, Span

if TYPE_CHECKING:
    from tidegate.queueing.lanes import Lanes


class SpilledRanges:
    """All tails of a queue, and up to where they were searched for each receiver."""

    __slots__ = ("_anyones", "_lanes", "_searched", "addressed")

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._anyones = lanes.anyones
        # Tails of addressed segments: priority -> a lane of which only the tail is used.
        self.addressed: dict[int, Lane] = {}
        # Receiver -> id up to which the store was searched for its messages.
        self._searched: dict[int, int] = {}

    def __iter__(self) -> Iterator[Lane]:
        return chain(self._anyones.values(), self.addressed.values())

    @property
    def count(self) -> int:
        return sum([lane.tail_count for lane in self])

    @property
    def payload_bytes(self) -> int:
        """The payload bytes of all tails; segments count whole."""
        return sum([lane.tail_bytes for lane in self])

    def lane(self, priority: int, addressed: bool) -> Lane:
        """Return the lane that keeps the tail for such segments."""
        if not addressed:
            return self._lanes.lane(ANYONE, priority)
        lane = self.addressed.get(priority)
        if lane is None:
            lane = self.addressed[priority] = Lane(priority)
        return lane

    # Adding and removing

    def receive(self, segment: Segment, *, keep: bool) -> bool:
        """Note a new segment; return whether it stays in the store only.

        It does so behind a tail, or with `keep` False. A segment of a joint commit may have a lower
        id than segments that came meanwhile. The tail may have been read past that id, so such a
        segment goes to memory.
        """
        newest_id = 0
        if segment.receivers is not None:
            tail = self.lane(segment.priority, True)
            # Receivers are searched for in all addressed tails at once.
            newest_id = max([each.newest_id for each in self.addressed.values()])
        else:
            known = self._anyones.get(segment.priority)
            tail = self.lane(segment.priority, False) if known is None else known
            if segment.attributes is not None and has_groups(segment):
                # A newer message of its group may be out, of any priority.
                newest_id = max([each.newest_id for each in self._anyones.values()])
        if tail.comes_late(segment, newest_id) or (keep and not tail.tail_count):
            return False
        if segment.receivers is not None:
            self._note_unsearched(segment)
        tail.send_to_tail(segment, segment.open)
        return True

    def _note_unsearched(self, segment: Segment) -> None:
        """Keep the search state true for receivers that had been searched for up to the end.

        They are still complete: up to this segment if it is for them, otherwise past it.
        """
        addressed_to = set(segment.receivers or ())
        end = self.addressed_end
        for client_id, searched in self._searched.items():
            if searched >= end:
                is_meant = client_id in addressed_to
                self._searched[client_id] = segment.first_id if is_meant else segment.last_id + 1

    def release(self, segment: Segment, *, pulled: bool) -> bool:
        """Note that a segment was read from the store; False if it was in memory already."""
        tail = self.lane(segment.priority, segment.receivers is not None)
        return tail.leave_tail(segment, pulled=pulled)

    def clear(self) -> int:
        """Drop all tails after a purge; return how many messages they had."""
        return sum([lane.forget_tail() for lane in self])

    # Messages for one receiver

    @property
    def addressed_end(self) -> int:
        """One more than the highest id of all addressed tails; 0 if there are none."""
        ends = (lane.tail_last + 1 for lane in self.addressed.values() if lane.tail_count)
        return max(ends, default=0)

    def unsearched_from(self, client_id: int) -> int | None:
        """Return the id from which on the store may hold unknown messages for the client.

        None if it holds none.
        """
        tails = [lane for lane in self.addressed.values() if lane.tail_count]
        if not tails:
            self._searched.clear()
            return None
        start = max(self._searched.get(client_id, 0), min(lane.tail_from for lane in tails))
        return start if start < self.addressed_end else None

    def searched(self, client_id: int, end: int) -> None:
        """Note that all messages below `end` for the client are in memory."""
        self._searched[client_id] = max(end, self._searched.get(client_id, 0))

    def unsearched(self, client_id: int) -> Iterator[tuple[Lane, int]]:
        """Yield the tails that may hold messages for the client, each with the id to begin at."""
        searched = self._searched.get(client_id, 0)
        for tail in self.addressed.values():
            if tail.tail_count and searched <= tail.tail_last:
                yield tail, max(tail.tail_from, searched)

    # Reading

    def groups_begin(self, receiver: int) -> int:
        """Return the lowest id of a grouped message for the receiver that memory may lack.

        If memory lacks none, returns `NO_ID`.
        """
        if receiver == ANYONE:
            starts = [
                max(tail.tail_from, tail.tail_groups_from)
                for tail in self._anyones.values()
                if tail.tail_count
            ]
        else:
            starts = [
                max(from_id, tail.tail_groups_from) for tail, from_id in self.unsearched(receiver)
            ]
        return min(starts, default=NO_ID)

    @property
    def anyones_begin(self) -> int:
        """The lowest id of an unaddressed message that may be in the store only."""
        tails = (lane.tail_from for lane in self._anyones.values() if lane.tail_count)
        return min(tails, default=NO_ID)

    @property
    def has_any_for_anyone(self) -> bool:
        return any(lane.tail_count for lane in self._anyones.values())

    def has_between(self, first_id: int, last_id: int, *, for_anyone: bool = False) -> bool:
        """Return whether messages with these ids may be in the store only."""
        tails: Iterable[Lane] = self._anyones.values() if for_anyone else self
        return any(
            tail.tail_count and tail.tail_from <= last_id and tail.tail_last >= first_id
            for tail in tails
        )

    def may_precede(self, rank: Rank, order: Order, horizon: Rank) -> bool:
        """Return whether the store may hold a message before `rank` and beyond `horizon`."""
        for lane in self:
            if not lane.tail_count:
                continue
            priority = -lane.priority if order is Order.PRIORITY else 0
            first = max((priority, lane.tail_from), horizon)
            if first < rank and first <= (priority, lane.tail_last):
                return True
        return False

    @property
    def may_hold_homed(self) -> bool:
        """Whether messages in the store only may have groups or receivers."""
        return any(lane.tail_count for lane in self.addressed.values()) or any(
            lane.tail_count and lane.tail_groups_from != NO_ID for lane in self._anyones.values()
        )

    def pieces(self, segment: Segment, first_id: int, last_id: int) -> list[Span]:
        """Return the parts of a segment, read from the store, that are not in memory."""
        if not self.lane(segment.priority, segment.receivers is not None).holds(segment):
            return []
        pieces = (
            Span(segment, low, high, MessageState.READY) for low, high in segment.open_ranges()
        )
        cut = [piece.offsets_between(first_id, last_id) for piece in pieces]
        return [Span(segment, low, high, MessageState.READY) for low, high in cut if low < high]

    def wanted(self, head_bytes_low: int) -> list[tuple[Lane, bool]]:
        """Return lanes with a tail and a short head; True for tails of addressed messages."""
        wanted = [
            (lane, False)
            for lane in self._anyones.values()
            if lane.tail_count
            and (lane.waits_for_tail or lane.head_bytes + lane.held_bytes < head_bytes_low)
        ]
        wanted += [(lane, True) for lane in self.addressed.values() if lane.tail_count]
        return wanted
