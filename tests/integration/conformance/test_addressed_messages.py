"""What is addressed to a client comes to its subscription, whichever replica that stands at."""

from __future__ import annotations

import asyncio

from backing import Connect, StartNode
from logical_queue import LogicalQueue
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.subscription import Subscription
from tidegate.core.topology import ASSIGNMENT_SLOTS, MemberRole, ReplicaState, assignment_slot


def homes_of(client_id: int, number: int, other: int) -> list[int]:
    """One client at home at one replica, everybody else at another."""
    return [
        number if index == assignment_slot(client_id) else other
        for index in range(ASSIGNMENT_SLOTS)
    ]


async def take(subscription: Subscription, count: int) -> list[bytes]:
    taken = []
    async for message in subscription:
        taken.append(bytes(message.payload))
        message.ack()
        if len(taken) == count:
            break
    return taken


async def stands_at_home(mq: Client, subscription: Subscription) -> None:
    """Wait for the addressed consumer."""
    await eventually_async(lambda: subscription._addressed_reads.consumer is not None)
    assert subscription._addressed_reads.consumer is not None
    assert subscription._addressed_reads.consumer.queue_id == subscription.home_id()


async def test_a_subscription_gets_what_is_addressed_to_it_from_another_replica(
    mq: Client, node: Node, connect: Connect
) -> None:
    queue = await LogicalQueue.make(mq, [node], replicas=2)
    writer = await connect(node)
    await queue.set_homes(homes_of(mq.client_id, 2, 1))
    async with mq.subscribe("orders", replica=1, prefetch=4) as orders:
        for number in range(20):
            await writer.put("orders", b"%d" % number, receiver=mq.client_id)
        assert await take(orders, 20) == [b"%d" % number for number in range(20)]
        # What is for anyone at its home is left to those who consume there.
        await queue.share({1: 0.0, 2: 1.0})
        await writer.put("orders", b"for anyone")
        await writer.put("orders", b"for you", receiver=mq.client_id)
        assert await take(orders, 1) == [b"for you"]
        home = node.replicas[(await queue.place(2)).queue_id]
        await eventually_async(lambda: home.numbers().unacknowledged == 0)
        assert home.numbers().waiting == 1
        # Nobody counts it: neither the numbers of the queue nor those by which clients are elected.
        assert home.numbers().consumers == []
        alias = node.aliases.logical_queue(node.replicas[queue.alias_id])
        assert alias is not None
        assert alias.counts() == {1: (0, 1), 2: (0, 0)}
    assert home.dispatch.is_idle


async def test_addressed_message_is_found_in_memory_and_store(
    start_node: StartNode, connect: Connect
) -> None:
    """In memory, in the store, at a node that the client is not connected to."""
    here, there = await start_node(), await start_node()
    maker = await connect(here)
    queue = await LogicalQueue.make(maker, [here, there], replicas=2)
    reader = await connect(here, name="reader")
    await queue.set_homes(homes_of(reader.client_id, 2, 1))
    home_id = (await queue.place(2)).queue_id
    await maker.put("orders", b"in memory", receiver=reader.client_id)
    async with reader.subscribe("orders", replica=1) as orders:
        assert await take(orders, 1) == [b"in memory"]
    await maker.put("orders", b"in the store", receiver=reader.client_id)
    await queue.bring(here, home_id)
    await queue.bring(there, home_id)
    await queue.look()
    async with reader.subscribe("orders", replica=1) as orders:
        assert await take(orders, 1) == [b"in the store"]


async def test_subscription_follows_its_assigned_replica(
    mq: Client, node: Node, connect: Connect
) -> None:
    queue = await LogicalQueue.make(mq, [node], replicas=3)
    writer = await connect(node)
    await queue.set_homes(homes_of(mq.client_id, 2, 1))
    async with mq.subscribe("orders", replica=1) as orders:
        await writer.put("orders", b"at 2", receiver=mq.client_id)
        assert await take(orders, 1) == [b"at 2"]
        await queue.set_homes(homes_of(mq.client_id, 3, 1))
        await writer.put("orders", b"at 3", receiver=mq.client_id)
        assert await take(orders, 1) == [b"at 3"]
        # Where it consumes, it needs no addressed consumer.
        await queue.set_homes([1] * ASSIGNMENT_SLOTS)
        await eventually_async(lambda: orders._addressed_reads.consumer is None)
        await writer.put("orders", b"at 1", receiver=mq.client_id)
        assert await take(orders, 1) == [b"at 1"]
        # And when it goes away from home, it gets one.
        admin = await connect(node, mode="admin")
        await admin.migrate(
            "orders",
            MemberRole.CONSUMER,
            (await queue.place(1)).queue_id,
            (await queue.place(2)).queue_id,
        )
        await stands_at_home(mq, orders)
        await writer.put("orders", b"at 1 again", receiver=mq.client_id)
        assert await take(orders, 1) == [b"at 1 again"]
        assert orders.replica == 2


