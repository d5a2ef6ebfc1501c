"""The holders of a replica's messages: consumers, and connections that have read under a lease.

Consumers are kept in the order of their turns. Consumers that take only addressed messages are kept
apart and are not counted: their clients consume at another replica.
"""

from __future__ import annotations

from collections import deque
from itertools import chain

from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.node.consumer import Consumer, Outlet
from tidegate.node.holding import Holding


class Holders:
    """The holders of one replica."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        # The next consumer is first; delivery rotates the deque.
        self.turns: deque[Consumer] = deque()
        # Client id -> its consumers that take only messages addressed to it.
        self.addressees: dict[int, list[Consumer]] = {}
        # Consumers that have left since the recorder last asked; None: not recorded.
        self.departed: list[Consumer] | None = None
        # All holders. Number 0 of a connection holds messages that were read under a lease.
        self._by_number: dict[tuple[Outlet, int], Consumer] = {}

    @property
    def consumers(self) -> list[Consumer]:
        return list(self.turns)

    @property
    def unacknowledged(self) -> int:
        return sum(holder.book.outstanding for holder in self._by_number.values())

    @property
    def is_empty(self) -> bool:
        return not self._by_number

    def all(self) -> list[Consumer]:
        return list(self._by_number.values())

    def of(self, outlet: Outlet, consumer: int) -> Consumer | None:
        return self._by_number.get((outlet, consumer))

    def numbers_of(self, outlet: Outlet) -> list[int]:
        """Return the numbers under which a connection holds, or may hold, messages."""
        return [consumer for each, consumer in self._by_number if each is outlet]

    def has(self, holder: Consumer) -> bool:
        """Return whether `holder` is still registered under its number."""
        return self._by_number.get((holder.outlet, holder.consumer)) is holder

    def is_here(self, client_id: int) -> bool:
        """Return whether messages can be pushed to that client."""
        return client_id in self.addressees or any(
            consumer.outlet.client_id == client_id for consumer in self.turns
        )

    def segments(self) -> set[Segment]:
        """Return the segments of which holders have messages."""
        return {lease.span.segment for holder in self._by_number.values() for lease in holder.book}

    # Registration

    def add(
        self,
        outlet: Outlet,
        consumer: int,
        prefetch: int,
        order: Order,
        automatic: bool,
        *,
        mine_only: bool,
    ) -> None:
        """Register a consumer."""
        subscriber = self._new(outlet, consumer, prefetch, order, automatic)
        if mine_only:
            subscriber.mine_only = True
            self.addressees.setdefault(outlet.client_id, []).append(subscriber)
        else:
            self.turns.append(subscriber)

    def reading(self, outlet: Outlet) -> Consumer:
        """Return the connection's consumer 0, which holds messages that were read under a lease."""
        holder = self._by_number.get((outlet, 0))
        if holder is None:
            holder = self._new(outlet, 0, 0, Order.OLDEST, False)
        return holder

    def _new(
        self, outlet: Outlet, consumer: int, prefetch: int, order: Order, automatic: bool
    ) -> Consumer:
        holding = self._holding
        bounds = (holding.limits.memory_bytes, holding.lease_s)
        holder = Consumer(outlet, consumer, prefetch, order, automatic, *bounds)
        holder.since = holding.clock.monotonic()
        self._by_number[outlet, consumer] = holder
        return holder

    # Removal

    def remove(self, outlet: Outlet, consumer: int) -> Consumer | None:
        """Remove and return a holder; the caller returns or fails its messages. None: unknown."""
        holder = self._by_number.pop((outlet, consumer), None)
        if holder is None or not consumer:
            return holder
        if holder.mine_only:
            mine = self.addressees[outlet.client_id]
            mine.remove(holder)
            if not mine:
                del self.addressees[outlet.client_id]
        else:
            self.turns.remove(holder)
            if self.departed is not None:
                self.departed.append(holder)
        return holder

    def clear(self) -> tuple[list[Consumer], list[Consumer]]:
        """Remove all; return all holders, and those to which messages were pushed."""
        pushed_to = [*self.turns, *chain.from_iterable(self.addressees.values())]
        if self.departed is not None:
            self.departed += self.turns
        self.turns.clear()
        self.addressees.clear()
        holders, self._by_number = self._by_number, {}
        return list(holders.values()), pushed_to
