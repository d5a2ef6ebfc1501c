"""What takes messages from a replica: consumers with credit, and pending reads."""

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

# A consumer that holds this many bytes, or this part of the node's memory, gets no more. It may
# always hold `HELD_BYTES_MIN`, however small the memory.
HELD_BYTES_MAX = 64 * 1024 * 1024
HELD_BYTES_MIN = 1024 * 1024
HELD_PART = 4


class Outlet(Protocol):
    """A connection to which messages can be delivered."""

    client_id: int
    client_name: str

    def can_take(self) -> bool:
        """Return whether the socket has room for more."""
        ...

    def deliver(self, consumer: int, runs: list[Run], bodies: list[memoryview | bytes]) -> None: ...

    def consumer_ended(self, consumer: int, error: TidegateError) -> None: ...

    def prefetch_changed(self, consumer: int, prefetch: int, lasting: bool = True) -> None: ...


class Consumer:
    """A consumer at this node, with the messages that it holds.

    Its credit is its prefetch less the number of messages that it holds.
    """

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
        # The prefetch that the client asked for, even while a control loop sets another.
        self.asked = prefetch
        # The connection that runs a prefetch experiment with this consumer; None: no experiment.
        self.trial: Outlet | None = None
        # While a control loop sets the prefetch: the client's own limit; None: it has set none.
        self.limit: int | None = None
        # The last control steps, newest last; None: no control loop sets the prefetch.
        self.control: Sequence[ControlNumbers] | None = None
        self.order = order
        self.automatic = automatic
        self._held_bytes_max = max(min(HELD_BYTES_MAX, memory_bytes // HELD_PART), HELD_BYTES_MIN)
        # Whether it takes only messages addressed to its client.
        self.mine_only = False
        # As announced to the client, which renews at this interval even after a change of policy.
        self.lease_s = lease_s
        self.book = LeaseBook()
        self.meters = ConsumerMeters()
        # When it subscribed, by the monotonic clock.
        self.since = 0.0

    def credit(self) -> int:
        if not self.outlet.can_take() or self.book.held_bytes > self._held_bytes_max:
            return 0
        return max(self.prefetch - self.book.outstanding, 0)


class Reader:
    """A request for one message that waits until there is one."""

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
        # Returns the consumer 0 of the connection, which holds messages that were read and not
        # pushed.
        self.book_for = book_for
        self.timer: asyncio.TimerHandle | None = None
        # The rank up to which the store was searched for a match.
        self.horizon: Rank = NOTHING
