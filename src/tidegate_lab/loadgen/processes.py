"""The parts of a measurement that are the same for every system: payloads, clock, latencies, start.

A contender (a module in `lab/peers`) has a function `produce(side)` and a function `consume(side)`,
which only drive a client library. The clock starts at the first put and stops when the consumer has
acknowledged the last message.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

import msgspec
import uvloop

from tidegate.lab.bench.payload import LatencyRecord, PayloadChecker, make_payload

READY_LINE = "ready"
GO_LINE = "go"
PACE_TICK_S = 0.001
# At a fixed rate a slow system falls behind. With more unconfirmed messages it counts as failed.
UNCONFIRMED_MAX = 20_000

Mode = Literal["throughput", "latency"]
Role = Literal["produce", "consume"]


class Work(msgspec.Struct, frozen=True):
    """The task of one process of a measurement."""

    module: str
    role: Role
    mode: Mode
    port: int
    queue: str
    messages: int
    in_flight: int
    rate_per_s: float = 0.0
    settings: dict[str, str] = msgspec.field(default_factory=dict)


class Outcome(msgspec.Struct, frozen=True):
    """The result of one process.

    Latencies are None in a throughput run, and NaN if a latency run recorded none.
    """

    messages: int
    begun_ns: int
    ended_ns: int
    p50_ms: float | None = None
    p99_ms: float | None = None


class _Side:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.latency = LatencyRecord(work.messages) if work.mode == "latency" else None
        self.begun_ns = 0
        self.ended_ns = 0

    def outcome(self, messages: int) -> Outcome:
        """Return the result after the work is done."""
        return Outcome(
            messages=messages,
            begun_ns=self.begun_ns,
            ended_ns=self.ended_ns,
            p50_ms=self.latency.percentile_ms(0.50) if self.latency else None,
            p99_ms=self.latency.percentile_ms(0.99) if self.latency else None,
        )


class ProducerSide(_Side):
    """The producer's side: sends each sequence number once and counts confirmations."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        # Made before the clock starts: the time to make payloads is no system's time.
        self.payloads = (
            [make_payload(sequence, 0) for sequence in range(work.messages)]
            if work.mode == "throughput"
            else []
        )

    def wait_for_go(self) -> None:
        """Report that the producer is connected, and wait until the consumer is ready too."""
        print(READY_LINE, flush=True)
        if sys.stdin.readline().strip() != GO_LINE:
            raise SystemExit("the measurement was called off")
        self.begun_ns = time.monotonic_ns()

    def confirmed_all(self) -> None:
        """Stop the producer's clock."""
        self.ended_ns = time.monotonic_ns()

    def confirmed(self, sent_ns: int) -> None:
        """Record the confirmation of a message that was sent at `sent_ns`."""
        if self.latency is not None:
            self.latency.add_since(sent_ns)

    async def put_all(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        """Send all messages, with one awaited call of `put` for each.

        In throughput mode, `in_flight` tasks put at the same time. In latency mode, messages are
        put at the fixed rate without waiting for answers.
        """
        if self.work.mode == "throughput":
            await self._put_by_tasks(put)
        else:
            await self._put_paced(put)
        self.confirmed_all()

    async def _put_by_tasks(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        payloads = iter(self.payloads)

        async def put_in_turn() -> None:
            # All tasks share the iterator; each takes the next payload after its put returned.
            for payload in payloads:
                await put(payload)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.work.in_flight):
                tasks.create_task(put_in_turn())

    async def _put_paced(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        unconfirmed = 0

        async def put_once(sequence: int) -> None:
            nonlocal unconfirmed
            sent_ns = time.monotonic_ns()
            await put(make_payload(sequence, sent_ns))
            self.confirmed(sent_ns)
            unconfirmed -= 1

        begun_s = time.monotonic()
        sent = 0
        async with asyncio.TaskGroup() as tasks:
            while sent < self.work.messages:
                due = self.due_after(time.monotonic() - begun_s)
                for sequence in range(sent, due):
                    unconfirmed += 1
                    tasks.create_task(put_once(sequence))
                sent = due
                self.check_backlog(unconfirmed)
                await asyncio.sleep(PACE_TICK_S)

    def due_after(self, elapsed_s: float) -> int:
        """Return how many messages must be sent after `elapsed_s` at the fixed rate."""
        return min(self.work.messages, int(elapsed_s * self.work.rate_per_s) + 1)

    def check_backlog(self, unconfirmed: int) -> None:
        """Raise `RuntimeError` if the system is too far behind the offered rate."""
        if unconfirmed > UNCONFIRMED_MAX:
            raise RuntimeError(
                f"{unconfirmed} messages unconfirmed at {self.work.rate_per_s:.0f} msg/s offered"
            )


class ConsumerSide(_Side):
    """The consumer's side: checks every message and records its latency."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.checker = PayloadChecker(work.messages)

    @property
    def complete(self) -> bool:
        """Whether every message has arrived."""
        return self.checker.complete

    def ready(self) -> None:
        """Report that the queue exists and the consumer is subscribed."""
        print(READY_LINE, flush=True)
        self.begun_ns = time.monotonic_ns()

    def handle(self, payload: bytes) -> None:
        """Check one message and record its latency."""
        sent_ns = self.checker.check(payload)
        if self.latency is not None:
            self.latency.add_since(sent_ns)

    def acknowledged_all(self) -> None:
        """Stop the clock after the last message has been acknowledged."""
        self.ended_ns = time.monotonic_ns()


def run_on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    """Run an asyncio contender on uvloop, the fastest loop, for every system."""
    uvloop.run(main)
