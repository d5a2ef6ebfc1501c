"""Where the document of an elastic queue is kept: a queue that has room for one message.

The broker drops the older of two, so the newest stays, and it is as durable as any message. To read
is to take it and give it back; while somebody reads, another finds nothing and asks again. Whoever
listens to the news hears of the change at once, and of one that it has missed when it reads.
"""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
from aiormq import spec
from aiormq.abc import AbstractChannel

from tidegate.adapters.rabbitmq.elastic.refusal import told
from tidegate.adapters.rabbitmq.elastic.topology import (
    NEWS,
    ElasticTopology,
    decoded,
    ledger_name,
)
from tidegate.core.errors import QueueNotExisting, Unavailable

_ANSWER_S = 10.0
# Others read too, each for the time of a round trip.
_READS_MAX = 200
_READ_AGAIN_S = 0.01
LEDGER_ARGUMENTS: dict[str, int | str] = {"x-max-length": 1, "x-overflow": "drop-head"}


class LedgerEmpty(Unavailable):
    """It is there, and whoever looked for long enough found nothing in it."""


async def read_topology(
    channel: AbstractChannel, queue: str, *, is_empty_fine: bool = False
) -> ElasticTopology | None:
    """The newest document; None: the queue is not elastic (then the channel is closed).

    `is_empty_fine`: who made it may not have got to write it.
    """
    name = ledger_name(queue)
    for attempt in range(_READS_MAX):
        try:
            with told(f"queue {name!r}"):
                found = await channel.basic_get(name, timeout=_ANSWER_S)
        except QueueNotExisting:
            return None
        if isinstance(found.delivery, spec.Basic.GetOk):
            topology = decoded(found.body)
            with told(f"queue {name!r}"):
                await channel.basic_nack(found.delivery.delivery_tag or 0, requeue=True)
            if topology is not None:
                return topology
        elif is_empty_fine and attempt > _READS_MAX // 10:
            return None
        # Not all at the same time.
        await asyncio.sleep(_READ_AGAIN_S * random.uniform(0.5, 1.5))
    raise LedgerEmpty(
        f"queue {name} should hold what the replicas of {queue} are, and holds nothing: whoever "
        f"emptied it can have it made again by `tidegate steer … --queue {queue}`"
    )


async def write_topology(channel: AbstractChannel, topology: ElasticTopology) -> ElasticTopology:
    """Keep it under a higher version, and tell everybody; returns when the broker has it."""
    # Of the clock, too: should the ledger be lost, the next versions are higher all the same.
    version = max(topology.version + 1, int(time.time() * 1000))
    written = msgspec.structs.replace(topology, version=version)
    body = written.encode()
    with told(f"queue {topology.queue!r}"):
        await channel.basic_publish(
            body,
            routing_key=ledger_name(topology.queue),
            properties=spec.Basic.Properties(delivery_mode=2, content_type="application/json"),
            mandatory=True,
            timeout=_ANSWER_S,
        )
        await channel.basic_publish(
            body,
            exchange=NEWS,
            routing_key=topology.queue,
            properties=spec.Basic.Properties(content_type="application/json"),
            timeout=_ANSWER_S,
        )
    return written
