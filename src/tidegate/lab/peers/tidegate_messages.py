"""Tidegate through its public API for single messages: a put awaited, a handler call, an ack."""

from __future__ import annotations

from functools import partial

import tidegate
from tidegate.lab.bench.side import ConsumerSide, ProducerSide, run_on_uvloop

PREFETCH = 2000


def produce(side: ProducerSide) -> None:
    """Put everything, each awaited until it is confirmed."""
    run_on_uvloop(_produce(side))


def consume(side: ConsumerSide) -> None:
    """Take everything in, one handler call and one ack per message."""
    run_on_uvloop(_consume(side))


async def _produce(side: ProducerSide) -> None:
    queue = side.work.queue
    async with tidegate.connect(_url(side.work.port)) as mq:
        side.wait_for_go()
        await side.put_all(partial(mq.put, queue))


async def _consume(side: ConsumerSide) -> None:
    queue = side.work.queue
    async with tidegate.connect(_url(side.work.port)) as mq:
        await mq.create_queue(queue, durable=True)
        async with mq.subscribe(queue, prefetch=PREFETCH) as subscription:
            side.ready()
            async for message in subscription:
                side.handle(message.payload)
                message.ack()
                if side.complete:
                    break
            await mq.ping()  # A round trip: the node has taken the last ack.
            side.acknowledged_all()
        await mq.delete_queue(queue)


def _url(port: int) -> str:
    return f"tidegate://127.0.0.1:{port}"
