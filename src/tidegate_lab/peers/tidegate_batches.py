"""Tidegate with its batch API: `put_many`, and one acknowledgement per received batch."""

from __future__ import annotations

import asyncio

import tidegate
from tidegate_lab.loadgen.processes import ConsumerSide, ProducerSide, run_on_uvloop

MESSAGES_PER_PUT = 1000
PUTS_IN_FLIGHT = 8
PREFETCH = 20_000


def produce(side: ProducerSide) -> None:
    """Put all messages in batches, each awaited until it is confirmed."""
    run_on_uvloop(_produce(side))


def consume(side: ConsumerSide) -> None:
    """Consume all messages in batches with one acknowledgement for each batch."""
    run_on_uvloop(_consume(side))


async def _produce(side: ProducerSide) -> None:
    work = side.work
    starts = iter(range(0, work.messages, MESSAGES_PER_PUT))
    async with tidegate.connect(_url(work.port)) as mq:

        async def put_in_turn() -> None:
            for start in starts:
                await mq.put_many(work.queue, side.payloads[start : start + MESSAGES_PER_PUT])

        side.wait_for_go()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PUTS_IN_FLIGHT):
                tasks.create_task(put_in_turn())
        side.confirmed_all()


async def _consume(side: ConsumerSide) -> None:
    queue = side.work.queue
    async with tidegate.connect(_url(side.work.port)) as mq:
        await mq.create_queue(queue, durable=True)
        async with mq.subscribe(queue, prefetch=PREFETCH) as subscription:
            side.ready()
            async for batch in subscription.batches():
                for payload in batch.payloads:
                    side.handle(payload)
                batch.ack()
                if side.complete:
                    break
            await mq.ping()  # A round trip: the node has taken the last ack.
            side.acknowledged_all()
        await mq.delete_queue(queue)


def _url(port: int) -> str:
    return f"tidegate://127.0.0.1:{port}"
