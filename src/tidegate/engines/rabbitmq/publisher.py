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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aiormq.abc import AbstractChannel

from tidegate.adapters.rabbitmq.failures import telling
from tidegate.adapters.rabbitmq.lifeline import Lifeline, Patience
from tidegate.adapters.rabbitmq.properties import Properties, header_bytes, resent
from tidegate.adapters.rabbitmq.turns import Turns
from tidegate.core.errors import (
    CallerError,
    IoFailure,
    LimitReached,
    TidegateError,
    TooLarge,
    Unavailable,
)

Result = TypeVar("Result")
# Bytes of a frame beside its content.
_FRAME_BYTES = 8
# A queue that is being created, or that changes its leader, nacks for a moment.
_PAUSES_S = (0.02, 0.05, 0.1, 0.2)


class Publisher:
    """The publishing channel of one client."""

    def __init__(self, lifeline: Lifeline, *, is_for_one: bool = False) -> None:
        self._lifeline = lifeline
        # With one publish per channel, a closed channel means that this publish was refused.
        self._is_for_one = is_for_one
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._turns = Turns()
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
        patience = Patience(self._lifeline)
        pauses_s = iter(_PAUSES_S)
        about = f"queue {routing_key!r}" if not exchange else f"exchange {exchange!r}"
        is_perhaps_stored, channel = False, self._channel
        while True:
            try:
                channel = await self._open_channel(ticket, patience)
                _check_header(properties, channel)
                with telling(about):
                    if is_perhaps_stored:
                        properties = resent(properties)
                    is_perhaps_stored = True
                    async with self._lifeline.unless_blocked(patience):
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
                    await alone.publish(payload, resent(properties), routing_key, exchange)
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
    async def _alone(self) -> AsyncIterator[Publisher]:
        async with self._one_by_one:
            alone = Publisher(self._lifeline, is_for_one=True)
            try:
                yield alone
            finally:
                if alone._channel is not None and not alone._channel.is_closed:
                    await alone._channel.close()

    async def _open_channel(self, ticket: int, patience: Patience) -> AbstractChannel:
        """Return an open channel when this ticket is first in the order."""
        while True:
            await self._lifeline.unblocked(patience)
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
                self._channel = await self._lifeline.channel(confirms=True)
                self._turns.all_come_again()


def _check_header(properties: Properties, channel: AbstractChannel) -> None:
    size_bytes = header_bytes(properties)
    bytes_max = channel.connection.connection_tune.frame_max - _FRAME_BYTES
    if size_bytes > bytes_max:
        raise TooLarge(
            f"headers of {size_bytes} bytes do not fit: RabbitMQ takes up to {bytes_max}. Put what "
            "is large into the payload"
        )


class Errands:
    """The channel for calls that close their channel when they fail."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
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
        patience = Patience(self._lifeline)
        while True:
            try:
                return await self._lifeline.finish(self._run_once(about, errand))
            except Unavailable as lost:
                if not repeatable:
                    raise IoFailure(f"{lost}: whether it was done is not known") from lost
                await patience.wait(lost)

    async def _run_once(
        self, about: str, errand: Callable[[AbstractChannel], Awaitable[Result]]
    ) -> Result:
        async with self._busy:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._lifeline.channel()
            with telling(about):
                return await errand(self._channel)
