"""Queues: Telesto's "Queue Manipulation" of table 3.5 and "Queues" of table 4.1."""

from __future__ import annotations

import pytest
from backing import Connect
from waiting import LIMIT_S

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e


async def test_3_5_create_queue_and_4_1_create_queue_return_the_queue(mq: Client) -> None:
    orders = await mq.create_queue("orders")
    moods = await mq.create_queue("moods", durable=False)

    assert (orders.name, orders.durable) == ("orders", True)
    assert (moods.name, moods.durable) == ("moods", False)
    assert 0 < orders.queue_id != moods.queue_id > 0


async def test_a_queues_name_is_unique(mq: Client) -> None:
    orders = await mq.create_queue("orders")

    with pytest.raises(e.QueueNameNotUnique):
        await mq.create_queue("orders")
    assert await mq.create_queue("orders", exist_ok=True) == orders


async def test_3_5_delete_queue_and_4_1_delete_queue_take_its_messages_along(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"old")

    await mq.delete_queue("orders")

    with pytest.raises(e.QueueNotExisting):
        await mq.queue("orders")
    with pytest.raises(e.QueueNotExisting):
        await mq.put("orders", b"lost")
    await mq.create_queue("orders")
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_another_clients_deletion_is_noticed(node: Node, connect: Connect) -> None:
    mine, other = await connect(node), await connect(node)
    await mine.create_queue("orders")
    await mine.put("orders", b"1")
    await other.delete_queue("orders")

    with pytest.raises(e.QueueNotExisting):
        await mine.put("orders", b"2")
    await other.create_queue("orders")
    await mine.put("orders", b"3")

    assert (await other.get("orders")).payload == b"3"


async def test_deleting_a_queue_ends_its_subscriptions_and_waiting_reads(
    node: Node, connect: Connect
) -> None:
    mine, other = await connect(node), await connect(node)
    await mine.create_queue("orders")
    async with mine.subscribe("orders") as subscription:
        waiting = mine.spawn(mine.get("orders", wait=LIMIT_S))
        await mine.ping()
        await other.delete_queue("orders")

        with pytest.raises(e.QueueNotExisting):
            await waiting
        with pytest.raises(e.QueueNotExisting):
            async for _ in subscription:
                pass


async def test_3_5_get_queue_id_and_4_1_get_queue_by_name(mq: Client) -> None:
    orders = await mq.create_queue("orders")

    assert await mq.queue("orders") == orders
    with pytest.raises(e.QueueNotExisting):
        await mq.queue("nowhere")


async def test_3_5_get_queue_name_and_4_1_get_queue_by_id(mq: Client) -> None:
    orders = await mq.create_queue("orders")

    assert await mq.queue(orders.queue_id) == orders
    with pytest.raises(e.QueueNotExisting):
        await mq.queue(orders.queue_id + 1000)


async def test_3_5_list_queues_and_4_1_get_queues_list_all(mq: Client) -> None:
    assert await mq.queues() == []
    made = [await mq.create_queue(name) for name in ("b", "a", "c")]

    assert await mq.queues() == sorted(made, key=lambda queue: queue.name)


async def test_3_5_get_active_queues_and_4_1_get_active_queues_hold_something_for_me(
    node: Node, connect: Connect
) -> None:
    me, other = await connect(node), await connect(node)
    for name in ("for-anyone", "for-me", "for-other", "empty", "emptied"):
        await me.create_queue(name)
    await me.create_queue("passing", durable=False)
    await other.put("for-anyone", b"")
    await other.put("for-me", b"", receiver=me.client_id)
    await other.put("for-other", b"", receiver=other.client_id)
    await other.put("passing", b"")
    await other.put("emptied", b"")
    await other.get("emptied")

    assert [q.name for q in await me.active_queues()] == ["for-anyone", "for-me", "passing"]
    assert [q.name for q in await other.active_queues()] == ["for-anyone", "for-other", "passing"]


async def test_3_5_get_messages_from_queue_and_4_1_read_messages_consume_nothing(
    mq: Client,
) -> None:
    await mq.create_queue("orders")
    assert await mq.browse("orders") == []
    await mq.put("orders", b"first", priority=3, content_type="text/plain", headers={"a": "b"})
    await mq.put("orders", b"second", context=7)
    await mq.put("orders", b"third", receiver=mq.client_id)

    for _ in range(2):
        seen = await mq.browse("orders")
        assert [m.payload for m in seen] == [b"first", b"second", b"third"]
    assert (seen[0].priority, seen[0].content_type, seen[0].headers) == (
        3,
        "text/plain",
        {"a": "b"},
    )
    assert [m.context for m in seen] == [None, 7, None]
    assert [m.receiver for m in seen] == [None, None, mq.client_id]
    assert [m.payload for m in await mq.browse("orders", limit=2)] == [b"first", b"second"]
    with pytest.raises(e.InvalidValue):
        seen[0].ack()


async def test_browsing_does_not_show_what_somebody_holds(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"1", b"2", b"3"])

    await mq.get("orders", lease=60)

    assert [m.payload for m in await mq.browse("orders")] == [b"2", b"3"]


async def test_purge_drops_what_waits(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"x"] * 10)
    await mq.put("orders", b"mine", receiver=mq.client_id, priority=9)

    assert await mq.purge("orders") == 11
    assert await mq.purge("orders") == 0

    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")
    await mq.put("orders", b"new")
    assert (await mq.get("orders")).payload == b"new"


async def test_purge_leaves_what_is_held_to_its_holder(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(10)])
    held = [await mq.get("orders", lease=60) for _ in range(4)]
    await held[0].ack_confirmed()

    assert await mq.purge("orders") == 6

    await held[1].nack(delay=0)
    again = await mq.get("orders", lease=60)
    assert (again.payload, again.redelivered) == (b"1", True)
    for message in (again, held[2], held[3]):
        await message.ack_confirmed()
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_a_transient_queue_does_everything_but_last(mq: Client) -> None:
    await mq.create_queue("moods", durable=False)
    await mq.put_many("moods", [b"1", b"2", b"3"])
    await mq.put("moods", b"urgent", priority=10)

    assert len(await mq.browse("moods")) == 4
    assert (await mq.get("moods", order="priority")).payload == b"urgent"
    held = await mq.get("moods", lease=60)
    await held.nack(delay=0)
    assert (await mq.get("moods", lease=60)).delivery_count == 2
    assert await mq.purge("moods") == 2
