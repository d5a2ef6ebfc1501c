"""What a node finds when it comes back: everything confirmed, in order, flagged, once."""

from __future__ import annotations

import asyncio

import pytest
from backing import Backing, Connect, StartNode, crash
from waiting import LIMIT_S

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.protocol.messages import PutMessageResponse, PutMessages, PutToQueues


async def come_back(node: Node, backing: Backing, start_node: StartNode, how: str) -> Node:
    """Stop a node, orderly or not, and start another on what it left."""
    if how == "stop":
        await node.stop()
    else:
        await crash(node)
        await backing.declare_dead(node.member_id)
    return await start_node()


both_ways = pytest.mark.parametrize("how", ["stop", "crash"])


@both_ways
async def test_everything_confirmed_is_there_in_order(
    how: str, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node, name="me")
    await mq.create_queue("orders")
    for n in range(60):
        await mq.put(
            "orders",
            b"%d" % n,
            priority=1 + n % 3,
            receiver=mq.client_id if n % 2 else None,
            context=n,
            content_type="text/plain",
            headers={"n": str(n)},
        )

    node = await come_back(node, backing, start_node, how)
    mq = await connect(node, name="me")

    assert (await mq.stats("orders")).nodes[0].queues[0].waiting == 60
    by_priority = sorted(range(60), key=lambda n: (-(n % 3), n))
    for n in by_priority[:30]:
        message = await mq.get("orders", order="priority")
        assert int(message.payload) == n
        assert (message.context, message.headers["n"]) == (n, str(n))
        assert message.content_type == "text/plain"
        assert message.receiver == (mq.client_id if n % 2 else None)
        assert message.redelivered, "nobody knows whether it was delivered before"
    for n in sorted(by_priority[30:]):
        assert int((await mq.get("orders", order="oldest")).payload) == n
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


@both_ways
async def test_acknowledged_message_is_not_delivered_after_a_restart(
    how: str, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(100)])
    held = [await mq.get("orders", lease=60) for _ in range(100)]
    for message in held[10:40:2]:
        await message.ack_confirmed()
    await held[98].nack(delay=0)

    node = await come_back(node, backing, start_node, how)
    mq = await connect(node)

    left = [n for n in range(100) if n not in range(10, 40, 2)]
    received = [int((await mq.get("orders")).payload) for _ in left]
    assert received == left
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


@both_ways
async def test_reading_by_sender_and_context_finds_what_was_stored(
    how: str, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    ann, bob = await connect(node, name="ann"), await connect(node, name="bob")
    await ann.create_queue("orders")
    for n in range(10):
        await ann.put("orders", b"ann %d" % n)
    await bob.put("orders", b"bob", context=5)
    await ann.put("orders", b"reply", receiver=bob.client_id, context=6)

    node = await come_back(node, backing, start_node, how)
    bob = await connect(node, name="bob")

    assert (await bob.get("orders", sender="bob")).payload == b"bob"
    assert (await bob.get("orders", context=6)).payload == b"reply"
    assert (await bob.get("orders")).payload == b"ann 0"


@both_ways
async def test_a_resent_batch_is_recognised(
    how: str, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    other = await mq.create_queue("others")
    packets = [PutMessages(queue.queue_id, 4711, n, [1], [5]) for n in (1, 2, 3, 5)]
    broadcast = PutToQueues([queue.queue_id, other.queue_id], 42, 7, 5)
    link = await mq.connected()
    for packet in packets:
        await link.request(packet, [b"x"])
    await link.request(broadcast, [b"y"])
    # One batch is gone from the queue; it must be remembered all the same.
    await (await mq.get("orders", lease=60)).ack_confirmed()

    node = await come_back(node, backing, start_node, how)
    mq = await connect(node)
    link = await mq.connected()
    for packet in packets:
        answer = (await link.request(packet, [b"x"])).packet
        assert isinstance(answer, PutMessageResponse)
        assert answer.first_id == 0
    await link.request(broadcast, [b"y"])
    await link.request(PutMessages(queue.queue_id, 4711, 4, [1], [5]), [b"z"])

    assert [m.payload for m in await mq.browse("orders")] == [b"x", b"x", b"x", b"y", b"z"]
    assert [m.payload for m in await mq.browse("others")] == [b"y"]


@both_ways
async def test_ids_are_not_given_out_twice(
    how: str, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    await mq.create_queue("orders")
    before = await mq.put_many("orders", [b"x"] * 10)

    node = await come_back(node, backing, start_node, how)
    mq = await connect(node)
    after = await mq.put_many("orders", [b"x"] * 10)

    assert min(after) > max(before)


@both_ways
async def test_clients_and_queues_stay_and_transient_messages_do_not(
    how: str, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node, name="me", mode="admin")
    kept = await mq.create_queue("kept")
    passing = await mq.create_queue("passing", durable=False)
    await mq.put("kept", b"1")
    await mq.put("passing", b"1")

    node = await come_back(node, backing, start_node, how)
    again = await connect(node, client_id=mq.client_id)

    assert again.info == mq.info
    assert await again.queues() == [kept, passing]
    assert [q.name for q in await again.active_queues()] == ["kept"]
    with pytest.raises(e.NoMessagesInQueue):
        await again.get("passing")
    await again.put("passing", b"2")
    assert (await again.get("passing")).payload == b"2"


@both_ways
async def test_purged_messages_do_not_come_again_and_held_ones_do(
    how: str, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(10)])
    held = [await mq.get("orders", lease=60) for _ in range(3)]
    await held[0].ack_confirmed()
    await mq.purge("orders")
    await held[1].extend(60)
    await mq.put("orders", b"new")

    node = await come_back(node, backing, start_node, how)
    mq = await connect(node)

    assert [(await mq.get("orders")).payload for _ in range(3)] == [b"1", b"2", b"new"]
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_a_client_waits_for_the_node_and_resends_what_was_not_confirmed(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    port = int(node.address.rsplit(":", 1)[1])
    mq = await connect(node)
    await mq.create_queue("orders")
    await mq.put("orders", b"0")
    await crash(node)
    puts = asyncio.gather(*(mq.put("orders", b"%d" % n) for n in range(1, 20)))
    reading = asyncio.create_task(mq.get("orders", wait=LIMIT_S))

    node = await start_node(port=port)

    await puts
    assert (await reading).payload == b"0"
    assert [int(m.payload) for m in await mq.browse("orders")] == list(range(1, 20))


async def test_a_stopping_node_writes_down_what_it_accepted(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    await mq.create_queue("orders")
    puts = [asyncio.ensure_future(mq.put("orders", b"%d" % n)) for n in range(500)]
    await puts[0]
    await node.stop()
    confirmed = sum(put.done() and not put.exception() for put in puts)
    await mq.close()
    await asyncio.gather(*puts, return_exceptions=True)

    again = await connect(await start_node())

    stored = [int(m.payload) for m in await again.browse("orders", limit=1000)]
    assert stored == list(range(len(stored)))
    assert len(stored) >= confirmed > 0


async def test_deleted_clients_stay_deleted(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    leaver: Client = await connect(node, name="leaver")
    await leaver.delete_client()

    node = await come_back(node, backing, start_node, "crash")

    with pytest.raises(e.ClientNotExisting):
        await connect(node, client_id=leaver.client_id)
