"""Of which homes a replica has messages, and whose must wait for what is elsewhere.

Groups and receivers have homes. Messages of one home are delivered in their order although they may
lie at several replicas while homes move.
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
    """Those of one replica."""

    def __init__(
        self, holding: Holding, intake: Intake, dispatch: Dispatch, departures: Departures
    ) -> None:
        self._holding = holding
        self._intake = intake
        self._dispatch = dispatch
        self._departures = departures
        # Homes of segments that are being cut up.
        self._cut_homes: set[int] = set()
        # First ids under which groups are coming over: what is put meanwhile has to wait for them.
        self._coming_before: set[int] = set()

    def held(self) -> set[int]:
        """The homes of which it has anything, as far as is known; of which it may have, too."""
        queue = self._holding.queue
        if queue.delayed.in_store or queue.tails.may_hold_homed or self._coming_before:
            return set(range(HOMES))
        held = self._intake.homes.held()
        if queue.residents.has_homed:
            for segment in queue.segments():
                held |= homes_of(segment)
        return held | self.in_hand()

    def in_hand(self) -> set[int]:
        """The homes of what is with somebody, is to be tried again, or is about to leave.

        What follows it must not be anywhere before it.
        """
        if not self._holding.queue.residents.has_homed:
            return set()
        return {index for segment in self._segments_in_hand() for index in homes_of(segment)}

    def _segments_in_hand(self) -> set[Segment]:
        retried = self._holding.queue.delayed.retried(self._holding.clock.wall())
        return self._dispatch.segments_held() | retried | set(self._departures.segments.values())

    def freeze(self) -> None:
        """Of groups that are at home elsewhere by now nothing more goes to a consumer here.

        Part of a group may have gone there already, and is delivered there.
        """
        homes, number = self._holding.homes or (), self._holding.info.number
        elsewhere = {index for index, home in enumerate(homes) if abs(home) != number}
        self._holding.queue.turnstile.freeze(elsewhere | self._cut_homes)
        self._dispatch.serve_all()

    def cut_up(self, homes: set[int]) -> None:
        """Segments with these homes are being cut up: what follows them has to wait."""
        self._cut_homes = homes
        if self._holding.info.alias_id:
            self.freeze()

    def groups_wait(self, from_id: int) -> None:
        """What comes before all later messages of its groups comes over from another queue.

        Its giver forgets it before we have it, so its home may be opened, and put to, in between.
        """
        self._coming_before.add(from_id)
        self._holding.queue.turnstile.hold_from(self.waits_from)

    @property
    def waits_from(self) -> int:
        """From this id on nothing that has a home is delivered, or goes on: what is before comes.

        Its home may have moved on since it was asked for.
        """
        return min(self._coming_before, default=NO_ID)

    def groups_go_on(self, from_id: int) -> None:
        """It is here, or does not come."""
        self._coming_before.discard(from_id)
        if not self._holding.fenced:
            self._holding.queue.turnstile.hold_from(self.waits_from)
            self._dispatch.serve_all()

    def ahead(self) -> set[int]:
        """The homes of which it takes puts, or has what comes before all that is put from now on.

        What was put for a later time comes when that is there, and before nothing.
        """
        queue = self._holding.queue
        below_id = NO_ID if self._holding.info.alias_id else self._intake.homes.ordered_below()
        if below_id is None or queue.tails.may_hold_homed or self._departures.has_open_moves:
            return set(range(HOMES))
        if self._coming_before:
            # Nobody but us knows of it any more: its giver has forgotten it.
            return set(range(HOMES))
        ahead = self._intake.homes.taken() | self._intake.homes.accepted()
        if queue.residents.has_homed:
            for segment in chain(queue.contents.segments(), self._segments_in_hand()):
                if segment.first_id < below_id:
                    ahead |= homes_of(segment)
        return ahead
