"""Confirmed publishing in order, and declarations; each on a channel that reopens.

Theory of operation.

A `RabbitmqPublisher` publishes all messages of a client on one channel with publisher confirms.
`PublishOrder` gives each publish a ticket. A publish waits for a connection that RabbitMQ does not
block, and for its turn. It sends the message as `mandatory` and then waits for the confirm. The
turn ends when the message is sent, so many publishes wait for their confirms at a time.

Declarations use another channel (`AdminChannel`), one at a time, because RabbitMQ refuses them by
closing the channel.

Results of a publish:

- Confirmed: a queue has the message.
- Returned as unroutable: QueueNotExisting.
- The channel closed with an error: RabbitMQ refused one publish, and all others on the channel fail
  with it. Each is published again on a channel of its own, one at a time, so that only the refused
  one fails.
- Nacked: the queue is full, or changes its leader. The message is published again after pauses of
  20 to 200 ms, then LimitReached is raised.
- The connection was lost: the message is published again on the next one until the deadline. Then
  the error is IoFailure if it may have been stored, else Unavailable.
- Headers larger than a frame: TooLarge before anything is sent. RabbitMQ would close the
  connection, and each later one.
- RabbitMQ blocks publishers: nothing is sent, and the publish waits until its deadline.

A message that may already be stored carries the header `x-tidegate-resent`. So it may arrive twice,
flagged, and is never lost.

Order: publishes reach the broker in the order in which they began, across reconnects too. Others
may overtake a publish that was nacked, or one that was on a channel that RabbitMQ closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.core.errors import (
    CallerError,
    IoFailure,
    LimitReached,
    NoReply,
    RetryLater,
    TidegateError,
    TooLarge,
    Unavailable,
)
from tidegate.engines.rabbitmq.connection import (
    RabbitmqConnection,
    ReconnectPolicy,
    translating_errors,
)
from tidegate.engines.rabbitmq.message import Properties, header_bytes, marked_resent

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.client import RabbitmqAddress
    from tidegate.engines.rabbitmq.connection import OutageTracker

log = logging.getLogger(__name__)


Result = TypeVar("Result")
# Bytes of a frame beside its content.
_FRAME_BYTES = 8
# A queue that is being created, or that changes its leader, nacks for a moment.
_PAUSES_S = (0.02, 0.05, 0.1, 0.2)


class RabbitmqPublisher:
    """The publishing channel of one client."""

    def __init__(self, connection: RabbitmqConnection, *, is_for_one: bool = False) -> None:
        self._connection = connection
        # With one publish per channel, a closed channel means that this publish was refused.
        self._is_for_one = is_for_one
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._turns = PublishOrder()
        self._one_by_one = asyncio.Lock()

    async def publish(
        self,
        payload: bytes,
        properties: Properties,
        routing_key: str,
        exchange: str = "",
        *,
        once: bool = False,
    ) -> None:
        """Publish a message; return when a queue has it.

        Raises QueueNotExisting if no queue would get it. With `once` it is not published again
        after a lost connection.
        """
        ticket = self._turns.draw()
        try:
            await self._publish(ticket, payload, properties, routing_key, exchange, once=once)
        finally:
            self._turns.leave(ticket)

    async def _publish(
        self,
        ticket: int,
        payload: bytes,
        properties: Properties,
        routing_key: str,
        exchange: str,
        *,
        once: bool,
    ) -> None:
        patience = ReconnectPolicy(self._connection)
        pauses_s = iter(_PAUSES_S)
        about = f"queue {routing_key!r}" if not exchange else f"exchange {exchange!r}"
        is_perhaps_stored, channel = False, self._channel
        while True:
            try:
                channel = await self._open_channel(ticket, patience)
                _check_header(properties, channel)
                with translating_errors(about):
                    if is_perhaps_stored:
                        properties = marked_resent(properties)
                    is_perhaps_stored = True
                    async with self._connection.unless_blocked(patience):
                        # No await since it became the first, so the order holds.
                        self._turns.arrive(ticket)
                        await channel.basic_publish(
                            payload,
                            exchange=exchange,
                            routing_key=routing_key,
                            properties=properties,
                            mandatory=True,
                        )
                return
            except CallerError:
                # A closed channel fails all publishes on it, not only the refused one.
                if self._is_for_one or channel is None or not channel.is_closed:
                    raise
                self._turns.leave(ticket)
                async with self._alone() as alone:
                    await alone.publish(payload, marked_resent(properties), routing_key, exchange)
                return
            except LimitReached:
                is_perhaps_stored = False
                self._turns.leave(ticket)
                if (pause_s := next(pauses_s, None)) is None:
                    raise
                await asyncio.sleep(pause_s)
                self._turns.come_again(ticket)
            except Unavailable as lost:
                failure: TidegateError = lost
                if is_perhaps_stored:
                    failure = IoFailure(f"{lost}: whether it was stored is not known")
                if once:
                    raise failure from lost
                self._turns.come_again(ticket)
                await patience.wait(failure)

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[RabbitmqPublisher]:
        async with self._one_by_one:
            alone = RabbitmqPublisher(self._connection, is_for_one=True)
            try:
                yield alone
            finally:
                if alone._channel is not None and not alone._channel.is_closed:
                    await alone._channel.close()

    async def _open_channel(self, ticket: int, patience: ReconnectPolicy) -> AbstractChannel:
        """Return an open channel when this ticket is first in the order."""
        while True:
            await self._connection.unblocked(patience)
            if not self._turns.is_first(ticket):
                await self._turns.wait(ticket)
            elif self._channel is None or self._channel.is_closed:
                await self._reopen()
            else:
                return self._channel

    async def _reopen(self) -> None:
        # While this publish waited for the lock, another may have become first and reopened.
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._connection.channel(confirms=True)
                self._turns.all_come_again()


def _check_header(properties: Properties, channel: AbstractChannel) -> None:
    size_bytes = header_bytes(properties)
    bytes_max = channel.connection.connection_tune.frame_max - _FRAME_BYTES
    if size_bytes > bytes_max:
        raise TooLarge(
            f"headers of {size_bytes} bytes do not fit: RabbitMQ takes up to {bytes_max}. Put what "
            "is large into the payload"
        )


class AdminChannel:
    """The channel for calls that close their channel when they fail."""

    def __init__(self, connection: RabbitmqConnection) -> None:
        self._connection = connection
        self._channel: AbstractChannel | None = None
        self._busy = asyncio.Lock()

    async def run(
        self,
        about: str,
        errand: Callable[[AbstractChannel], Awaitable[Result]],
        *,
        repeatable: bool = True,
    ) -> Result:
        """Run a call; run it again if the connection was lost before the answer.

        If it is not `repeatable`, a lost connection raises IoFailure instead.
        """
        patience = ReconnectPolicy(self._connection)
        while True:
            try:
                return await self._connection.finish(self._run_once(about, errand))
            except Unavailable as lost:
                if not repeatable:
                    raise IoFailure(f"{lost}: whether it was done is not known") from lost
                await patience.wait(lost)

    async def _run_once(
        self, about: str, errand: Callable[[AbstractChannel], Awaitable[Result]]
    ) -> Result:
        async with self._busy:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._connection.channel()
            with translating_errors(about):
                return await errand(self._channel)


# The order in which publishes reach a channel: the order in which they began.
#
# A publish draws a ticket. It is owed its turn until it has sent its message on the channel, which
# keeps the order from there. It does not wait for the confirm before the next one sends.
#
# A publish whose connection was lost is owed its turn again, ahead of all younger tickets. The same
# holds for all publishes on a channel that was replaced, even before their calls have failed: the
# calls fail one after another, and the first to fail must not overtake older ones.


class PublishOrder:
    """The publishes that use one channel after another."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        # Tickets that are owed a turn, in order; and tickets that have sent on the channel.
        self._owed: list[int] = []
        self._there: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def draw(self) -> int:
        """Draw a ticket; the caller must call `leave` in the end, or all others wait for ever."""
        ticket = next(self._tickets)
        self._owed.append(ticket)
        return ticket

    def is_first(self, ticket: int) -> bool:
        return self._owed[0] == ticket

    async def wait(self, ticket: int) -> None:
        """Wait until the ticket may be first.

        The caller checks again: an older ticket may have returned meanwhile.
        """
        first = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            await first
        finally:
            self._waiting.pop(ticket, None)

    def arrive(self, ticket: int) -> None:
        """Record that the first ticket has sent its message."""
        assert self.is_first(ticket)
        del self._owed[0]
        self._there.add(ticket)
        self._wake()

    def come_again(self, ticket: int) -> None:
        self._there.discard(ticket)
        at = bisect_left(self._owed, ticket)
        if self._owed[at : at + 1] != [ticket]:
            insort(self._owed, ticket)

    def all_come_again(self) -> None:
        """Owe all sent tickets their turn again, because the channel was replaced."""
        self._owed = sorted({*self._owed, *self._there})
        self._there.clear()

    def leave(self, ticket: int) -> None:
        """Remove a ticket that is confirmed or failed, or that lets others pass for now."""
        self._there.discard(ticket)
        at = bisect_left(self._owed, ticket)
        if self._owed[at : at + 1] == [ticket]:
            del self._owed[at]
            self._wake()

    def _wake(self) -> None:
        waiting = self._waiting.get(self._owed[0]) if self._owed else None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


