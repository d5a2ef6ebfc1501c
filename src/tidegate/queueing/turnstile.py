"""The turnstile: messages of groups come out here one at a time, for each receiver of a queue.

What is out lies in a lane, or is with somebody. What is kept aside counts for its lane all the
same. The rules of one receiver's groups are in groups.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.core.replication import home_index
from tidegate.queueing.expiry import Expiry
from tidegate.queueing.groups import Groups, group_of
from tidegate.queueing.lane import NO_ID, Lane
from tidegate.queueing.lanes import Lanes
from tidegate.queueing.lifecycle import State
from tidegate.queueing.receiver import ANYONE, receiver_of
from tidegate.queueing.span import Span
from tidegate.queueing.tails import Tails


class Turnstile:
    """Who waits for an earlier message of its group."""

    __slots__ = ("_frozen_homes", "_lanes", "_tails", "_until", "by_receiver", "freed")

    def __init__(self, lanes: Lanes, tails: Tails) -> None:
        self._lanes = lanes
        self._tails = tails
        # Receiver (or ANYONE) → groups; a group of one receiver is not that of another.
        self.by_receiver: dict[int, Groups] = {}
        # What has its home there is to go to another queue, and to nobody before it is there.
        self._frozen_homes: set[int] = set()
        # Only what is below comes out: something that goes before the rest is on its way.
        self._until = NO_ID
        # Whether a message was let out by its group since the caller unset this.
        self.freed = False

    # In

    def in_turn(self, receiver: int, span: Span) -> Iterator[Span]:
        """The messages of a span that need not wait for others of their group, in runs."""
        segment = span.segment
        low = span.low
        for offset in range(span.low, span.high):
            group = group_of(segment, offset)
            if group is None:
                continue
            if self._is_out(receiver, group, Span(segment, offset, offset + 1, State.READY)):
                continue
            if low < offset:
                yield Span(segment, low, offset, span.state)
            low = offset + 1
        if low == span.low:
            yield span
        elif low < span.high:
            yield Span(segment, low, span.high, span.state)

    def _is_out(self, receiver: int, group: str, span: Span) -> bool:
        """Whether it is a message's turn in its group; if not, it is kept aside."""
        groups = self.by_receiver.get(receiver)
        if groups is None:
            # What is addressed is frozen with nobody: only its receiver takes it.
            is_anyones = receiver == ANYONE
            groups = Groups(self._is_frozen) if is_anyones else Groups()
            self.by_receiver[receiver] = groups
        newer = groups.newer_out(group, span.first_id)
        # An older one came late: if nobody has had the newer one yet, that stands back.
        stands_back = (
            newer is not None
            and not newer.segment.was_attempted(newer.low)
            and self._lanes.withdraw(receiver, newer)
        )
        if stands_back:
            self._lanes.hold(receiver, groups.step_back(group), 1)
        horizon = self.horizon(receiver)
        if groups.enter(group, span, horizon):
            return True
        self._lanes.hold(receiver, span, 1)
        if stands_back:
            # For one that is older still, and came while the newer one was with somebody.
            following = groups.next_out(group, horizon)
            if following is not None:
                self._let_out(receiver, following)
        return False

    # Out

    def _let_out(self, receiver: int, span: Span) -> None:
        self._lanes.hold(receiver, span, -1)
        self._lanes.insert(receiver, span)
        self.freed = True

    def leave(self, span: Span) -> None:
        """Messages are done, whichever way: the next of their groups are out."""
        segment = span.segment
        for offset in range(span.low, span.high):
            group = group_of(segment, offset)
            if group is None:
                continue
            receiver = receiver_of(segment, offset)
            groups = self.by_receiver.get(receiver)
            if groups is not None:
                message_id = segment.first_id + offset
                following = groups.leave(group, message_id, self.horizon(receiver))
                if following is not None:
                    self._let_out(receiver, following)

    def horizon(self, receiver: int) -> int:
        """Up to which id all messages of the receiver's groups are here, and in memory."""
        return min(self._tails.groups_begin(receiver), self._until)

    def reach(self) -> None:
        """More is in memory: those who were kept aside for that may be out."""
        for receiver, groups in self.by_receiver.items():
            for span in groups.reach(self.horizon(receiver)):
                self._let_out(receiver, span)

    def hold_from(self, from_id: int) -> None:
        """From this id on messages of groups wait, until a later one is said."""
        self._until = from_id
        self.reach()

    def freeze(self, homes: set[int]) -> None:
        """From now on no message of a group comes out that has its home among these."""
        if homes == self._frozen_homes:
            return
        self._frozen_homes = homes
        groups = self.by_receiver.get(ANYONE)
        if groups is None:
            return
        for group, span in groups.frozen_out():
            if self._lanes.withdraw(ANYONE, span):
                self._lanes.hold(ANYONE, groups.step_back(group), 1)
        for span in groups.thawed(self.horizon(ANYONE)):
            self._let_out(ANYONE, span)

    def _is_frozen(self, group: str) -> bool:
        return bool(self._frozen_homes) and home_index(group) in self._frozen_homes

    # Who waits

    def waiting(self, receiver: int) -> list[Span]:
        """Those that are kept aside, in no order."""
        return list(self.by_receiver.get(receiver, ()))

    def remove(self, receiver: int, span: Span) -> None:
        """A message that is kept aside goes."""
        self.by_receiver[receiver].remove(span)
        self._lanes.hold(receiver, span, -1)

    def take_expired(self, expiry: Expiry, now: float) -> Iterator[Span]:
        """Those that are kept aside, and whose time is over."""
        for receiver in self.by_receiver:
            for span in self.waiting(receiver):
                if expiry.ranges(span, now):
                    self.remove(receiver, span)
                    yield span

    def take_all(self) -> list[Span]:
        taken: list[Span] = []
        for receiver, groups in self.by_receiver.items():
            for span in groups.clear():
                self._lanes.hold(receiver, span, -1)
                taken.append(span)
        return taken

    def is_crowded(self, lane: Lane, held_bytes_max: int) -> bool:
        """Whether a lane has nothing but messages that wait for their groups, and enough of them.

        More would only wait beside them until messages that are out are done.
        """
        if lane.count or lane.held_bytes < held_bytes_max or not lane.held_bytes:
            return False
        return self.by_receiver[ANYONE].has_any_out
