"""Storage of an elastic queue's topology: a RabbitMQ queue that holds one message.

The queue has a maximum length of one and drops the older message, so it always holds the newest
topology, as durably as any message. To read it, a client gets the message and requeues it.
Meanwhile another reader finds the queue empty and retries.

Every write also publishes the topology to the feed exchange, for the clients that listen.
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
# Other readers may hold the message, each for one round trip.
_READS_MAX = 200
_READ_AGAIN_S = 0.01
LEDGER_ARGUMENTS: dict[str, int | str] = {"x-max-length": 1, "x-overflow": "drop-head"}


class LedgerEmpty(Unavailable):
    """The topology queue exists and stayed empty for all attempts to read it."""


async def read_topology(
    channel: AbstractChannel, queue: str, *, is_empty_fine: bool = False
) -> ElasticTopology | None:
    """Return the stored topology; None if the queue is not elastic (the channel is then closed).

    `is_empty_fine` also returns None if the topology queue stays empty: its creator may have been
    stopped before it wrote. Otherwise that raises TopologyMissing.
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
        # Random pauses keep concurrent readers apart.
        await asyncio.sleep(_READ_AGAIN_S * random.uniform(0.5, 1.5))
    raise LedgerEmpty(
        f"queue {name} should hold what the replicas of {queue} are, and holds nothing: whoever "
        f"emptied it can have it made again by `tidegate steer … --queue {queue}`"
    )


async def write_topology(channel: AbstractChannel, topology: ElasticTopology) -> ElasticTopology:
    """Store a topology under a higher version and publish it; return it when the broker has it."""
    # Based on the clock too, so that versions increase even if the stored topology is lost.
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