# Replies by direct reply-to, sent over a connection of their own.
#
# The reply address comes with the request, so its sender can forge it. RabbitMQ (3.10) closes the
# connection that publishes to an invalid address of this kind. Each shared connection would suffer:
#
# - On the consuming connection, all held messages would return to their queues, the request
# included,
#   and the same would happen again without end.
# - On the publishing connection, all publishes under way would be sent twice.
#
# So these replies use a connection that carries nothing else. If it closes, each reply under way is
# sent once more, alone, on a fresh connection. A reply that closes that one too is dropped. A reply
# is also dropped if the broker is gone: then the requester has lost its channel and waits no more.


DIRECT = "amq.rabbitmq.reply-to"


class DirectReplies:
    """One client's replies to direct reply-to addresses."""

    def __init__(self, address: RabbitmqAddress, reconnect_s: float, outage: OutageTracker) -> None:
        self._address = address
        self._reconnect_s = reconnect_s
        self._connection = RabbitmqConnection(address, reconnect_s, outage, opens_when_needed=True)
        self._publisher = RabbitmqPublisher(self._connection)
        self._alone = asyncio.Lock()

    async def send(self, payload: bytes, properties: Properties, reply_to: str) -> bool:
        """Publish a reply; return whether RabbitMQ accepted it.

        Raises QueueNotExisting if the requester no longer waits, and RetryLater while RabbitMQ
        blocks publishers.
        """
        try:
            await self._publisher.publish(payload, properties, reply_to, once=True)
        except RetryLater:
            if self._connection.is_blocked:
                raise  # another connection would be blocked too
            return await self._sent_alone(payload, properties, reply_to)
        return True

    async def close(self) -> None:
        await self._connection.close()

    async def _sent_alone(self, payload: bytes, properties: Properties, reply_to: str) -> bool:
        async with self._alone:
            connection = RabbitmqConnection(self._address, self._reconnect_s)
            try:
                await connection.open()
                await RabbitmqPublisher(connection).publish(
                    payload, properties, reply_to, once=True
                )
            except RetryLater as failure:
                if connection.is_blocked:
                    raise
                log.warning(
                    "a request was not answered: is the name to reply to forged?",
                    extra={"reply_to": reply_to, "reason": str(failure)},
                )
                return False
            finally:
                await connection.close()
        return True


