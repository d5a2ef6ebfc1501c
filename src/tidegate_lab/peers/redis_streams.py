"""Redis streams as a work queue: pipelined XADD, and XREADGROUP, XACK and XDEL in batches.

redis-py uses many times the processor time of Redis. The producer therefore uses the library's
pipeline, with one round trip for many commands, and the consumer handles whole batches. XDEL makes
the stream a queue, from which acknowledged messages are deleted.
"""

from __future__ import annotations

import itertools
from typing import Any

import redis
import redis.asyncio

from tidegate_lab.loadgen.processes import ConsumerSide, ProducerSide, run_on_uvloop

GROUP = "workers"
CONSUMER = "worker"
FIELD = b"p"
READ_COUNT = 1000
BLOCK_MS = 1000
POOL_SIZE = 50


def produce(side: ProducerSide) -> None:
    """Add all messages; Redis answers each after it has flushed its append-only file."""
    if side.work.mode == "throughput":
        _produce_at_full_speed(side)
    else:
        run_on_uvloop(_produce_paced(side))


def consume(side: ConsumerSide) -> None:
    """Read all messages through a consumer group, and acknowledge and delete each batch."""
    stream = side.work.queue
    client = redis.Redis(port=side.work.port)
    client.xgroup_create(stream, GROUP, id="0", mkstream=True)
    side.ready()
    while not side.complete:
        answer: Any = client.xreadgroup(
            GROUP, CONSUMER, {stream: ">"}, count=READ_COUNT, block=BLOCK_MS
        )
        if not answer:
            continue
        entries = answer[0][1]
        for _, fields in entries:
            side.handle(fields[FIELD])
        entry_ids = [entry_id for entry_id, _ in entries]
        with client.pipeline(transaction=False) as pipeline:
            pipeline.xack(stream, GROUP, *entry_ids)
            pipeline.xdel(stream, *entry_ids)
            pipeline.execute()
    side.acknowledged_all()
    client.delete(stream)
    client.close()


def _produce_at_full_speed(side: ProducerSide) -> None:
    work = side.work
    client = redis.Redis(port=work.port)
    client.ping()
    side.wait_for_go()
    payloads = iter(side.payloads)
    while batch := list(itertools.islice(payloads, work.in_flight)):
        with client.pipeline(transaction=False) as pipeline:
            for payload in batch:
                pipeline.xadd(work.queue, {FIELD: payload})
            pipeline.execute()
    side.confirmed_all()
    client.close()


async def _produce_paced(side: ProducerSide) -> None:
    # A connection carries one command at a time, so several commands in flight need a pool.
    pool = redis.asyncio.BlockingConnectionPool(port=side.work.port, max_connections=POOL_SIZE)
    async with redis.asyncio.Redis(connection_pool=pool) as client:
        await client.ping()

        async def put(payload: bytes) -> object:
            return await client.xadd(side.work.queue, {FIELD: payload})

        side.wait_for_go()
        await side.put_all(put)
