"""RabbitMQ with aio-pika: many tasks each await a confirmed publish."""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

from tidegate_lab.loadgen.processes import ConsumerSide, ProducerSide, run_on_uvloop

PREFETCH = 1000


def produce(side: ProducerSide) -> None:
    """Publish all messages, each confirmed."""
    run_on_uvloop(_produce(side))


def consume(side: ConsumerSide) -> None:
    """Consume all messages with a callback that acknowledges each."""
    run_on_uvloop(_consume(side))


async def _produce(side: ProducerSide) -> None:
    queue_name = side.work.queue
    async with await aio_pika.connect(_url(side.work.port)) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange = channel.default_exchange

        async def put(payload: bytes) -> object:
            message = aio_pika.Message(payload, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            return await exchange.publish(message, queue_name)

        side.wait_for_go()
        await side.put_all(put)


async def _consume(side: ConsumerSide) -> None:
    work = side.work
    finished = asyncio.Event()
    failures: list[Exception] = []
    async with await aio_pika.connect(_url(work.port)) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue: AbstractQueue = await channel.declare_queue(
            work.queue, durable=True, arguments={"x-queue-type": work.settings["queue_type"]}
        )

        async def handle(message: AbstractIncomingMessage) -> None:
            # The library logs errors of a callback and continues; the measurement must fail.
            try:
                side.handle(message.body)
            except Exception as failure:
                failures.append(failure)
                finished.set()
            await message.ack()
            if side.complete:
                finished.set()

        await queue.consume(handle)
        side.ready()
        await finished.wait()
        if failures:
            raise failures[0]
        await channel.set_qos(prefetch_count=PREFETCH)  # Answered after the last ack was taken.
        side.acknowledged_all()
        await queue.delete(if_unused=False, if_empty=False)


def _url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=0"