# Requests and their replies by RabbitMQ's direct reply-to.
#
# A request is published on the channel that consumes from `amq.rabbitmq.reply-to`, with that name
# as its reply address. RabbitMQ replaces it by an address of this channel. The reply goes to the
# default exchange under that address, and needs no queue and no permission.
#
# A requester that loses its connection gets no reply, and NoReply at its timeout. A request without
# a confirm is published again.


class PendingReplies:
    """The requests of one client that wait for a reply."""

    def __init__(self, connection: RabbitmqConnection) -> None:
        self._connection = connection
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[DeliveredMessage]] = {}

    async def ask(
        self, queue: str, payload: bytes, properties: Properties, timeout_s: float
    ) -> DeliveredMessage:
        correlation_id = str(secrets.randbits(62))
        properties.reply_to = DIRECT
        properties.correlation_id = correlation_id
        reply: asyncio.Future[DeliveredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self._publish(queue, payload, properties)
                return await reply
        except TimeoutError:
            why = f": {self._connection.blocked()}" if self._connection.is_blocked else ""
            raise NoReply(f"no reply from queue {queue!r} within {timeout_s:g} s{why}") from None
        finally:
            del self._waiting[correlation_id]

    async def _publish(self, queue: str, payload: bytes, properties: Properties) -> None:
        """Publish a request until it is confirmed; the caller's timeout ends the attempts."""
        patience = ReconnectPolicy(self._connection)
        is_perhaps_stored = False
        while True:
            try:
                channel = await self._open_channel(patience)
                with translating_errors(f"queue {queue!r}"):
                    if is_perhaps_stored:
                        properties = marked_resent(properties)
                    is_perhaps_stored = True
                    async with self._connection.unless_blocked(patience):
                        await channel.basic_publish(
                            payload, routing_key=queue, properties=properties, mandatory=True
                        )
                return
            except Unavailable as lost:
                await patience.wait(lost)

    async def _open_channel(self, patience: ReconnectPolicy) -> AbstractChannel:
        async with self._opening:
            await self._connection.unblocked(patience)
            if self._channel is None or self._channel.is_closed:
                channel = await self._connection.channel(confirms=True)
                with translating_errors("replies"):
                    await channel.basic_consume(DIRECT, self._replied, no_ack=True)
                self._channel = channel
            return self._channel

    async def _replied(self, delivered: DeliveredMessage) -> None:
        waiting = self._waiting.get(delivered.header.properties.correlation_id or "")
        if waiting is not None and not waiting.done():
            waiting.set_result(delivered)
