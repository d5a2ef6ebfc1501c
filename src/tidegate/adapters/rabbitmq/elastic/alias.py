"""The exchange that producers publish to: its creation, its bindings, and its end.

The order of creation is: the fallback for messages without a replica, the exchange, the topology
queue. A failure in between leaves nothing that loses messages.

The exchange is never deleted, since producers may keep publishing to it. Without replicas it routes
everything to the plain queue.

`rebind` brings a binding to the stored state from any other state. It removes the binding with the
previous weight and the one with the wanted weight, then binds with the wanted weight. This also
repairs a ring after manual changes: if a queue was bound twice and one binding is removed, RabbitMQ
leaves the queue without any part of the ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.adapters.rabbitmq.elastic.ledger import (
    LEDGER_ARGUMENTS,
    read_topology,
    write_topology,
)
from tidegate.adapters.rabbitmq.elastic.link import SteererLink
from tidegate.adapters.rabbitmq.elastic.refusal import InTheWay, told
from tidegate.adapters.rabbitmq.elastic.topology import (
    NEWS,
    ElasticReplica,
    ElasticTopology,
    ledger_name,
    rest_name,
)
from tidegate.core.crash import crash_point
from tidegate.core.errors import InvalidValue
from tidegate.core.replication import replica_name

_ANSWER_S = 10.0
HASH = "x-consistent-hash"


async def make_alias(
    link: SteererLink, queue: str, arguments: Mapping[str, Any]
) -> ElasticTopology:
    """Make the queue elastic, or return its stored topology; safe to repeat.

    `arguments` are the arguments of the queue, if it does not exist, and of its replicas. Raises
    InvalidValue if another exchange has the queue's name.
    """
    if await link.length(queue) is None:
        await link.declare_queue(queue, dict(arguments))
    channel = await link.channel()
    with told(f"queue {queue!r}"):
        await channel.exchange_declare(
            rest_name(queue), exchange_type="fanout", durable=True, timeout=_ANSWER_S
        )
        await channel.queue_bind(queue, rest_name(queue), timeout=_ANSWER_S)
        await channel.exchange_declare(
            NEWS, exchange_type="direct", durable=True, timeout=_ANSWER_S
        )
    try:
        with told(f"exchange {queue!r}"):
            await channel.exchange_declare(
                queue,
                exchange_type=HASH,
                durable=True,
                arguments={"alternate-exchange": rest_name(queue)},
                timeout=_ANSWER_S,
            )
    except InTheWay as other:
        raise InvalidValue(
            f"there is an exchange {queue} already, and it is no alias of ours ({other}): it has "
            "to go, or the queue needs another name"
        ) from other
    await link.declare_queue(ledger_name(queue), dict(LEDGER_ARGUMENTS))
    found = await read_topology(await link.channel(), queue, is_empty_fine=True)
    if found is None:
        is_classic = await link.is_classic(queue)
        found = ElasticTopology(
            queue=queue, version=0, is_classic=is_classic, arguments=_of_replicas(arguments)
        )
        return await write_topology(await link.channel(), found)
    # A controller may have been stopped while it made the queue plain, before it deleted the
    # topology queue.
    return msgspec.structs.replace(found, is_over=False)


def _of_replicas(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the queue's arguments without those that let a replica expire."""
    return {name: value for name, value in arguments.items() if name != "x-expires"}


async def bind_as_written(link: SteererLink, topology: ElasticTopology) -> None:
    """Bring all bindings to the stored topology; replicas without a queue are skipped."""
    for one in topology.replicas:
        if await link.length(replica_name(topology.queue, one.number)) is not None:
            await rebind(link, topology.queue, one)


async def rebind(link: SteererLink, queue: str, replica: ElasticReplica) -> None:
    """Remove a replica's binding and bind it with its weight.

    For one round trip the other replicas get its part of the messages.
    """
    name = replica_name(queue, replica.number)
    for weight in {replica.weight_before, replica.weight} - {0}:
        await link.unbind(name, queue, weight)
    crash_point("after-unbind")
    if replica.weight:
        await link.bind(name, queue, replica.weight)


async def end_alias(link: SteererLink, topology: ElasticTopology) -> None:
    """Make the queue plain again: publish that to all clients, and delete the topology queue.

    The exchange stays.
    """
    assert not topology.replicas, "replicas are drained first"
    queue = topology.queue
    await write_topology(await link.channel(), topology)
    await link.delete_queue(ledger_name(queue), conditions=False)
