"""Trying out a consumer's prefetch leaves no trace, and there is one trial at a time."""

from __future__ import annotations

import pytest
from backing import Connect, StartNode
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.errors import InvalidValue

QUEUE = "orders"


async def prefetches(mq: Client) -> list[int]:
    cluster = await mq.stats(QUEUE)
    return [
        one.prefetch for node in cluster.nodes for queue in node.queues for one in queue.consumers
    ]


async def test_an_experimenter_that_is_gone_has_changed_nothing(
    node: Node, mq: Client, connect: Connect
) -> None:
    await mq.create_queue(QUEUE)
    admin = await connect(node, mode="admin")
    async with mq.subscribe(QUEUE, prefetch=17) as subscription:
        await admin.set_consumer_prefetch(QUEUE, mq.client_id, subscription.consumer, 4, trial=True)
        during = await prefetches(mq)
        # As one that was killed: nothing is said any more.
        for session in node.sessions:
            if session.client_id == admin.client_id:
                session.abort()
        [consumer] = node.replicas[await mq.queue_id(QUEUE)].dispatch.holders.consumers
        await eventually_async(lambda: consumer.experiment is None)

        assert during == [4]
        assert await prefetches(mq) == [17]


async def test_a_second_experimenter_is_refused_and_told_who_is_at_it(
    node: Node, mq: Client, connect: Connect
) -> None:
    await mq.create_queue(QUEUE)
    first = await connect(node, mode="admin", name="first")
    second = await connect(node, mode="admin", name="second")
    async with mq.subscribe(QUEUE, prefetch=17) as subscription:
        whose = (QUEUE, mq.client_id, subscription.consumer)
        await first.set_consumer_prefetch(*whose, 4, trial=True)

        with pytest.raises(InvalidValue, match="first is trying out prefetches"):
            await second.set_consumer_prefetch(*whose, 9, trial=True)
        # Nor may it end the other's trial, or set a prefetch for good meanwhile.
        with pytest.raises(InvalidValue, match="first is trying out prefetches"):
            await second.set_consumer_prefetch(*whose, 0, trial=True)
        with pytest.raises(InvalidValue, match="first is trying out prefetches"):
            await second.set_consumer_prefetch(*whose, 30)
        during = await prefetches(mq)
        await first.set_consumer_prefetch(*whose, 0, trial=True)
        after = await prefetches(mq)
        await second.set_consumer_prefetch(*whose, 9, trial=True)

        assert (during, after) == ([4], [17])
        assert await prefetches(mq) == [9]


async def test_prefetch_set_during_a_trial_holds_afterwards(
    node: Node, mq: Client, connect: Connect
) -> None:
    await mq.create_queue(QUEUE)
    admin = await connect(node, mode="admin")
    async with mq.subscribe(QUEUE, prefetch=17) as subscription:
        whose = (QUEUE, mq.client_id, subscription.consumer)
        await admin.set_consumer_prefetch(*whose, 4, trial=True)
        await subscription.set_prefetch(25)
        during = await prefetches(mq)
        await admin.set_consumer_prefetch(*whose, 0, trial=True)

        assert during == [4]
        assert await prefetches(mq) == [25]


async def test_a_consumer_that_comes_again_during_a_trial_asks_for_its_own(
    node: Node, mq: Client, connect: Connect
) -> None:
    await mq.create_queue(QUEUE)
    admin = await connect(node, mode="admin")
    async with mq.subscribe(QUEUE, prefetch=17) as subscription:
        await admin.set_consumer_prefetch(QUEUE, mq.client_id, subscription.consumer, 4, trial=True)
        await mq.ping()
        [session] = [one for one in node.sessions if one.client_id == mq.client_id]
        queue_id = await mq.queue_id(QUEUE)
        holders = node.replicas[queue_id].dispatch.holders
        [before] = holders.consumers
        session.abort()
        await eventually_async(lambda: holders.consumers not in ([], [before]))

        assert await prefetches(admin) == [17]


async def test_a_trial_reaches_a_queue_of_another_node_and_ends_there_too(
    start_node: StartNode, connect: Connect
) -> None:
    owner, other = await start_node(), await start_node()
    mq = await connect(owner)
    await mq.create_queue(QUEUE)
    admin = await connect(other, mode="admin")
    async with mq.subscribe(QUEUE, prefetch=17) as subscription:
        await admin.set_consumer_prefetch(QUEUE, mq.client_id, subscription.consumer, 4, trial=True)
        during = await prefetches(mq)
        [session] = [one for one in other.sessions if one.client_id == admin.client_id]
        session.abort()
        queue_id = await mq.queue_id(QUEUE)
        [consumer] = owner.replicas[queue_id].dispatch.holders.consumers
        await eventually_async(lambda: consumer.experiment is None)

        assert during == [4]
        assert await prefetches(mq) == [17]
