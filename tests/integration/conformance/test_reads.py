"""Reading: the parameters of table 3.4, the reads of tables 3.5 and 4.1, waiting and leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from backing import Connect, StartNode, TurnedClock
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.runtime import NodeLimits


async def test_3_4_queue_id_a_read_takes_from_its_queue_only(mq: Client) -> None:
    await mq.create_queue("a")
    b = await mq.create_queue("b")
    await mq.put("a", b"of a")

    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("b")
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get(b.queue_id)
    assert (await mq.get("a")).payload == b"of a"


async def test_3_4_receiver_id_a_read_matches_what_is_for_anyone_or_for_me(
    node: Node, connect: Connect
) -> None:
    me, other = await connect(node), await connect(node)
    await me.create_queue("orders")
    await me.put("orders", b"for other", receiver=other.client_id)
    await me.put("orders", b"for anyone")
    await me.put("orders", b"for me", receiver=me.client_id)

    assert [(await me.get("orders")).payload for _ in range(2)] == [b"for anyone", b"for me"]
    with pytest.raises(e.NoMessagesRetrieved):
        await me.get("orders")
    assert (await other.get("orders")).payload == b"for other"


async def test_a_message_waits_for_a_receiver_that_is_not_registered_yet(
    node: Node, connect: Connect
) -> None:
    sender = await connect(node)
    await sender.create_queue("orders")
    await sender.put("orders", b"welcome", receiver=await sender.client_id_of("newcomer"))

    with pytest.raises(e.NoMessagesRetrieved):
        await sender.get("orders")
    newcomer = await connect(node, name="newcomer")

    assert (await newcomer.get("orders")).payload == b"welcome"


async def test_3_4_sender_id_and_4_1_retrieve_message_from_a_sender_by_read_mode(
    node: Node, connect: Connect
) -> None:
    ann, bob = await connect(node, name="ann"), await connect(node, name="bob")
    await ann.create_queue("orders")
    for n in range(3):
        await ann.put("orders", b"ann %d" % n)
        await bob.put("orders", b"bob %d" % n)

    assert (await ann.get("orders", sender=bob.client_id)).payload == b"bob 0"
    assert (await ann.get("orders", sender="bob")).payload == b"bob 1"
    assert [(await ann.get("orders")).payload for _ in range(3)] == [b"ann 0", b"ann 1", b"ann 2"]
    with pytest.raises(e.NoMessagesRetrieved):
        await ann.get("orders", sender="ann")


async def test_3_4_context_identifies_responses(node: Node, connect: Connect) -> None:
    me, other = await connect(node), await connect(node)
    await me.create_queue("orders")
    for context in (7, 8, 9):
        await other.put("orders", b"%d" % context, context=context, receiver=me.client_id)
    await other.put("orders", b"for anyone", context=8)

    assert (await me.get("orders", context=8)).payload == b"8"
    assert (await me.get("orders", context=8)).payload == b"for anyone"
    with pytest.raises(e.NoMessagesRetrieved):
        await me.get("orders", context=8)
    with pytest.raises(e.NoMessagesRetrieved):
        await other.get("orders", context=7)


@pytest.mark.parametrize(
    ("order", "expected"), [("oldest", [0, 1, 2, 3, 4, 5]), ("priority", [2, 4, 0, 5, 1, 3])]
)
async def test_3_4_mode_orders_by_arrival_or_by_priority(
    order: str, expected: list[int], mq: Client
) -> None:
    await mq.create_queue("orders")
    for n, priority in enumerate([5, 1, 10, 1, 10, 5]):
        await mq.put(
            "orders", b"%d" % n, priority=priority, receiver=mq.client_id if n % 2 else None
        )

    received = [int((await mq.get("orders", order=order)).payload) for _ in range(6)]  # type: ignore[arg-type]

    assert received == expected


async def test_3_5_read_message_by_priority_and_4_1_retrieve_message_by_priority(
    node: Node, connect: Connect
) -> None:
    me, other = await connect(node), await connect(node)
    await me.create_queue("orders")
    await other.put("orders", b"other low", priority=2)
    await me.put("orders", b"mine high", priority=10)
    await other.put("orders", b"other high", priority=9)

    assert (await me.get("orders", order="priority")).payload == b"mine high"
    by_sender = await me.get("orders", order="priority", sender=other.client_id)
    assert by_sender.payload == b"other high"


async def test_3_5_read_message_by_timestamp_and_4_1_retrieve_message_by_read_mode(
    node: Node, connect: Connect
) -> None:
    me, other = await connect(node), await connect(node)
    await me.create_queue("orders")
    await me.put("orders", b"oldest", priority=1)
    await other.put("orders", b"other", priority=1)
    await other.put("orders", b"newest", priority=10)

    assert (await me.get("orders", order="oldest")).payload == b"oldest"
    by_sender = await me.get("orders", order="oldest", sender=other.client_id)
    assert by_sender.payload == b"other"


async def test_3_5_read_response_message_is_for_its_receiver_and_context(
    node: Node, connect: Connect
) -> None:
    asker, worker = await connect(node), await connect(node)
    await asker.create_queue("orders")
    await asker.put("orders", b"2 + 2", context=1234)
    request = await worker.get("orders")
    await worker.reply(request, b"4", content_type="text/plain")

    with pytest.raises(e.NoMessagesRetrieved):
        await worker.get("orders", context=1234)
    answer = await asker.get("orders", context=1234)

    assert (answer.payload, answer.context, answer.receiver) == (b"4", 1234, asker.client_id)


async def test_4_1_send_request_response_message_is_one_call(node: Node, connect: Connect) -> None:
    asker, worker = await connect(node), await connect(node)
    await asker.create_queue("sums")

    async def work(message) -> None:  # type: ignore[no-untyped-def]
        await worker.reply(message, b"%d" % sum(map(int, message.payload.split())))

    working = worker.spawn(worker.consume("sums", work))
    answers = await asyncio.gather(
        *(asker.request("sums", b"%d %d" % (n, n), timeout=LIMIT_S) for n in range(20))
    )
    working.cancel()

    assert [int(answer.payload) for answer in answers] == [2 * n for n in range(20)]


async def test_a_request_that_nobody_answers_ends_at_its_deadline(mq: Client) -> None:
    await mq.create_queue("sums")

    with pytest.raises(e.Notice):
        await mq.request("sums", b"1 1", timeout=0.1)


async def test_a_request_can_be_for_one_worker(node: Node, connect: Connect) -> None:
    asker = await connect(node)
    chosen, other = await connect(node), await connect(node)
    await asker.create_queue("sums")
    asking = asker.spawn(asker.request("sums", b"?", receiver=chosen.client_id, timeout=LIMIT_S))

    with pytest.raises(e.Notice):
        await other.get("sums", wait=0.05)
    await chosen.reply(await chosen.get("sums", wait=LIMIT_S), b"!")

    assert (await asking).payload == b"!"


async def test_a_message_without_context_asks_for_no_reply(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"")
    with pytest.raises(e.InvalidValue):
        mq.reply(await mq.get("orders"), b"")


# Waiting


@pytest.mark.parametrize("what", ["anyone", "receiver", "sender", "context"])
async def test_a_waiting_read_is_answered_when_its_message_comes(
    what: str, node: Node, connect: Connect
) -> None:
    reader, sender = await connect(node), await connect(node)
    queue = await reader.create_queue("orders")
    selection: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    if what == "sender":
        selection["sender"] = sender.client_id
    elif what == "context":
        selection["context"] = fields["context"] = 77
        fields["receiver"] = reader.client_id
    elif what == "receiver":
        fields["receiver"] = reader.client_id
    packets_before = node.packets_in
    waiting = reader.spawn(reader.get("orders", wait=LIMIT_S, **selection))
    await eventually_async(lambda: bool(node.replicas[queue.queue_id].dispatch.readers.count))
    if selection:
        await reader.put("orders", b"something else")
        assert not waiting.done()

    await sender.put("orders", b"it", **fields)

    assert (await waiting).payload == b"it"
    assert node.packets_in - packets_before <= 5, "nobody polls"


async def test_waiting_reads_are_answered_in_the_order_they_came(
    node: Node, connect: Connect
) -> None:
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    answered: list[int] = []

    async def read(n: int) -> None:
        await mq.get("orders", wait=LIMIT_S)
        answered.append(n)

    reads = []
    for n in range(5):
        reads.append(mq.spawn(read(n)))
        await eventually_async(
            lambda n=n: node.replicas[queue.queue_id].dispatch.readers.count == n + 1
        )  # type: ignore[misc]
    await mq.put_many("orders", [b"x"] * 5)
    await asyncio.gather(*reads)

    assert answered == [0, 1, 2, 3, 4]


async def test_a_wait_ends_at_its_deadline(mq: Client) -> None:
    await mq.create_queue("orders")

    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders", wait=0.2)


async def test_a_reader_that_is_gone_takes_nothing(node: Node, connect: Connect) -> None:
    gone, stays = await connect(node), await connect(node)
    queue = await stays.create_queue("orders")
    waiting = gone.spawn(gone.get("orders", wait=LIMIT_S))
    await eventually_async(lambda: bool(node.replicas[queue.queue_id].dispatch.readers.count))
    waiting.cancel()
    await gone.close()
    await eventually_async(lambda: not node.replicas[queue.queue_id].dispatch.readers.count)

    await stays.put("orders", b"still there")

    assert (await stays.get("orders")).payload == b"still there"


async def test_a_read_that_was_given_up_takes_nothing(node: Node, connect: Connect) -> None:
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    waiting = mq.spawn(mq.get("orders", wait=LIMIT_S))
    await eventually_async(lambda: bool(node.replicas[queue.queue_id].dispatch.readers.count))

    waiting.cancel()
    await eventually_async(lambda: not node.replicas[queue.queue_id].dispatch.readers.count)
    await mq.put("orders", b"still there")

    assert (await mq.get("orders")).payload == b"still there"


@pytest.mark.parametrize("wait", [-1.0, float("-inf")])
async def test_a_wait_is_not_negative(wait: float, mq: Client) -> None:
    await mq.create_queue("orders")
    with pytest.raises(e.InvalidValue):
        await mq.get("orders", wait=wait)
    with pytest.raises(e.InvalidValue):
        await mq.get("orders", lease=wait)


# Removing and leases


async def test_reading_removes(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"once")

    message = await mq.get("orders")

    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")
    with pytest.raises(e.InvalidValue):
        message.ack()


async def test_a_leased_message_is_mine_until_i_settle_it(node: Node, connect: Connect) -> None:
    me, other = await connect(node), await connect(node)
    await me.create_queue("orders")
    await me.put_many("orders", [b"1", b"2"])

    first = await me.get("orders", lease=60)
    assert (await other.get("orders", lease=60)).payload == b"2"
    with pytest.raises(e.NoMessagesInQueue):
        await other.get("orders")
    await first.nack(delay=0)
    again = await other.get("orders", lease=60)
    assert (again.payload, again.redelivered, again.delivery_count) == (b"1", True, 2)
    await again.ack_confirmed()

    with pytest.raises(e.LeaseLost):
        await first.ack_confirmed()
    with pytest.raises(e.LeaseLost):
        await first.extend(10)
    with pytest.raises(e.LeaseLost):
        await first.nack(delay=0)


async def test_leases_read_one_by_one_can_be_acknowledged_together(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(5)])
    held = [await mq.get("orders", lease=60) for _ in range(5)]
    await held[1].ack_confirmed()

    await held[3].ack_through()

    for message in held[:4]:
        with pytest.raises(e.LeaseLost):
            await message.extend(60)
    await held[4].extend(60)


async def test_a_lease_that_runs_out_gives_the_message_back(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    me, other = await connect(node), await connect(node)
    await me.create_queue("orders")
    await me.put("orders", b"late")
    held = await me.get("orders", lease=0.05)

    again = await other.get("orders", wait=LIMIT_S, lease=60)

    assert (again.payload, again.redelivered, again.delivery_count) == (b"late", True, 2)
    with pytest.raises(e.LeaseLost):
        await held.ack_confirmed()
    await again.ack_confirmed()


async def test_extending_keeps_the_message(start_node: StartNode, connect: Connect) -> None:
    clock = TurnedClock()
    node = await start_node(clock=clock, limits=NodeLimits(lease_s=36_000.0))
    me, other = await connect(node), await connect(node)
    queue = await me.create_queue("orders")
    await me.put("orders", b"slow")
    held = await me.get("orders", lease=600)

    await held.extend(6000)

    clock.turn(1000)
    node.replicas[queue.queue_id].tick()
    with pytest.raises(e.NoMessagesInQueue):
        await other.get("orders")
    await held.ack_confirmed()


async def test_a_lost_connection_gives_back_what_it_held(node: Node, connect: Connect) -> None:
    gone, stays = await connect(node), await connect(node)
    await stays.create_queue("orders")
    await stays.put("orders", b"held")
    await gone.get("orders", lease=60)

    await gone.close()

    again = await stays.get("orders", wait=LIMIT_S)
    assert (again.payload, again.redelivered) == (b"held", True)
