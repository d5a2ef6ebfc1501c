"""Logical queues as applications see them: put, subscribe, go over, and notice nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from backing import Backing, Connect, StartNode, crash
from logical_queue import SCALING, LogicalQueue, until_told
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.model import Overflow
from tidegate.core.topology import (
    ASSIGNMENT_SLOTS,
    MemberRole,
    ReplicaState,
    ScalingPolicy,
    assignment_slot,
)
from tidegate.protocol.cluster import MigrateClients


async def test_puts_are_dealt_by_share(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await orders.share({1: 0.75, 2: 0.25})

    ids = await mq.put_many("orders", [b"%d" % n for n in range(100)])
    await asyncio.gather(*(mq.put("orders", b"%d" % n) for n in range(100, 200)))

    assert len(ids) == 100
    assert await orders.waiting() == {0: 0, 1: 150, 2: 50}


async def test_shares_that_change_count_at_once(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await mq.put_many("orders", [b"a"] * 10)

    await orders.share({1: 0.0, 2: 1.0})
    await until_told(mq, (await orders.topology()).version)
    await mq.put_many("orders", [b"b"] * 10)

    assert await orders.waiting() == {0: 0, 1: 5, 2: 15}


async def test_producers_of_one_message_each_reach_every_replica(
    mq: Client, node: Node, connect: Connect
) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)

    for n in range(24):
        producer = await connect(node)
        await producer.put("orders", b"%d" % n)
        await producer.close()

    waiting = await orders.waiting()
    # All at one of them: once in eight million runs.
    assert waiting[1] > 0
    assert waiting[2] > 0


async def test_put_refused_by_a_full_replica_goes_to_another(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 3)
    await mq.set_policy("orders", length_max=4, overflow=Overflow.REFUSE)
    await orders.share({1: 0.98, 2: 0.01, 3: 0.01})
    await until_told(mq, (await orders.topology()).version)

    for n in range(12):
        await mq.put("orders", b"%d" % n)
    with pytest.raises(
        e.LimitReached, match=r"queue 'orders', replica \d is full \(4 messages for"
    ):
        await mq.put("orders", b"too much")
    with pytest.raises(e.LimitReached):
        await mq.put_many("orders", [b"too much"] * 2)

    assert await orders.waiting() == {0: 0, 1: 4, 2: 4, 3: 4}


async def test_put_is_refused_when_its_assigned_replica_is_full(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await mq.set_policy("orders", length_max=2, overflow=Overflow.REFUSE)

    for _ in range(2):
        await mq.put("orders", b"g", group="a")
    with pytest.raises(e.LimitReached):
        await mq.put("orders", b"g", group="a")

    assert await orders.waiting() == {0: 0, 1: 2, 2: 0}


async def test_a_replica_is_neither_deleted_alone_nor_has_a_policy_of_its_own(
    mq: Client, node: Node
) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await mq.put_many("orders", [b"a"] * 4)

    for replica in ("orders#1", (await orders.place(1)).queue_id):
        with pytest.raises(e.InvalidValue, match="'orders', replica 1 cannot be deleted alone"):
            await mq.delete_queue(replica)
        with pytest.raises(e.InvalidValue, match="'orders', replica 1 has the policy of"):
            await mq.set_policy(replica, length_max=1)

    assert await orders.waiting() == {0: 0, 1: 2, 2: 2}


async def test_without_a_replica_the_alias_keeps_what_is_put(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node])

    await mq.put("orders", b"early")
    assert await orders.waiting() == {0: 1}

    await orders.add(node)
    async with mq.subscribe("orders") as subscription:
        message = await anext(aiter(subscription))
        assert (message.payload, message.queue) == (b"early", "orders")
        await message.ack_confirmed()


async def test_group_and_dedup_id_go_to_the_assigned_replica(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await orders.set_homes([2] * ASSIGNMENT_SLOTS)
    await until_told(mq, (await orders.topology()).version)

    await asyncio.gather(
        *(mq.put("orders", b"g", group="a") for _ in range(5)),
        *(mq.put("orders", b"d", dedup_id="same") for _ in range(5)),
        *(mq.put("orders", b"r", receiver=mq.client_id) for _ in range(5)),
    )

    assert await orders.waiting() == {0: 0, 1: 0, 2: 11}


async def test_a_request_is_answered_through_a_logical_queue(
    mq: Client, node: Node, connect: Connect
) -> None:
    await LogicalQueue.make(mq, [node], 2)
    server = await connect(node)

    async def serve() -> None:
        async with server.subscribe("orders") as first, server.subscribe("orders") as second:
            assert {first.replica, second.replica} == {1, 2}

            async def answer(message: object) -> None:
                await server.reply(message, b"pong")  # type: ignore[arg-type]

            await asyncio.gather(first.run(answer), second.run(answer))

    serving = asyncio.create_task(serve())
    replies = [await mq.request("orders", b"ping", timeout=LIMIT_S) for _ in range(4)]
    serving.cancel()

    assert [reply.payload for reply in replies] == [b"pong"] * 4


async def test_get_reads_wherever_messages_are(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 3)
    await mq.put_many("orders", [b"%d" % n for n in range(9)])
    assert await orders.waiting() == {0: 0, 1: 3, 2: 3, 3: 3}

    found = {(await mq.get("orders")).payload for _ in range(9)}

    assert found == {b"%d" % n for n in range(9)}
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_get_waits_at_all_replicas(mq: Client, node: Node, connect: Connect) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await orders.share({1: 0.0, 2: 1.0})
    other = await connect(node)

    waiting = asyncio.create_task(mq.get("orders", wait=LIMIT_S))
    await eventually_async(
        lambda: sum(replica.dispatch.readers.count for replica in node.replicas.values()) == 2
    )
    await other.put("orders", b"there")

    assert (await waiting).payload == b"there"
    assert await orders.waiting() == {0: 0, 1: 0, 2: 0}


async def test_a_producer_is_told_where_it_is(mq: Client, node: Node) -> None:
    await LogicalQueue.make(mq, [node], 2)

    async with mq.producer("orders") as orders:
        assert orders.replica is None
        await orders.put(b"1")
        assert len(await orders.put_many([b"2", b"3"])) == 2


async def test_consumers_are_elected_onto_replicas(mq: Client, node: Node) -> None:
    await LogicalQueue.make(mq, [node], 2)

    async with mq.subscribe("orders") as first, mq.subscribe("orders") as second:
        assert {first.replica, second.replica} == {1, 2}
        assert first.address == node.address


async def test_a_consumer_waits_for_the_first_replica(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node])

    async with mq.subscribe("orders") as subscription:
        assert subscription.replica is None
        waiting = asyncio.ensure_future(anext(aiter(subscription)))
        await orders.add(node)
        await mq.put("orders", b"1")

        assert (await waiting).payload == b"1"


async def test_a_subscription_to_a_plain_queue_goes_on_when_it_becomes_a_logical_one(
    mq: Client, node: Node, connect: Connect
) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"before")
    admin = await connect(node, mode="admin")

    async with mq.subscribe("orders") as subscription:
        messages = aiter(subscription)
        await (await anext(messages)).ack_confirmed()
        await LogicalQueue.make(admin, [node], 1)
        await mq.put("orders", b"after")

        assert (await anext(messages)).payload == b"after"
        assert subscription.replica == 1


async def test_a_consumer_goes_over_and_settles_where_it_was(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    one, two = await orders.place(1), await orders.place(2)
    await orders.share({1: 1.0, 2: 0.0})
    await until_told(mq, (await orders.topology()).version)
    await mq.put_many("orders", [b"%d" % n for n in range(10)])

    async with mq.subscribe("orders", replica=1, prefetch=5) as subscription:
        assert subscription.replica == 1
        messages = aiter(subscription)
        held = [await anext(messages), await anext(messages)]

        await _migrate(mq, orders, one.queue_id, two.queue_id)
        await eventually_async(lambda: subscription.replica == 2)
        # What nobody had looked at is back at once.
        old = node.replicas[one.queue_id]
        await eventually_async(
            lambda: old.numbers().waiting == 8 and old.numbers().unacknowledged == 2
        )

        await orders.share({1: 0.0, 2: 1.0})
        await until_told(mq, (await orders.topology()).version)
        await mq.put("orders", b"there")
        assert (await anext(messages)).payload == b"there"
        assert old.numbers().consumers

        await held[0].ack_confirmed()
        await held[1].nack(delay=0)
        await eventually_async(lambda: not old.numbers().consumers)
        assert (old.numbers().waiting, old.numbers().acked) == (9, 1)


async def test_a_consumer_whose_old_replica_dies_loses_only_what_it_held_there(
    start_node: StartNode, connect: Connect
) -> None:
    home, away = await start_node(), await start_node()
    mq = await connect(home, mode="admin")
    orders = await LogicalQueue.make(mq, [home, away], 2)
    one, two = await orders.place(1), await orders.place(2)
    assert two.queue_id in away.replicas
    await orders.share({1: 0.0, 2: 1.0})
    await mq.put("orders", b"1")

    async with mq.subscribe("orders", replica=2) as subscription:
        held = await anext(aiter(subscription))
        await _migrate(mq, orders, two.queue_id, one.queue_id)
        await eventually_async(lambda: subscription.replica == 1)
        # The queue moves: what was held there went back, as ever.
        await mq.set_owner(two.queue_id, home.member_id)

        with pytest.raises(e.LeaseLost):
            await held.ack_confirmed()
    async with mq.subscribe("orders", replica=2) as subscription:
        again = await anext(aiter(subscription))
        assert (again.payload, again.redelivered) == (b"1", True)


async def test_a_consumer_of_a_draining_replica_comes_elsewhere(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    async with mq.subscribe("orders", replica=2) as subscription:
        await orders.drain(2)
        await eventually_async(lambda: subscription.replica == 1)
        await eventually_async(
            lambda: bool(node.replicas[(_id(orders, 2))].numbers().consumers) is False
        )
        assert await orders.retire(2)
        await orders.look()

        await mq.put("orders", b"1")
        assert (await anext(aiter(subscription))).payload == b"1"


async def test_a_bound_consumer_ends_with_its_replica(
    mq: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    monkeypatch.setenv("TIDEGATE_REPLICA", "orders#2")
    async with mq.subscribe("orders") as subscription:
        assert subscription.replica == 2
        await orders.drain(2)
        assert await orders.retire(2)
        await orders.look()

        with pytest.raises(e.QueueNotExisting):
            await anext(aiter(subscription))


async def test_a_connection_that_breaks_brings_a_consumer_back(mq: Client, node: Node) -> None:
    await LogicalQueue.make(mq, [node], 2)
    async with mq.subscribe("orders") as subscription:
        assert mq.transport is not None
        mq.transport.abort()
        await mq.put_many("orders", [b"1", b"2"])

        message = await anext(aiter(subscription))
        await message.ack_confirmed()


async def test_a_replica_that_refuses_is_left_to_the_others(
    start_node: StartNode, connect: Connect
) -> None:
    here, there = await start_node(), await start_node()
    mq = await connect(here)
    orders = await LogicalQueue.make(mq, [here, there], 2)
    await mq.put_many("orders", [b"first"] * 2)
    two = await orders.place(2)

    there.replicas[two.queue_id].intake.close()  # it says NotOwner from now on
    await asyncio.gather(*(mq.put("orders", b"%d" % n) for n in range(20)))
    await mq.put_many("orders", [b"many"] * 20)

    assert await orders.waiting() == {0: 0, 1: 41, 2: 1}


async def test_unknown_batch_is_looked_up_when_its_replica_is_removed(
    mq: Client, node: Node
) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    spread = mq._producers.get("orders")
    await mq.put_many("orders", [b"0"] * 2)
    one, two = await orders.place(1), await orders.place(2)
    outbox = spread._producers[two.queue_id]  # type: ignore[union-attr]
    stored = outbox._batch

    # Two batches whose answers were lost: one was stored, the other never came there.
    await orders.drain(2)
    await (await mq.get(two.queue_id, lease=10)).ack_confirmed()
    assert await orders.retire(2)
    await orders.look()
    fates = [
        await spread.batch_result(two.queue_id, outbox._producer, n) for n in (stored, stored + 1)
    ]  # type: ignore[union-attr]

    assert fates == [True, False]
    assert one.queue_id in node.replicas


async def _migrate(mq: Client, orders: LogicalQueue, source: int, target: int) -> None:
    alias = orders.nodes[0].aliases
    replica = orders.nodes[0].replicas[orders.alias_id]
    known = alias.logical_queue(replica)
    assert known is not None
    assert known.migrate(MigrateClients(orders.alias_id, MemberRole.CONSUMER, source, target)) == 1


def _id(orders: LogicalQueue, number: int) -> int:
    for node in orders.nodes:
        for queue_id, replica in node.replicas.items():
            if replica.info.number == number:
                return queue_id
    raise AssertionError


async def test_a_replica_that_says_nothing_is_left_to_the_others(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    two = await orders.place(2)
    silent = node.replicas[two.queue_id].intake
    writer, silent._writer = silent._writer, _Nobody()  # type: ignore[assignment]

    puts = [asyncio.ensure_future(mq.put("orders", b"%d" % n)) for n in range(10)]
    await eventually_async(lambda: sum(put.done() for put in puts) == 5)
    spread = mq._producers.get("orders")
    await eventually_async(lambda: bool(spread._away))  # type: ignore[union-attr]
    await asyncio.gather(*(mq.put("orders", b"later") for _ in range(10)))
    assert await orders.waiting() == {0: 0, 1: 15, 2: 0}

    # What was sent there is not sent elsewhere: it may be stored, and in the end it is.
    silent._writer = writer
    writer.schedule(silent)
    await asyncio.gather(*puts)
    assert await orders.waiting() == {0: 0, 1: 15, 2: 5}


class _Nobody:
    """A writer whose store does not answer."""

    def schedule(self, source: object) -> None:
        """Not now."""


async def test_a_producers_order_holds_at_each_replica(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 3)
    for n in range(0, 300, 30):
        await orders.share({1: 1.0 + n, 2: 50.0, 3: 100.0})
        await asyncio.gather(*(mq.put("orders", b"%d" % m) for m in range(n, n + 20)))
        await mq.put_many("orders", [b"%d" % m for m in range(n + 20, n + 30)])

    found: list[int] = []
    for place in (await orders.topology()).replicas:
        numbers = [int(m.payload) for m in await mq.browse(place.queue_id, limit=300)]
        assert numbers == sorted(numbers)
        found += numbers
    assert sorted(found) == list(range(300))


async def test_under_the_policy_clients_a_producer_is_at_one_replica(
    mq: Client, node: Node
) -> None:
    scaling = msgspec.structs.replace(SCALING, policy=ScalingPolicy.CLIENTS)
    orders = await LogicalQueue.make(mq, [node], 2, scaling)

    async with mq.producer("orders") as first, mq.producer("orders") as second:
        assert {first.replica, second.replica} == {1, 2}
        await first.put_many([b"first"] * 10)
        here = await orders.place(first.replica or 0)
        there = await orders.place(second.replica or 0)
        assert await orders.waiting() == {0: 0, here.number: 10, there.number: 0}

        admin = node.aliases.logical_queue(node.replicas[orders.alias_id])
        assert admin is not None
        packet = MigrateClients(orders.alias_id, MemberRole.PRODUCER, here.queue_id, there.queue_id)
        assert admin.migrate(packet) == 1
        await eventually_async(lambda: first.replica == there.number)
        await first.put_many([b"first"] * 5)
        assert await orders.waiting() == {0: 0, here.number: 10, there.number: 5}


async def test_unknown_batch_of_a_dead_owner_is_asked_of_the_next_owner(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    here, there = await start_node(), await start_node()
    mq = await connect(here)
    orders = await LogicalQueue.make(mq, [here, there], 2)
    puts, two = await _puts_at_a_silent_replica(mq, orders, there)

    await crash(there)
    await mq.put_many("orders", [b"later"] * 10)
    assert (await orders.waiting())[1] == 15
    # Sent to nobody else meanwhile: somebody may answer for them.
    assert sum(put.done() for put in puts) == 5

    await backing.declare_dead(there.member_id)
    await asyncio.gather(*puts)
    assert two in here.replicas
    assert await orders.waiting() == {0: 0, 1: 15, 2: 5}


async def test_lost_batch_of_a_removed_replica_goes_to_another(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    here, there = await start_node(), await start_node()
    mq = await connect(here)
    orders = await LogicalQueue.make(mq, [here, there], 2)
    puts, _ = await _puts_at_a_silent_replica(mq, orders, there)

    await crash(there)
    await orders.drain(2)
    await backing.declare_dead(there.member_id)
    assert await orders.retire(2)
    await orders.look()

    await asyncio.gather(*puts)
    assert await orders.waiting() == {0: 0, 1: 10}


async def _puts_at_a_silent_replica(
    mq: Client, orders: LogicalQueue, owner: Node
) -> tuple[list[asyncio.Future[int]], int]:
    """Ten puts, of which a half is on its way to replica 2 and gets no answer."""
    two = await orders.place(2)
    await mq.put_many("orders", [b"first"] * 2)
    for queue_id in (two.queue_id, (await orders.place(1)).queue_id):
        message = await mq.get(queue_id, lease=60)
        await message.ack_confirmed()
    silent = owner.replicas[two.queue_id].intake
    silent._writer = _Nobody()  # type: ignore[assignment]
    puts = [asyncio.ensure_future(mq.put("orders", b"%d" % n)) for n in range(10)]
    await eventually_async(
        lambda: sum(put.done() for put in puts) == 5 and len(silent._waiting) == 1
    )
    return puts, two.queue_id


async def test_a_logical_queue_without_replicas_becomes_a_plain_one_again(
    mq: Client, node: Node, connect: Connect
) -> None:
    await LogicalQueue.make(mq, [node])
    reader, taker = await connect(node), await connect(node)
    with pytest.raises(e.NoMessagesInQueue):
        await reader.get("orders")

    async with taker.subscribe("orders") as subscription:
        await mq.put("orders", b"1")
        await mq.set_scaling("orders", None)
        message = await anext(aiter(subscription))
        assert (message.payload, subscription.replica) == (b"1", None)
        await message.ack_confirmed()
    await mq.put("orders", b"2")
    assert (await reader.get("orders")).payload == b"2"


async def test_put_in_progress_survives_the_change_to_a_logical_queue(
    mq: Client, node: Node
) -> None:
    info = await mq.create_queue("orders")
    await mq.put("orders", b"first")
    silent = node.replicas[info.queue_id].intake
    writer, silent._writer = silent._writer, _Nobody()  # type: ignore[assignment]
    put = asyncio.ensure_future(mq.put("orders", b"under way"))
    await eventually_async(lambda: bool(silent._waiting))

    orders = await LogicalQueue.make(mq, [node])
    await mq._producers.find_logical_queues()
    assert mq.transport is not None
    mq.transport.abort()
    silent._writer = writer
    writer.schedule(silent)

    await asyncio.wait_for(put, LIMIT_S)
    assert await orders.waiting() == {0: 2}


async def test_put_in_progress_survives_the_change_to_a_plain_queue(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node])
    await mq.put("orders", b"first")
    silent = node.replicas[orders.alias_id].intake
    writer, silent._writer = silent._writer, _Nobody()  # type: ignore[assignment]
    put = asyncio.ensure_future(mq.put("orders", b"under way"))
    await eventually_async(lambda: bool(silent._waiting))

    await mq.set_scaling("orders", None)
    spread = mq._producers.by_queue["orders"]
    spread.membership.join_again()  # type: ignore[union-attr]
    await eventually_async(lambda: mq._producers.by_queue.get("orders") is not spread)
    assert mq.transport is not None
    mq.transport.abort()
    silent._writer = writer
    writer.schedule(silent)

    await asyncio.wait_for(put, LIMIT_S)
    assert node.replicas[orders.alias_id].numbers().waiting == 2


async def test_group_keeps_its_order_when_a_queue_becomes_logical(
    mq: Client, node: Node, connect: Connect
) -> None:
    info = await mq.create_queue("orders")
    old = await connect(node)  # it takes the queue for a plain one to the end
    for n in range(5):
        await old.put("orders", b"%d" % n, group="a")
    orders = await LogicalQueue.make(mq, [node])
    await mq.put("orders", b"5", group="a")

    # Nobody can take it over yet, and it is known that somebody will.
    place = await orders.add_starting(node)
    await orders.set_homes([-1] * ASSIGNMENT_SLOTS)
    puts = [
        asyncio.ensure_future(client.put("orders", b"%d" % n, group="a"))
        for n, client in ((6, old), (7, mq))
    ]
    alias, home = node.replicas[info.queue_id], node.replicas[place.queue_id]
    await orders.set_state(1, ReplicaState.SERVING)
    await orders.look()
    await eventually_async(lambda: len(home.context.queue) == 6)
    index = assignment_slot("a")
    await eventually_async(lambda: index not in alias.assignments.ahead())
    assert not any(put.done() for put in puts)

    await orders.set_homes([1] * ASSIGNMENT_SLOTS)
    await asyncio.wait_for(asyncio.gather(*puts), LIMIT_S)
    came = [(await mq.get(place.queue_id)).payload for _ in range(8)]
    assert came[:6] == [b"%d" % n for n in range(6)]
    assert sorted(came[6:]) == [b"6", b"7"]


async def test_published_message_reaches_elastic_subscriptions(mq: Client, node: Node) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await mq.create_queue("audit")
    await mq.create_topic("sales")
    await mq.subscribe_to("sales", "orders")
    await mq.subscribe_to("sales", "audit")

    await asyncio.gather(*(mq.publish("sales", b"%d" % n) for n in range(20)))

    # One transaction stores it for all; the alias then hands over to its replicas.
    wanted = {b"%d" % n for n in range(20)}
    assert {(await mq.get("audit", wait=LIMIT_S)).payload for _ in range(20)} == wanted
    assert {(await mq.get("orders", wait=LIMIT_S)).payload for _ in range(20)} == wanted
    assert sum((await orders.waiting()).values()) == 0
