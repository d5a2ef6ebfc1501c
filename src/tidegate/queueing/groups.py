"""The group gate: lets messages of groups out one at a time, for each receiver of a queue.

A message that is out is in a lane or leased. A message that is kept aside still counts for its
lane. `MessageGroups` has the rules for the groups of one receiver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.core.topology import assignment_slot
from tidegate.queueing.lanes import NO_ID, MessageGroups, group_of
from tidegate.queueing.spans import ANYONE, MessageState, Span, receiver_of

if TYPE_CHECKING:
    from tidegate.queueing.lanes import Lane, Lanes
    from tidegate.queueing.queue import ExpiryTracker
    from tidegate.queueing.spilled import SpilledRanges


class GroupGate:
    """The messages that wait for an earlier one of their group."""

    __slots__ = ("_frozen_homes", "_lanes", "_spilled", "_until", "by_receiver", "freed")

    def __init__(self, lanes: Lanes, tails: SpilledRanges) -> None:
        self._lanes = lanes
        self._spilled = tails
        # Receiver (or ANYONE) -> groups. The same name is a different group for another receiver.
        self.by_receiver: dict[int, MessageGroups] = {}
        # Assignment slots whose messages are about to move: none of them may be delivered before.
        self._frozen_homes: set[int] = set()
        # Only messages below this id come out: earlier ones are being transferred here.
        self._until = NO_ID
        # Whether a group has let a message out since the caller last reset this.
        self.freed = False

    # Entering

    def in_turn(self, receiver: int, span: Span) -> Iterator[Span]:
        """Yield runs of messages of `span` that need not wait for others of their group.

        The others are kept aside.
        """
        segment = span.segment
        low = span.low
        for offset in range(span.low, span.high):
            group = group_of(segment, offset)
            if group is None:
                continue
            if self._is_out(receiver, group, Span(segment, offset, offset + 1, MessageState.READY)):
                continue
            if low < offset:
                yield Span(segment, low, offset, span.state)
            low = offset + 1
        if low == span.low:
            yield span
        elif low < span.high:
            yield Span(segment, low, span.high, span.state)

    def _is_out(self, receiver: int, group: str, span: Span) -> bool:
        """Return whether the message is out; if not, keep it aside."""
        groups = self.by_receiver.get(receiver)
        if groups is None:
            # Only unaddressed messages can be frozen: no other client takes addressed ones.
            is_anyones = receiver == ANYONE
            groups = MessageGroups(self._is_frozen) if is_anyones else MessageGroups()
            self.by_receiver[receiver] = groups
        newer = groups.newer_out(group, span.first_id)
        # An older message came late. If no client has had the newer one yet, that steps back.
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
            # For a still older message that arrived while the newer one was leased.
            following = groups.next_out(group, horizon)
            if following is not None:
                self._let_out(receiver, following)
        return False

    # Leaving

    def _let_out(self, receiver: int, span: Span) -> None:
        self._lanes.hold(receiver, span, -1)
        self._lanes.insert(receiver, span)
        self.freed = True

    def leave(self, span: Span) -> None:
        """Note that messages are done, and let out the next ones of their groups."""
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
        """Return the id below which all messages of the receiver's groups are in memory."""
        return min(self._spilled.groups_begin(receiver), self._until)

    def reach(self) -> None:
        """Let out messages after the horizon has moved."""
        for receiver, groups in self.by_receiver.items():
            for span in groups.reach(self.horizon(receiver)):
                self._let_out(receiver, span)

    def hold_from(self, from_id: int) -> None:
        """Hold messages of groups back from `from_id` on, until the next call."""
        self._until = from_id
        self.reach()

    def freeze(self, homes: set[int]) -> None:
        """Hold back messages of groups whose assignment slot is among `homes`."""
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
        return bool(self._frozen_homes) and assignment_slot(group) in self._frozen_homes

    # Waiting messages

    def waiting(self, receiver: int) -> list[Span]:
        """Return the messages that are kept aside, in no order."""
        return list(self.by_receiver.get(receiver, ()))

    def remove(self, receiver: int, span: Span) -> None:
        """Remove a message that is kept aside."""
        self.by_receiver[receiver].remove(span)
        self._lanes.hold(receiver, span, -1)

    def take_expired(self, expiry: ExpiryTracker, now: float) -> Iterator[Span]:
        """Take the expired ones of the messages that are kept aside."""
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
        """Return whether a lane's head holds nothing but messages that wait for their groups.

        `held_bytes_max` is how many bytes of them are enough. Reading more of the tail would only
        add to them, until a message that is out is done.
        """
        if lane.count or lane.held_bytes < held_bytes_max or not lane.held_bytes:
            return False
        return self.by_receiver[ANYONE].has_any_out
