"""The exchange that producers know: made, taken over, and kept when the queue is plain again.

An alias is made from outside in: what keeps the homeless first, then the exchange, then the ledger.
It is never deleted, for somebody may publish to it for ever: without replicas it leads to the plain
queue. Bindings are brought to what the ledger says, whatever they were: the weight from before and
the one that is wanted are taken away, and the one that is wanted is bound. That heals a ring too
which somebody's hand has broken (a second binding of the same queue, once it is taken away, leaves
the queue without any place).
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
    """Make the queue elastic, or find how it is; the same again does no harm.

    `arguments`: of the queue if there is none, and of its replicas.
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
    # Who was to make it a plain queue again may have been stopped before the ledger was gone.
    return msgspec.structs.replace(found, is_over=False)


def _of_replicas(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the queue, but for what would have a replica go by itself."""
    return {name: value for name, value in arguments.items() if name != "x-expires"}


async def bind_as_written(link: SteererLink, topology: ElasticTopology) -> None:
    """Bring every binding to what the ledger says; replicas without a queue are left out."""
    for one in topology.replicas:
        if await link.length(replica_name(topology.queue, one.number)) is not None:
            await rebind(link, topology.queue, one)


async def rebind(link: SteererLink, queue: str, replica: ElasticReplica) -> None:
    """Off the ring, and on again with its weight: a round trip in which the others get its part."""
    name = replica_name(queue, replica.number)
    for weight in {replica.weight_before, replica.weight} - {0}:
        await link.unbind(name, queue, weight)
    crash_point("after-unbind")
    if replica.weight:
        await link.bind(name, queue, replica.weight)


async def end_alias(link: SteererLink, topology: ElasticTopology) -> None:
    """A plain queue again: everybody is told, and the ledger goes. The exchange stays."""
    assert not topology.replicas, "replicas are drained first"
    queue = topology.queue
    await write_topology(await link.channel(), topology)
    await link.delete_queue(ledger_name(queue), conditions=False)
