"""Order of assigned messages while assignment slots move between replicas.

A message with a receiver, a group or a dedup id belongs to one of `ASSIGNMENT_SLOTS` slots. The
topology assigns each slot to a replica. While slots move, messages of one slot may be at several
replicas. This module tells which slots a replica has messages of, and holds back messages whose
predecessors are elsewhere.
"""

from __future__ import annotations

from itertools import chain

from tidegate.core.replication import HOMES
from tidegate.core.segment import Segment
from tidegate.node.departures import Departures
from tidegate.node.dispatch import Dispatch
from tidegate.node.holding import Holding
from tidegate.node.homes import homes_of
from tidegate.node.intake import Intake
from tidegate.queueing.lane import NO_ID


class ReplicaHomes:
    """The assignment slots of which one replica has messages."""

    def __init__(
        self, holding: Holding, intake: Intake, dispatch: Dispatch, departures: Departures
    ) -> None:
        self._holding = holding
        self._intake = intake
        self._dispatch = dispatch
        self._departures = departures
        # Slots of segments that are being split.
        self._cut_homes: set[int] = set()
        # First ids of the blocks under which messages of groups are being transferred here.
        # Messages that were put meanwhile have to wait for them.
        self._coming_before: set[int] = set()

    def held(self) -> set[int]:
        """Return the slots of which the replica has, or may have, messages or dedup ids.

        All slots if messages are in the store only or on their way here.
        """
        queue = self._holding.queue
        if queue.delayed.in_store or queue.tails.may_hold_homed or self._coming_before:
            return set(range(HOMES))
        held = self._intake.homes.held()
        if queue.residents.has_homed:
            for segment in queue.segments():
                held |= homes_of(segment)
        return held | self.in_hand()

    def in_hand(self) -> set[int]:
        """Return the slots of messages that are leased, wait for a retry, or are about to leave.

        A later message of such a slot must not be delivered at another replica before them.
        """
        if not self._holding.queue.residents.has_homed:
            return set()
        return {index for segment in self._segments_in_hand() for index in homes_of(segment)}

    def _segments_in_hand(self) -> set[Segment]:
        retried = self._holding.queue.delayed.retried(self._holding.clock.wall())
        return self._dispatch.segments_held() | retried | set(self._departures.segments.values())

    def freeze(self) -> None:
        """Stop delivering messages of groups whose slot is assigned to another replica.

        The other replica may have messages of the same group and delivers them in order.
        """
        homes, number = self._holding.homes or (), self._holding.info.number
        elsewhere = {index for index, home in enumerate(homes) if abs(home) != number}
        self._holding.queue.turnstile.freeze(elsewhere | self._cut_homes)
        self._dispatch.serve_all()

    def cut_up(self, homes: set[int]) -> None:
        """Hold back the messages of these slots while segments with them are being split."""
        self._cut_homes = homes
        if self._holding.info.alias_id:
            self.freeze()

    def groups_wait(self, from_id: int) -> None:
        """Hold back messages of groups with ids from `from_id` on, until a transfer has ended.

        Older messages of the same groups arrive in that transfer under lower ids. Their source
        forgets them before this replica has them. The slot may therefore be opened, and put to, in
        between.
        """
        self._coming_before.add(from_id)
        self._holding.queue.turnstile.hold_from(self.waits_from)

    @property
    def waits_from(self) -> int:
        """The id from which on no assigned message is delivered or transferred.

        Earlier messages are still arriving, and their slot may have moved on since they were
        requested.
        """
        return min(self._coming_before, default=NO_ID)

    def groups_go_on(self, from_id: int) -> None:
        """End the wait for the transfer that began at `from_id`, whether or not messages came."""
        self._coming_before.discard(from_id)
        if not self._holding.fenced:
            self._holding.queue.turnstile.hold_from(self.waits_from)
            self._dispatch.serve_all()

    def ahead(self) -> set[int]:
        """Return the slots that the replica accepts puts for, or has older messages of.

        The leader uses it to decide when a slot may be opened at its new replica. Delayed messages
        do not count: they enter when they are due and precede nothing.
        """
        queue = self._holding.queue
        below_id = NO_ID if self._holding.info.alias_id else self._intake.homes.ordered_below()
        if below_id is None or queue.tails.may_hold_homed or self._departures.has_open_moves:
            return set(range(HOMES))
        if self._coming_before:
            # No other node knows these messages: their source has forgotten them already.
            return set(range(HOMES))
        ahead = self._intake.homes.taken() | self._intake.homes.accepted()
        if queue.residents.has_homed:
            for segment in chain(queue.contents.segments(), self._segments_in_hand()):
                if segment.first_id < below_id:
                    ahead |= homes_of(segment)
        return ahead
