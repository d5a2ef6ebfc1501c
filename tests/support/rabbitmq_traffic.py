"""Puts and deliveries of an elastic queue, written down for the checker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from rabbitmq_steerer import QUEUE

import tidegate
from tidegate.client.client import Client
from tidegate.demo.history import (
    CheckResult,
    HistoryEvent,
    Operation,
    Outstanding,
    check,
    payload_hash,
)


class Traffic:
    """One producer, and consumers that come and go."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []
        self.put = 0
        self.delivered: set[int] = set()
        self._outstanding = Outstanding()
        self._all_there = asyncio.Event()
        self._is_over = False

    async def produce(self, mq: Client, count: int) -> None:
        """One after the other, each confirmed."""
        for _ in range(count):
            seq, self.put = self.put, self.put + 1
            payload = f"message {seq}".encode()
            self._note("put", "producer", seq, payload, phase="invoke")
            await mq.put(QUEUE, payload)
            self._note("put", "producer", seq, payload)

    async def consume(self, mq: Client, name: str, *, handler_s: float = 0.0) -> None:
        async with mq.subscribe(QUEUE, prefetch=10) as orders:
            async for message in orders:
                seq = int(message.payload.split()[1])
                self._note("deliver", name, seq, message.payload, redelivered=message.redelivered)
                await asyncio.sleep(handler_s)  # the handler's work
                self._note("ack", name, seq, message.payload, phase="invoke")
                message.ack()
                self.delivered.add(seq)
                if self._is_over and not self._outstanding:
                    self._all_there.set()

    async def all_delivered(self) -> None:
        """Until nobody has anything in hand, either."""
        self._is_over = True
        if self._outstanding:
            await self._all_there.wait()

    def _note(
        self,
        op: Operation,
        process: str,
        seq: int,
        payload: bytes,
        *,
        phase: str = "ok",
        redelivered: bool = False,
    ) -> None:
        event = HistoryEvent(
            t=time.monotonic(),
            process=process,
            op=op,
            phase=phase,  # type: ignore[arg-type]
            queue=QUEUE,
            producer="producer",
            seq=seq,
            redelivered=redelivered,
            payload_hash=payload_hash(payload),
        )
        self.events.append(event)
        self._outstanding.feed(event)

    def verdict(self) -> CheckResult:
        return check(self.events, stored=set(), replicated=[QUEUE])


@contextlib.asynccontextmanager
async def consuming(
    url: str, traffic: Traffic, *names: str, handler_s: float = 0.0
) -> AsyncIterator[None]:
    """Consumers for as long as the block lasts, each with a connection of its own."""
    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for name in names:
            mq = await stack.enter_async_context(tidegate.connect(url))
            tasks.append(asyncio.create_task(traffic.consume(mq, name, handler_s=handler_s)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                if not isinstance(result, asyncio.CancelledError):
                    raise AssertionError(f"a consumer ended: {result!r}")
