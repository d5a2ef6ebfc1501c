"""The two sides of a measurement: what a contender's producer and consumer are given.

Strategy: a contender only drives its client library. Payloads, the clock, latency records and
the start signal come from here, so they are the same for every system. The clock starts at the
first put and ends when the last message has been acknowledged by the consumer.
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
# Open loop means that a slow system falls behind; beyond this many it is said to have failed.
UNCONFIRMED_MAX = 20_000

Mode = Literal["throughput", "latency"]
Role = Literal["produce", "consume"]


class Work(msgspec.Struct, frozen=True):
    """One process's share of one measurement."""

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
    """What one process measured; latencies are NaN when none were recorded."""

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
        """The figures, once the work is done."""
        return Outcome(
            messages=messages,
            begun_ns=self.begun_ns,
            ended_ns=self.ended_ns,
            p50_ms=self.latency.percentile_ms(0.50) if self.latency else None,
            p99_ms=self.latency.percentile_ms(0.99) if self.latency else None,
        )


class ProducerSide(_Side):
    """Sends every sequence once, confirmed."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        # Made before the clock starts, for every system: making them is no system's work.
        self.payloads = (
            [make_payload(sequence, 0) for sequence in range(work.messages)]
            if work.mode == "throughput"
            else []
        )

    def wait_for_go(self) -> None:
        """Report that everything is connected; return when the consumer is ready as well."""
        print(READY_LINE, flush=True)
        if sys.stdin.readline().strip() != GO_LINE:
            raise SystemExit("the measurement was called off")
        self.begun_ns = time.monotonic_ns()

    def confirmed_all(self) -> None:
        """Stop the producer's clock."""
        self.ended_ns = time.monotonic_ns()

    def confirmed(self, sent_ns: int) -> None:
        """Note that one message has been confirmed."""
        if self.latency is not None:
            self.latency.add_since(sent_ns)

    async def put_all(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        """Put every message through an awaited call per message, in this side's mode."""
        if self.work.mode == "throughput":
            await self._put_by_tasks(put)
        else:
            await self._put_paced(put)
        self.confirmed_all()

    async def _put_by_tasks(self, put: Callable[[bytes], Awaitable[object]]) -> None:
        payloads = iter(self.payloads)

        async def put_in_turn() -> None:
            # The iterator is shared: each task takes the next payload once its put returned.
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
        """How many messages an evenly paced producer has sent by then."""
        return min(self.work.messages, int(elapsed_s * self.work.rate_per_s) + 1)

    def check_backlog(self, unconfirmed: int) -> None:
        """Fail when the system is too far behind the offered rate."""
        if unconfirmed > UNCONFIRMED_MAX:
            raise RuntimeError(
                f"{unconfirmed} messages unconfirmed at {self.work.rate_per_s:.0f} msg/s offered"
            )


class ConsumerSide(_Side):
    """Takes every message in, checked."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.checker = PayloadChecker(work.messages)

    @property
    def complete(self) -> bool:
        """Whether every message has come."""
        return self.checker.complete

    def ready(self) -> None:
        """Report that the queue exists and the subscription stands."""
        print(READY_LINE, flush=True)
        self.begun_ns = time.monotonic_ns()

    def handle(self, payload: bytes) -> None:
        """The handler: check one message and record its latency."""
        sent_ns = self.checker.check(payload)
        if self.latency is not None:
            self.latency.add_since(sent_ns)

    def acknowledged_all(self) -> None:
        """Stop the clock: the last message has been acknowledged."""
        self.ended_ns = time.monotonic_ns()


def run_on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    """Run an asyncio contender on the fastest loop there is, whoever it measures."""
    uvloop.run(main)
