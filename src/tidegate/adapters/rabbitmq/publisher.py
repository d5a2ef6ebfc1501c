"""Publishing that is confirmed, and declaring; each on a channel that is reopened when it closes.

What RabbitMQ refuses, it refuses by closing the channel, and everything else on it fails too. So
publishes share one channel, and declarations have another, one at a time. What was on its way when
a publish was refused is published again on a channel of its own, where it is clear who was meant. A
publish whose connection was lost before the confirmation is published again when there is another
one, too. Both say so: it may come twice, flagged, but not never. What ends the whole connection,
and would end the next as well, is refused here: headers that do not fit into a frame. While
RabbitMQ blocks publishers nothing is sent: a put waits, and what was sent before is waited for.

Puts stay in the order in which they were begun, over lost connections, too: who comes again goes
first. Not so what RabbitMQ refused, which others may overtake: a queue that is full or failing,
and is asked again after a pause, and a refusal that closed the channel of everybody on it.
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
# What a frame is around what is in it.
_FRAME_BYTES = 8
# A queue that is being made, or changes its leader, refuses for a moment what it takes later.
_PAUSES_S = (0.02, 0.05, 0.1, 0.2)


class Publisher:
    """One client's channel for what it publishes."""

    def __init__(self, lifeline: Lifeline, *, is_for_one: bool = False) -> None:
        self._lifeline = lifeline
        # Who is refused then was meant.
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
        """Returns when a queue has it; QueueNotExisting when none would.

        `once`: it is not for the next connection if this one ends.
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
                        # Nothing has been waited for since it was its turn.
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
                # Who shares a channel is refused with whoever was meant.
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
        """One that is open, when it is the turn of this ticket."""
        while True:
            await self._lifeline.unblocked(patience)
            if not self._turns.is_first(ticket):
                await self._turns.wait(ticket)
            elif self._channel is None or self._channel.is_closed:
                await self._reopen()
            else:
                return self._channel

    async def _reopen(self) -> None:
        # Who was first and is at it may be so no longer, and another one is.
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
    """One client's channel for what closes channels when it fails."""

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
        """Run it, again if the connection was lost before the answer."""
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
