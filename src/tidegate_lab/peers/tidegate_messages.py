"""Tidegate with its public API for single messages: one put, one handler call, one ack each."""

from __future__ import annotations

import asyncio
from functools import partial

import tidegate
from tidegate.core.topology import Range, Scaling, ScalingPolicy
from tidegate_lab.loadgen.processes import ConsumerSide, ProducerSide, run_on_uvloop

PREFETCH = 2000
# The setting that measures a logical queue with one replica instead of a plain queue.
LOGICAL = "logical"
ONE_REPLICA = Scaling(replicas=Range(1, 1), policy=ScalingPolicy.FIXED)
_LOOK_S = 0.05


def produce(side: ProducerSide) -> None:
    """Put all messages, each awaited until it is confirmed."""
    run_on_uvloop(_produce(side))


def consume(side: ConsumerSide) -> None:
    """Consume all messages with one handler call and one acknowledgement for each."""
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
        if LOGICAL in side.work.settings:
            await _spread(mq, queue)
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


async def _spread(mq: tidegate.Client, queue: str) -> None:
    """Turn the queue into a logical queue, and wait until its replica has a share."""
    await mq.set_scaling(queue, ONE_REPLICA)
    while not any(place.share for place in (await mq.topology(queue)).replicas):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)


def _url(port: int) -> str:
    return f"tidegate://127.0.0.1:{port}"
