"""A consumer of our own on a queue of its own: what broker and network can do, and nobody's work.

Strategy: a temporary queue beside the one that is asked about is kept full by ourselves, and a
handler that only takes its time consumes it; nobody's messages are touched. What an engine does
differently (the queue, a put, a subscription) is its `ProbeQueue`; the probe feeds it and counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from tidegate.core.errors import IoFailure
from tidegate.core.prefetch import ConsumerSample
from tidegate.core.quantities import format_duration, format_size

# Beyond what the consumer holds: enough for a fifth of a second at 10 000 messages a second.
AHEAD = 2000
FULL_PAUSE_S = 0.01
PREFETCH_FIRST = 1
# What is later is no timer, but a machine that did something else: nobody makes up for that.
LATE_S_MAX = 0.01


class PacedHandler:
    """One message after the other, each for so long on average, without using a processor for it.

    Timers are late by up to a millisecond, and the less so the more often a loop wakes up for other
    things: a consumer to which more is sent would seem to have a quicker handler. So the next
    message begins when the one before was due, and not when that was noticed.
    """

    def __init__(
        self,
        handler_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._handler_s = handler_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._free_at = 0.0
        # By how much the last one was noticed late; below 0: early, as timers round.
        self._late_s = 0.0

    async def turn(self) -> None:
        """Returns when a message that comes now is done."""
        if self._handler_s <= 0.0:
            return
        now, late_s = self._monotonic(), self._late_s
        # Once: who comes meanwhile has to wait for this one anyway.
        self._late_s = 0.0
        self._free_at = due_at = max(self._free_at, now - late_s) + self._handler_s
        await self._sleep(max(due_at - now, 0.0))
        self._late_s = min(self._monotonic() - due_at, LATE_S_MAX)


class ProbeQueue(Protocol):
    """A temporary queue of one engine, and the way to its one consumer."""

    # How many are put in one go: between two of them the consumer has its turn.
    put_at_once: int

    @property
    def name(self) -> str:
        """What the broker calls it; "" while it is not made."""

    async def open(self) -> None:
        """Make the queue."""

    async def put(self, payloads: list[bytes]) -> None:
        """Put some into it, in good time."""

    async def consume(self, handle: Callable[[], Awaitable[None]]) -> None:
        """Begin, with PREFETCH_FIRST; each message is acknowledged when `handle` has returned."""

    async def apply_prefetch(self, prefetch: int) -> None:
        """From now on."""

    async def close(self) -> None:
        """Remove the queue and let go of the broker; also of one that was opened only half."""


class Probe:
    """Keeps a queue full and consumes it; open it before it is measured."""

    feeds_itself = True

    def __init__(self, own: ProbeQueue, queue: str, *, handler_s: float, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.says = (
            f"a probe of our own on a queue beside {queue}, with messages of "
            f"{format_size(size_bytes)} and {format_duration(handler_s)} for each: this measures "
            "broker and network, and not your handler (--worker does)"
        )
        self.leaves = f"the probe and its queue are gone, and {queue} is as it was"
        self._own = own
        self._handler = PacedHandler(handler_s)
        self._delivered = 0
        self._fed = 0
        self._prefetch = PREFETCH_FIRST
        self._ran_short = False
        self._feeding: asyncio.Task[None] | None = None

    @property
    def own_queue(self) -> str:
        """What the broker calls the queue that is the probe's."""
        return self._own.name

    # What the experiment uses.

    async def open(self) -> None:
        """A full queue and a consumer."""
        try:
            await self._own.open()
            await self._fill()
            self._feeding = asyncio.create_task(self._feed())
            await self._own.consume(self._handle)
        except BaseException:
            await self.close()
            raise

    async def set_prefetch(self, prefetch: int) -> None:
        if prefetch != self._prefetch:
            await self._own.apply_prefetch(prefetch)
            self._prefetch = prefetch

    async def measure(self, interval_s: float) -> ConsumerSample:
        loop = asyncio.get_running_loop()
        begun_at, before = loop.time(), self._delivered
        self._ran_short = False
        await asyncio.sleep(interval_s)
        self._check_feeding()
        now = loop.time()
        return ConsumerSample(
            at=now,
            interval_s=now - begun_at,
            arrived_per_s=(self._delivered - before) / (now - begun_at),
            prefetch=float(self._prefetch),
            starved=self._ran_short,
        )

    async def close(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._feeding
        await self._own.close()

    async def _handle(self) -> None:
        self._delivered += 1
        await self._handler.turn()

    # Keeping it full.

    def _missing(self) -> int:
        waiting = self._fed - self._delivered - self._prefetch
        if waiting <= 0:
            self._ran_short = True
        return AHEAD - waiting

    async def _fill(self) -> None:
        payload = bytes(self.size_bytes)
        while (missing := self._missing()) > 0:
            count = min(missing, self._own.put_at_once)
            await self._own.put([payload] * count)
            self._fed += count
            # The consumer's turn.
            await asyncio.sleep(0)

    async def _feed(self) -> None:
        while True:
            await self._fill()
            await asyncio.sleep(FULL_PAUSE_S)

    def _check_feeding(self) -> None:
        if self._feeding is None or not self._feeding.done():
            return
        failure = self._feeding.exception()
        raise IoFailure(f"the probe was cut off from the broker: {failure}") from failure
