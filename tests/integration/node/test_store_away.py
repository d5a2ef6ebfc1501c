"""A node on two stores, of which one goes away and comes back."""

from __future__ import annotations

import asyncio

from backing import PostgresBacking
from logical_queue import LogicalQueue
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.runtime import NodeLimits
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.sharded import ShardedStore


async def test_puts_go_on_while_a_store_is_away_and_nothing_of_it_is_lost(
    embedded_url: str, other_server: EmbeddedPostgres
) -> None:
    urls = [PostgresBacking("first", embedded_url).url, other_server.url]
    node = Node(ShardedStore(urls), name="node", limits=NodeLimits(lease_s=1.0))
    await node.start()
    mq = await Client(node.address, mode="admin").open()
    consumer = await Client(node.address).open()
    plain = await mq.create_queue("plain")
    orders = await LogicalQueue.make(mq, [node], 2)
    there = await orders.place(2)
    assert there.store_number == 1
    got: set[bytes] = set()

    async def consume() -> None:
        async with consumer.subscribe("orders") as subscription:
            async for message in subscription:
                got.add(message.payload)
                message.ack()

    for number in range(20):
        await mq.put("orders", b"before %d" % number)
    assert (await orders.waiting())[2] > 0

    other_server.stop()
    # Some go to the replica that cannot store them: nobody knows yet.
    hanging = [asyncio.ensure_future(mq.put("orders", b"during %d" % n)) for n in range(20)]
    await mq.put("plain", b"another queue")

    async def is_known_to_be_away() -> bool:
        return (await orders.place(2)).address is None

    await eventually_async(is_known_to_be_away)
    await orders.look()
    for number in range(50):
        await mq.put("orders", b"after %d" % number)
    assert bytes((await consumer.get("plain")).payload) == b"another queue"
    await eventually_async(lambda: not node.replicas[there.queue_id].context.may_deliver())

    other_server.start()
    await asyncio.gather(*hanging)
    consuming = asyncio.create_task(consume())
    wanted = {b"%s %d" % (when, n) for when, n in _all()}

    async def is_all_here() -> bool:
        if not got < wanted or consuming.done():
            return True
        # The consumer is at one of the two; what waits at the other goes there.
        places = [await orders.place(number) for number in (1, 2)]
        owned = [await orders.bring(node, place.queue_id) for place in places]
        taker = next((each for each in owned if each.numbers().consumers), owned[0])
        giver = next(each for each in owned if each is not taker)
        await node.exchange.pull(taker, giver.info.queue_id, 1000)
        return False

    await eventually_async(is_all_here)
    assert got == wanted
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    assert plain.queue_id in node.replicas
    await consumer.close()
    await mq.close()
    await node.stop()


def _all() -> list[tuple[bytes, int]]:
    counts = {b"before": 20, b"during": 20, b"after": 50}
    return [(when, n) for when, count in counts.items() for n in range(count)]