async def test_a_home_that_drains_can_be_retired(mq: Client, node: Node, connect: Connect) -> None:
    queue = await LogicalQueue.make(mq, [node], replicas=2)
    writer = await connect(node)
    await queue.set_homes(homes_of(mq.client_id, 2, 1))
    async with mq.subscribe("orders", replica=1) as orders:
        await writer.put("orders", b"one", receiver=mq.client_id)
        async for message in orders:
            await queue.drain(2)
            await queue.set_homes([1] * ASSIGNMENT_SLOTS)
            # What it holds there is settled there.
            await message.ack_confirmed()
            break
        await eventually_async(
            lambda: orders._addressed_reads.consumer is None and not orders._consumers.leaving
        )
        assert await queue.retire(2)
        await queue.look()
        await writer.put("orders", b"two", receiver=mq.client_id)
        assert await take(orders, 1) == [b"two"]


async def test_a_home_that_ends_under_a_subscription_does_not_end_it(
    mq: Client, node: Node, connect: Connect
) -> None:
    """The replica is retired while the addressed consumer is registered there."""
    queue = await LogicalQueue.make(mq, [node], replicas=2)
    writer = await connect(node)
    await queue.set_homes(homes_of(mq.client_id, 2, 1))
    async with mq.subscribe("orders", replica=1) as orders:
        await stands_at_home(mq, orders)
        await queue.set_state(2, ReplicaState.DRAINING)
        assert await queue.retire(2)
        await queue.look()
        await writer.put("orders", b"one", receiver=mq.client_id)
        await writer.put("orders", b"two")
        assert sorted(await take(orders, 2)) == [b"one", b"two"]


async def test_a_connection_that_breaks_brings_the_second_leg_back(
    mq: Client, node: Node, connect: Connect
) -> None:
    queue = await LogicalQueue.make(mq, [node], replicas=2)
    writer = await connect(node)
    await queue.set_homes(homes_of(mq.client_id, 2, 1))
    async with mq.subscribe("orders", replica=1) as orders:
        await stands_at_home(mq, orders)
        assert mq.transport is not None
        mq.transport.close()
        await writer.put("orders", b"one", receiver=mq.client_id)
        assert await take(orders, 1) == [b"one"]


async def test_a_drained_subscription_gives_back_what_is_addressed_to_it_too(
    mq: Client, node: Node, connect: Connect
) -> None:
    queue = await LogicalQueue.make(mq, [node], replicas=2)
    writer = await connect(node)
    await queue.set_homes(homes_of(mq.client_id, 2, 1))
    async with mq.subscribe("orders", replica=1, prefetch=80) as orders:
        for number in range(10):
            await writer.put("orders", b"%d" % number, receiver=mq.client_id)
        home = node.replicas[(await queue.place(2)).queue_id]
        await eventually_async(lambda: home.numbers().unacknowledged == 10)
        assert await take(orders, 3) == [b"0", b"1", b"2"]
        await orders.drain()
        await eventually_async(lambda: home.numbers().unacknowledged == 0)
        assert home.numbers().waiting == 7
    assert (await mq.get("orders")).payload == b"3"


async def test_two_clients_talk_over_a_logical_queue_by_subscriptions(
    node: Node, connect: Connect
) -> None:
    """Requests are addressed to a client, and so are the replies: nobody else sees them."""
    asker, answerer, bystander = [await connect(node, name=name) for name in "abc"]
    queue = await LogicalQueue.make(asker, [node], replicas=3)
    homes = [1 + index % 3 for index in range(ASSIGNMENT_SLOTS)]
    await queue.set_homes(homes)
    seen: list[bytes] = []

    async def answer() -> None:
        home = homes[assignment_slot(answerer.client_id)]
        async with answerer.subscribe("orders", replica=1 + home % 3) as orders:
            async for message in orders:
                answerer.reply(message, bytes(message.payload).upper())
                message.ack()

    async def overhear() -> None:
        async with bystander.subscribe("orders") as orders:
            async for message in orders:
                seen.append(bytes(message.payload))
                message.ack()

    tasks = [asyncio.create_task(answer()), asyncio.create_task(overhear())]
    for number in range(20):
        reply = await asker.request(
            "orders", b"question %d" % number, receiver=answerer.client_id, timeout=LIMIT_S
        )
        assert reply.payload == b"QUESTION %d" % number
    # One way, and back to a subscription instead of a read.
    home = homes[assignment_slot(asker.client_id)]
    async with asker.subscribe("orders", replica=1 + home % 3) as orders:
        await asker.put("orders", b"one way", receiver=answerer.client_id, context=7)
        assert await take(orders, 1) == [b"ONE WAY"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert seen == []
