"""A probe consumer: it measures broker and network with a queue and a handler of its own.

Theory of operation.

`tidegate tune prefetch --probe` needs a consumer whose rate depends on the prefetch only. A
`ProbeConsumer` creates a temporary queue beside the queue in question. One task keeps it filled
with about 2,000 messages beyond the prefetch; a consumer with a paced handler empties it. Messages
of other queues are never touched.

The engine supplies a `ProbeQueue`: how to create the queue, to put into it and to consume from it.
The probe feeds it, counts deliveries, and reports a sample as `starved` if the queue ran short.

Failures: if the feeding task fails, the next `measure` raises IoFailure. `close` removes the queue,
also after an `open` that failed halfway.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from tidegate.core.errors import IoFailure
from tidegate.core.prefetch import ConsumerSample
from tidegate.core.text import format_duration, format_size

# Messages beyond the prefetch: enough for a fifth of a second at 10,000 messages a second.
AHEAD = 2000
FULL_PAUSE_S = 0.01
PREFETCH_FIRST = 1
# A longer delay is not the timer's inaccuracy: the process was busy otherwise, and the handler does
# not make up for it.
LATE_S_MAX = 0.01


class PacedHandler:
    """A handler that takes a fixed mean time per message, without using a processor.

    It handles one message after the other. Timers fire up to a millisecond late, and less so the
    more often the event loop wakes up for other reasons. A larger prefetch would thus seem to make
    the handler faster. So each message begins when the one before was due, not when the timer
    fired.
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
        # Delay of the last timer; below 0 if it fired early, as timers round.
        self._late_s = 0.0

    async def turn(self) -> None:
        """Return when a message that arrives now would be done."""
        if self._handler_s <= 0.0:
            return
        now, late_s = self._monotonic(), self._late_s
        # Use the delay once: a message that arrives in the meantime waits for this one anyway.
        self._late_s = 0.0
        self._free_at = due_at = max(self._free_at, now - late_s) + self._handler_s
        await self._sleep(max(due_at - now, 0.0))
        self._late_s = min(self._monotonic() - due_at, LATE_S_MAX)


class ProbeQueue(Protocol):
    """A temporary queue of one engine, with one consumer."""

    # Messages per put; the consumer runs between two puts.
    put_at_once: int

    @property
    def name(self) -> str:
        """The queue's name at the broker; "" before it exists."""

    async def open(self) -> None:
        """Create the queue."""

    async def put(self, payloads: list[bytes]) -> None:
        """Put messages into the queue."""

    async def consume(self, handle: Callable[[], Awaitable[None]]) -> None:
        """Begin to consume with `PREFETCH_FIRST`.

        The queue acknowledges each message when `handle` returns.
        """

    async def apply_prefetch(self, prefetch: int) -> None:
        """Set the prefetch from now on."""

    async def close(self) -> None:
        """Remove the queue and disconnect, also after an `open` that failed halfway."""


class ProbeConsumer:
    """A consumer that feeds its own queue; call `open` before `measure`."""

    feeds_itself = True

    def __init__(self, own: ProbeQueue, queue: str, *, handler_s: float, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.description = (
            f"a probe of our own on a queue beside {queue}, with messages of "
            f"{format_size(size_bytes)} and {format_duration(handler_s)} for each: this measures "
            "broker and network, and not your handler (--worker does)"
        )
        self.restored_text = f"the probe and its queue are gone, and {queue} is as it was"
        self._own = own
        self._handler = PacedHandler(handler_s)
        self._delivered = 0
        self._fed = 0
        self._prefetch = PREFETCH_FIRST
        self._ran_short = False
        self._feeding: asyncio.Task[None] | None = None

    @property
    def own_queue(self) -> str:
        """The name of the probe's queue at the broker."""
        return self._own.name

    # Interface of the experiment

    async def open(self) -> None:
        """Create the queue, fill it, and begin to consume."""
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

    # Feeding

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
            # Let the consumer run.
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
