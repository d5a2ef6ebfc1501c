"""The tails of a queue: what waits in the store only, since memory is short.

The tail of what is for anyone is that of its lane: see lane.py. What is addressed has one tail per
priority, whoever it is for, so a receiver's messages are searched for in the store. Up to where
that was done is noted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.queueing.groups import has_groups
from tidegate.queueing.lane import NO_ID, Lane
from tidegate.queueing.lanes import Lanes
from tidegate.queueing.lifecycle import State
from tidegate.queueing.rank import Rank
from tidegate.queueing.receiver import ANYONE
from tidegate.queueing.span import Span


class Tails:
    """All tails, and who was searched for in them."""

    __slots__ = ("_anyones", "_lanes", "_searched", "addressed")

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._anyones = lanes.anyones
        # Addressed segments beyond memory: priority → a lane of which only the tail is used.
        self.addressed: dict[int, Lane] = {}
        # Receiver → up to which id the store was searched for its messages.
        self._searched: dict[int, int] = {}

    def __iter__(self) -> Iterator[Lane]:
        return chain(self._anyones.values(), self.addressed.values())

    @property
    def count(self) -> int:
        return sum([lane.tail_count for lane in self])

    @property
    def payload_bytes(self) -> int:
        """What they weigh, in whole segments."""
        return sum([lane.tail_bytes for lane in self])

    def lane(self, priority: int, addressed: bool) -> Lane:
        """The lane that keeps the tail for such segments."""
        if not addressed:
            return self._lanes.lane(ANYONE, priority)
        lane = self.addressed.get(priority)
        if lane is None:
            lane = self.addressed[priority] = Lane(priority)
        return lane

    # In and out

    def receive(self, segment: Segment, *, keep: bool) -> bool:
        """Note a new segment; True when it stays in the store: behind a tail, or with `keep` unset.

        A message that was stored in several queues at once may have an older id than what
        came meanwhile. The tail may not be read there again, so such a one goes to memory.
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
                # A newer one of its group may be out, of whatever priority.
                newest_id = max([each.newest_id for each in self._anyones.values()])
        if tail.comes_late(segment, newest_id) or (keep and not tail.tail_count):
            return False
        if segment.receivers is not None:
            self._note_unsearched(segment)
        tail.send_to_tail(segment, segment.open)
        return True

    def _note_unsearched(self, segment: Segment) -> None:
        """Who was searched for up to here still is: up to this one, or past it if not meant."""
        addressed_to = set(segment.receivers or ())
        end = self.addressed_end
        for client_id, searched in self._searched.items():
            if searched >= end:
                is_meant = client_id in addressed_to
                self._searched[client_id] = segment.first_id if is_meant else segment.last_id + 1

    def release(self, segment: Segment, *, pulled: bool) -> bool:
        """A segment was read from the store, or pulled out of it; False if it was in memory."""
        tail = self.lane(segment.priority, segment.receivers is not None)
        return tail.leave_tail(segment, pulled=pulled)

    def clear(self) -> int:
        """Everything was purged; how many messages it was."""
        return sum([lane.forget_tail() for lane in self])

    # Messages for one receiver

    @property
    def addressed_end(self) -> int:
        """One more than the last id of all addressed tails; 0 when there are none."""
        ends = (lane.tail_last + 1 for lane in self.addressed.values() if lane.tail_count)
        return max(ends, default=0)

    def unsearched_from(self, client_id: int) -> int | None:
        """From which id on the store may hold messages for the client that we have not seen."""
        tails = [lane for lane in self.addressed.values() if lane.tail_count]
        if not tails:
            self._searched.clear()
            return None
        start = max(self._searched.get(client_id, 0), min(lane.tail_from for lane in tails))
        return start if start < self.addressed_end else None

    def searched(self, client_id: int, end: int) -> None:
        """All that is addressed to the client, with ids below `end`, is in memory."""
        self._searched[client_id] = max(end, self._searched.get(client_id, 0))

    def unsearched(self, client_id: int) -> Iterator[tuple[Lane, int]]:
        """The tails that may hold something addressed to the client, each with from which id on."""
        searched = self._searched.get(client_id, 0)
        for tail in self.addressed.values():
            if tail.tail_count and searched <= tail.tail_last:
                yield tail, max(tail.tail_from, searched)

    # Looking

    def groups_begin(self, receiver: int) -> int:
        """The lowest id of a message of the receiver's groups that only the store may hold."""
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
        """The lowest id of a message for anyone that only the store may hold."""
        tails = (lane.tail_from for lane in self._anyones.values() if lane.tail_count)
        return min(tails, default=NO_ID)

    @property
    def has_any_for_anyone(self) -> bool:
        return any(lane.tail_count for lane in self._anyones.values())

    def has_between(self, first_id: int, last_id: int, *, for_anyone: bool = False) -> bool:
        """Whether the store may hold messages with these ids that memory does not."""
        tails: Iterable[Lane] = self._anyones.values() if for_anyone else self
        return any(
            tail.tail_count and tail.tail_from <= last_id and tail.tail_last >= first_id
            for tail in tails
        )

    def may_precede(self, rank: Rank, order: Order, horizon: Rank) -> bool:
        """Whether the store may hold something before `rank`, beyond `horizon`."""
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
        """Whether any of it may be of groups, or addressed."""
        return any(lane.tail_count for lane in self.addressed.values()) or any(
            lane.tail_count and lane.tail_groups_from != NO_ID for lane in self._anyones.values()
        )

    def pieces(self, segment: Segment, first_id: int, last_id: int) -> list[Span]:
        """What of a segment that was read from the store only the store holds, with these ids."""
        if not self.lane(segment.priority, segment.receivers is not None).holds(segment):
            return []
        pieces = (Span(segment, low, high, State.READY) for low, high in segment.open_ranges())
        cut = [piece.offsets_between(first_id, last_id) for piece in pieces]
        return [Span(segment, low, high, State.READY) for low, high in cut if low < high]

    def wanted(self, head_bytes_low: int) -> list[tuple[Lane, bool]]:
        """Lanes whose head is short while their tail is not; True for addressed ones."""
        wanted = [
            (lane, False)
            for lane in self._anyones.values()
            if lane.tail_count
            and (lane.waits_for_tail or lane.head_bytes + lane.held_bytes < head_bytes_low)
        ]
        wanted += [(lane, True) for lane in self.addressed.values() if lane.tail_count]
        return wanted
