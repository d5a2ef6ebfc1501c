"""Push delivery: credit, prefetch that changes while it runs, ack, nack, extend, leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from backing import Connect, StartNode, StoppedClock, TurnedClock
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.client.subscription import Subscription
from tidegate.core import errors as e
from tidegate.core.model import QueuePolicy
from tidegate.core.runtime import NodeLimits


async def take(subscription: Subscription, count: int) -> list[Message]:
    """The next messages; fails when they do not come."""
    stream: AsyncIterator[Message] = aiter(subscription)
    async with asyncio.timeout(LIMIT_S):
        return [await anext(stream) for _ in range(count)]


def held(node: Node, queue_id: int) -> int:
    return node.replicas[queue_id].numbers().unacknowledged


async def test_a_subscriber_gets_what_waits_and_what_comes(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"1", b"2"])

    async with mq.subscribe("orders") as subscription:
        first = await take(subscription, 2)
        await mq.put("orders", b"3")
        second = await take(subscription, 1)

    assert [m.payload for m in first + second] == [b"1", b"2", b"3"]
    assert all(not m.redelivered and m.delivery_count == 1 for m in first + second)


@pytest.mark.parametrize("order", ["priority", "oldest"])
async def test_a_subscription_follows_its_order(order: str, mq: Client) -> None:
    await mq.create_queue("orders")
    for n in range(30):
        await mq.put("orders", b"%d" % n, priority=1 + n % 10)

    async with mq.subscribe("orders", order=order) as subscription:  # type: ignore[arg-type]
        received = [int(m.payload) for m in await take(subscription, 30)]

    by_priority = sorted(range(30), key=lambda n: (-(n % 10), n))
    assert received == (by_priority if order == "priority" else list(range(30)))


async def test_no_more_than_the_prefetch_is_in_a_consumers_hands(node: Node, mq: Client) -> None:
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(20)])

    async with mq.subscribe("orders", prefetch=3) as subscription:
        messages = await take(subscription, 3)
        await mq.ping()
        assert held(node, queue.queue_id) == 3
        assert not subscription.held
        await messages[0].ack_confirmed()
        messages += await take(subscription, 1)
        assert held(node, queue.queue_id) == 3

    assert [m.payload for m in messages] == [b"0", b"1", b"2", b"3"]


async def test_a_consumer_changes_its_prefetch_while_it_runs(node: Node, mq: Client) -> None:
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"x"] * 20)

    async with mq.subscribe("orders", prefetch=1) as subscription:
        await take(subscription, 1)
        await subscription.set_prefetch(10)
        messages = await take(subscription, 9)
        assert held(node, queue.queue_id) == 10
        await subscription.set_prefetch(2)
        await messages[-1].ack_through()
        await eventually_async(lambda: held(node, queue.queue_id) == 2)
        with pytest.raises(e.InvalidValue):
            await subscription.set_prefetch(0)


async def test_an_admin_changes_anyones_prefetch(node: Node, connect: Connect) -> None:
    worker, admin = await connect(node), await connect(node, mode="admin")
    queue = await worker.create_queue("orders")
    await worker.put_many("orders", [b"x"] * 20)

    async with worker.subscribe("orders", prefetch=1) as subscription:
        await take(subscription, 1)
        await admin.set_consumer_prefetch("orders", worker.client_id, subscription.consumer, 5)
        await take(subscription, 4)
        assert held(node, queue.queue_id) == 5
        assert subscription.prefetch == 5
        with pytest.raises(e.InvalidValue):
            await admin.set_consumer_prefetch("orders", worker.client_id, 999, 5)


async def test_consumers_share_what_there_is(node: Node, connect: Connect) -> None:
    first, second = await connect(node), await connect(node)
    await first.create_queue("orders")
    async with (
        first.subscribe("orders", prefetch=10) as one,
        second.subscribe("orders", prefetch=10) as two,
    ):
        await first.put_many("orders", [b"%d" % n for n in range(20)])
        received = await take(one, 10) + await take(two, 10)

    assert sorted(int(m.payload) for m in received) == list(range(20))


async def test_messages_for_one_receiver_are_pushed_to_no_other(
    node: Node, connect: Connect
) -> None:
    me, other = await connect(node), await connect(node)
    await me.create_queue("orders")
    async with me.subscribe("orders") as mine, other.subscribe("orders") as others:
        for n in range(10):
            receiver = me if n % 2 else other
            await me.put("orders", b"%d" % n, receiver=receiver.client_id)
        received = await take(mine, 5), await take(others, 5)

    assert [int(m.payload) for m in received[0]] == [1, 3, 5, 7, 9]
    assert [int(m.payload) for m in received[1]] == [0, 2, 4, 6, 8]


async def test_acknowledged_message_is_not_delivered_again(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(10)])

    async with mq.subscribe("orders") as subscription:
        messages = await take(subscription, 10)
        for message in messages[:8]:
            message.ack()
        await messages[8].ack_confirmed()

    again = await mq.get("orders", wait=LIMIT_S)
    assert (again.payload, again.redelivered, again.delivery_count) == (b"9", True, 2)
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_automatic_acknowledgement_needs_no_call(node: Node, mq: Client) -> None:
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"x"] * 10)

    async with mq.subscribe("orders", ack="automatic", prefetch=3) as subscription:
        await take(subscription, 10)
        assert held(node, queue.queue_id) == 0

    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_a_returned_message_comes_again_flagged_and_counted(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"1", b"2"])

    async with mq.subscribe("orders", prefetch=2) as subscription:
        first, second = await take(subscription, 2)
        for times in (2, 3, 4):
            await first.nack(delay=0)
            (first,) = await take(subscription, 1)
            assert (first.payload, first.redelivered, first.delivery_count) == (b"1", True, times)
        await first.ack_confirmed()
        assert not second.redelivered


async def test_a_returned_message_goes_back_to_its_place(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(10)])
    async with mq.subscribe("orders", prefetch=5) as subscription:
        messages = await take(subscription, 5)
        await subscription.set_prefetch(1)
        for message in (messages[3], messages[1]):
            await message.nack(delay=0)

    received = [int((await mq.get("orders")).payload) for _ in range(10)]
    assert received == list(range(10))


async def test_cumulative_acknowledgement_settles_everything_before(node: Node, mq: Client) -> None:
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(10)])

    async with mq.subscribe("orders") as subscription:
        messages = await take(subscription, 10)
        await messages[6].ack_through()
        assert held(node, queue.queue_id) == 3

    assert [m.payload for m in await mq.browse("orders")] == [b"7", b"8", b"9"]


async def test_batches_are_acknowledged_as_one(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(100)])

    received: list[bytes] = []
    async with mq.subscribe("orders", prefetch=1000) as subscription:
        async for batch in subscription.batches():
            assert [m.payload for m in batch] == batch.payloads
            assert batch[-1].payload == batch.payloads[-1]
            received += batch.payloads
            await batch.ack_confirmed()
            if len(received) == 100:
                break

    assert received == [b"%d" % n for n in range(100)]
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_a_handler_that_raises_gives_its_message_back(mq: Client) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(retry_first_s=0.0, retry_jitter=0.0))
    await mq.put_many("orders", [b"1", b"2", b"3"])
    seen: list[tuple[bytes, int]] = []
    enough = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append((message.payload, message.delivery_count))
        if message.payload == b"2" and message.delivery_count < 3:
            raise ValueError("not yet")
        if len(seen) == 5:
            enough.set()

    consuming = mq.spawn(mq.consume("orders", handle))
    async with asyncio.timeout(LIMIT_S):
        await enough.wait()
    await eventually_async(lambda: True)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)

    assert sorted(seen) == [(b"1", 1), (b"2", 1), (b"2", 2), (b"2", 3), (b"3", 1)]
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_while_a_consumer_lives_its_leases_do(
    start_node: StartNode, connect: Connect
) -> None:
    # The node's clock is the test's: no lease ends while this machine does something else.
    clock, lease_s = StoppedClock(), 0.3
    node = await start_node(clock=clock, limits=NodeLimits(delivery_lease_s=lease_s))
    mq, other = await connect(node), await connect(node)
    queue = await mq.create_queue("orders")
    await mq.put("orders", b"slow work")
    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        replica = node.replicas[queue.queue_id]
        (consumer,) = replica.dispatch.holders.consumers
        (lease,) = consumer.book

        for _ in range(4):
            clock.turn(0.9 * lease_s)
            await eventually_async(lambda: lease.deadline == clock.now + lease_s)
            replica.tick()
            with pytest.raises(e.NoMessagesInQueue):
                await other.get("orders")

        await message.ack_confirmed()


async def test_the_lease_of_a_silent_consumer_runs_out(
    start_node: StartNode, connect: Connect
) -> None:
    clock = TurnedClock()
    node = await start_node(clock=clock, limits=NodeLimits(lease_s=36_000.0))
    silent, other = await connect(node), await connect(node)
    await silent.create_queue("orders")
    await silent.put_many("orders", [b"1", b"2"])
    async with silent.subscribe("orders") as subscription:
        assert subscription._renewal is not None
        subscription._renewal.cancel()
        first, second = await take(subscription, 2)
        await first.extend(6000)
        clock.turn(1000)

        again = await other.get("orders", wait=LIMIT_S, lease=60)

        assert (again.payload, again.redelivered, again.delivery_count) == (b"2", True, 2)
        with pytest.raises(e.LeaseLost):
            await second.ack_confirmed()
        await first.ack_confirmed()


async def test_the_end_of_a_subscription_gives_back_what_was_not_acknowledged(
    mq: Client,
) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"1", b"2", b"3"])
    async with mq.subscribe("orders") as subscription:
        messages = await take(subscription, 3)
        messages[1].ack()

    left = [await mq.get("orders", wait=LIMIT_S) for _ in range(2)]
    assert [(m.payload, m.delivery_count) for m in left] == [(b"1", 2), (b"3", 2)]


async def test_a_dead_connection_gives_back_what_was_not_acknowledged(
    node: Node, connect: Connect
) -> None:
    dying, other = await connect(node), await connect(node)
    await dying.create_queue("orders")
    await dying.put_many("orders", [b"1", b"2"])
    async with dying.subscribe("orders") as subscription:
        await take(subscription, 2)
        assert dying.transport is not None
        dying._connection.closed = True
        dying.transport.abort()

        received = [await other.get("orders", wait=LIMIT_S) for _ in range(2)]

    assert [(m.payload, m.redelivered) for m in received] == [(b"1", True), (b"2", True)]


async def test_a_broken_connection_heals_and_the_subscription_goes_on(
    node: Node, connect: Connect
) -> None:
    mq, other = await connect(node), await connect(node)
    await mq.create_queue("orders")
    async with mq.subscribe("orders") as subscription:
        await other.put("orders", b"before")
        (stale,) = await take(subscription, 1)
        assert mq.transport is not None
        mq.transport.abort()

        (again,) = await take(subscription, 1)
        assert (again.payload, again.redelivered) == (b"before", True)
        with pytest.raises(e.LeaseLost):
            await stale.ack_confirmed()
        await again.ack_confirmed()
        await other.put("orders", b"after")
        assert [m.payload for m in await take(subscription, 1)] == [b"after"]


async def test_a_slow_socket_does_not_hold_up_the_others(node: Node, connect: Connect) -> None:
    slow, quick = await connect(node), await connect(node)
    await quick.create_queue("orders")
    payload = b"x" * 100_000
    async with (
        slow.subscribe("orders", prefetch=1000) as stuck,
        quick.subscribe("orders", prefetch=1) as subscription,
    ):
        assert slow.transport is not None
        assert slow.transport._transport is not None
        slow.transport._transport.pause_reading()
        for n in range(200):
            quick.put_soon("orders", b"%d " % n + payload)
        await quick.flush()
        received = 0
        async with asyncio.timeout(LIMIT_S):
            async for message in subscription:
                message.ack()
                received += 1
                if received == 20:
                    break
        slow.transport._transport.resume_reading()
        assert stuck.prefetch == 1000


async def test_a_drained_subscription_keeps_what_was_taken_and_gives_the_rest_back(
    node: Node, mq: Client, connect: Connect
) -> None:
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(6)])
    for n in range(6, 10):
        await mq.put("orders", b"%d" % n)  # batches of their own

    async with mq.subscribe("orders", prefetch=8) as subscription:
        taken = await take(subscription, 2)
        await subscription.drain()
        assert held(node, queue.queue_id) == 2

        other = await connect(node)
        async with other.subscribe("orders") as elsewhere:
            rest = await take(elsewhere, 8)
            assert {m.payload for m in rest} == {b"%d" % n for n in range(2, 10)}
            assert all(m.redelivered for m in rest if int(m.payload) < 8), "it may have seen them"
            for message in (*taken, *rest):
                await message.ack_confirmed()
            assert held(node, queue.queue_id) == 0
        # Credit or not: it has said that it takes no more.
        await mq.put("orders", b"late")
        assert held(node, queue.queue_id) == 0
    assert (await mq.get("orders")).payload == b"late"
