"""The consumers of a subscription: the current one, and the retiring ones.

A subscription that moves to another replica retires its consumer. A retiring consumer receives no
more and returns untouched messages. It unregisters when the application has settled its last
message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.client.inbox import Inbox
from tidegate.client.leg import Leg
from tidegate.client.link import Link
from tidegate.core.errors import TidegateError
from tidegate.core.model import Order
from tidegate.wire.packets.subscriptions import ConsumerEnded

if TYPE_CHECKING:
    from tidegate.client.client import Client


class Footing:
    """The consumers of one subscription, all of which deliver into one buffer."""

    def __init__(
        self,
        client: Client,
        inbox: Inbox,
        queue: str,
        order: Order,
        automatic: bool,
        *,
        on_ended: Callable[[Leg, ConsumerEnded], None],
        on_prefetch: Callable[[Leg, int], None],
    ) -> None:
        self._client = client
        self._inbox = inbox
        self._queue = queue
        self._order = order
        self._automatic = automatic
        self._on_ended = on_ended
        self._on_prefetch = on_prefetch
        self.leg: Leg | None = None
        # Consumers at former replicas, with messages that the application has not settled.
        self.leaving: set[Leg] = set()

    def new_leg(
        self, queue_id: int, number: int, link: Link, prefetch: int, *, mine_only: bool = False
    ) -> Leg:
        """Make a consumer that is not registered yet, and is not the current one."""
        leg = Leg(
            self._queue,
            queue_id,
            number,
            link,
            prefetch=prefetch,
            order=self._order,
            automatic=self._automatic,
            mine_only=mine_only,
            on_arrived=self._inbox.take_in,
            on_ended=self._on_ended,
            on_prefetch=self._on_prefetch,
        )
        self._client.add_leg(leg)
        return leg

    def stand_on(self, leg: Leg) -> None:
        former, self.leg = self.leg, leg
        if former is not None:
            self.part_from(former)

    def part_from(self, leg: Leg) -> None:
        """Retire a consumer: it receives no more and ends with its last unsettled message."""
        if not leg.lost:
            self.leaving.add(leg)
            self._client.spawn(self._leave(leg))

    async def _leave(self, leg: Leg) -> None:
        """Retire a consumer, and wait until its messages are settled."""
        # An error means that the transport or the queue is gone, and its messages were returned.
        with contextlib.suppress(TidegateError):
            await leg.withdraw_credit()
            if not self._automatic:
                await leg.give_back(self._inbox.untouched(leg))
                await leg.until_settled()
        if leg in self.leaving:
            self.leaving.discard(leg)
            await leg.unsubscribe()
            leg.lost = True
            self._client.drop_leg(leg)

    def lose(self, leg: Leg) -> None:
        """Discard a consumer after the node has returned its messages to the queue."""
        leg.lost = True
        self._client.drop_leg(leg)
        self.leaving.discard(leg)
        if leg is self.leg:
            self.leg = None
        self._inbox.forget(leg)
