"""Those who take messages from a replica: subscribers with credit, and readers who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tidegate.core.errors import TidegateError
from tidegate.core.model import Order
from tidegate.queueing.lease import LeaseBook
from tidegate.queueing.match import Match
from tidegate.queueing.rank import NOTHING, Rank
from tidegate.telemetry.meters import ConsumerMeters
from tidegate.wire.packets.run import Run

if TYPE_CHECKING:
    from tidegate.telemetry.numbers import ControlNumbers

# A consumer that holds this much, or this part of the node's memory, gets no more, whatever its
# prefetch; so much it may always hold.
HELD_BYTES_MAX = 64 * 1024 * 1024
HELD_BYTES_MIN = 1024 * 1024
HELD_PART = 4


class Outlet(Protocol):
    """A connection to which messages can be sent."""

    client_id: int
    client_name: str

    def can_take(self) -> bool:
        """Whether the socket keeps up."""
        ...

    def deliver(self, consumer: int, runs: list[Run], bodies: list[memoryview | bytes]) -> None: ...

    def consumer_ended(self, consumer: int, error: TidegateError) -> None: ...

    def prefetch_changed(self, consumer: int, prefetch: int, lasting: bool = True) -> None: ...


class Consumer:
    """A subscription. Credit is its prefetch less what it holds."""

    __slots__ = (
        "_held_bytes_max",
        "asked",
        "automatic",
        "book",
        "consumer",
        "control",
        "lease_s",
        "limit",
        "meters",
        "mine_only",
        "order",
        "outlet",
        "prefetch",
        "since",
        "trial",
    )

    def __init__(
        self,
        outlet: Outlet,
        consumer: int,
        prefetch: int,
        order: Order,
        automatic: bool,
        memory_bytes: int,
        lease_s: float,
    ) -> None:
        self.outlet = outlet
        self.consumer = consumer
        self.prefetch = prefetch
        # What it asked for itself, whoever steers it meanwhile.
        self.asked = prefetch
        # Who tries out prefetches with it; None: nobody.
        self.trial: Outlet | None = None
        # While it is steered: the most that it has said it wants; None: it has not.
        self.limit: int | None = None
        # The last control steps, the newest last; None: nobody steers it.
        self.control: Sequence[ControlNumbers] | None = None
        self.order = order
        self.automatic = automatic
        self._held_bytes_max = max(min(HELD_BYTES_MAX, memory_bytes // HELD_PART), HELD_BYTES_MIN)
        # Whether it comes for nothing but what is addressed to it.
        self.mine_only = False
        # As it was told: it renews by that, whatever the queue's policy says by now.
        self.lease_s = lease_s
        self.book = LeaseBook()
        self.meters = ConsumerMeters()
        # When it came, by the monotonic clock.
        self.since = 0.0

    def credit(self) -> int:
        if not self.outlet.can_take() or self.book.held_bytes > self._held_bytes_max:
            return 0
        return max(self.prefetch - self.book.outstanding, 0)


class Reader:
    """Somebody who waits for one message."""

    __slots__ = (
        "answer",
        "book_for",
        "client_id",
        "horizon",
        "lease_s",
        "match",
        "miss",
        "order",
        "timer",
    )

    def __init__(
        self,
        client_id: int,
        order: Order,
        match: Match | None,
        lease_s: float | None,
        answer: Callable[[Run, memoryview], None],
        miss: Callable[[TidegateError], None],
        book_for: Callable[[], Consumer],
    ) -> None:
        self.client_id = client_id
        self.order = order
        self.match = match
        self.lease_s = lease_s
        self.answer = answer
        self.miss = miss
        # The holder of leases on messages that were read, not pushed.
        self.book_for = book_for
        self.timer: asyncio.TimerHandle | None = None
        # How far the store was searched for what it wants.
        self.horizon: Rank = NOTHING
