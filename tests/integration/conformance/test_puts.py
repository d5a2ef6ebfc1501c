"""Putting: `put_message` and `put_messages` of table 3.5, and what is ours."""

from __future__ import annotations

import asyncio
import time

import pytest
from backing import Connect

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.model import Attributes
from tidegate.protocol.messages import (
    PutMessageResponse,
    PutMessages,
    PutToQueues,
    PutToQueuesResponse,
)


async def test_3_5_put_message_and_4_1_put_message_keep_every_field(mq: Client) -> None:
    await mq.create_queue("orders")

    message_id = await mq.put(
        "orders",
        b"\x00payload\xff",
        receiver=mq.client_id,
        context=-(2**62),
        priority=8,
        content_type="application/x-thing",
        headers={"trace": "abc", "ünïcode": "✓"},
    )
    message = await mq.get("orders")

    assert message.message_id == message_id
    assert message.payload == b"\x00payload\xff"
    assert message.queue == "orders"
    assert message.sender == mq.client_id
    assert message.receiver == mq.client_id
    assert message.context == -(2**62)
    assert message.priority == 8
    # In seconds since 1970: an hour is nothing there.
    assert message.arrived_at == pytest.approx(time.time(), abs=3600)
    assert message.content_type == "application/x-thing"
    assert message.headers == {"trace": "abc", "ünïcode": "✓"}
    assert (message.redelivered, message.delivery_count) == (False, 1)


async def test_a_plain_message_has_the_middle_priority_and_nothing_else(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"")

    message = await mq.get("orders")

    assert message.payload == b""
    assert message.priority == 5
    assert message.receiver is None
    assert message.context is None
    assert message.content_type is None
    assert message.headers == {}


async def test_messages_put_together_keep_their_own_fields(mq: Client) -> None:
    await mq.create_queue("orders")
    puts = [
        mq.put(
            "orders",
            b"%d" % n,
            priority=1 + n % 10,
            receiver=mq.client_id if n % 3 else None,
            context=n if n % 2 else None,
            headers={"n": str(n)} if n % 4 == 0 else None,
        )
        for n in range(100)
    ]
    ids = await asyncio.gather(*puts)
    assert len(set(ids)) == 100

    seen = {}
    for _ in range(100):
        message = await mq.get("orders", order="priority")
        seen[message.message_id] = message
    for n, message_id in enumerate(ids):
        message = seen[message_id]
        assert message.payload == b"%d" % n
        assert message.priority == 1 + n % 10
        assert message.receiver == (mq.client_id if n % 3 else None)
        assert message.context == (n if n % 2 else None)
        assert message.headers == ({"n": str(n)} if n % 4 == 0 else {})


async def test_3_5_put_messages_and_4_1_put_messages_reach_every_queue(mq: Client) -> None:
    for name in "abc":
        await mq.create_queue(name)

    took = await mq.put_to(["a", "b", "c"], b"all", priority=7, context=5, headers={"to": "all"})

    assert took == ["a", "b", "c"]
    for name in "abc":
        message = await mq.get(name)
        assert (message.payload, message.priority, message.context) == (b"all", 7, 5)
        assert (message.headers, message.sender) == ({"to": "all"}, mq.client_id)


async def test_put_to_all_is_all_or_none(mq: Client) -> None:
    for name in "ab":
        await mq.create_queue(name)
    gone = await mq.create_queue("gone")
    await mq.delete_queue("gone")

    with pytest.raises(e.QueueNotExisting):
        await mq.put_to(["a", "gone", "b"], b"none")
    with pytest.raises(e.QueueNotExisting):
        await mq.put_to(["a", gone.queue_id, "b"], b"none")

    for name in "ab":
        with pytest.raises(e.NoMessagesInQueue):
            await mq.get(name)


async def test_put_to_some_returns_those_that_took_it(mq: Client) -> None:
    for name in "ab":
        await mq.create_queue(name)
    gone = await mq.create_queue("gone")
    await mq.delete_queue("gone")

    assert await mq.put_to(["a", "gone", gone.queue_id, "b"], b"some", partial=True) == ["a", "b"]
    assert await mq.put_to(["gone"], b"nowhere", partial=True) == []

    for name in "ab":
        assert (await mq.get(name)).payload == b"some"


async def test_put_to_transient_queues_works_and_mixing_is_refused(mq: Client) -> None:
    await mq.create_queue("kept")
    await mq.create_queue("passing", durable=False)
    await mq.create_queue("passing-too", durable=False)

    assert await mq.put_to(["passing", "passing-too"], b"1") == ["passing", "passing-too"]
    with pytest.raises(e.InvalidValue):
        await mq.put_to(["kept", "passing"], b"2")
    assert await mq.put_to(["kept", "passing"], b"3", partial=True) == ["kept", "passing"]

    assert [m.payload for m in await mq.browse("kept")] == [b"3"]
    assert [m.payload for m in await mq.browse("passing")] == [b"1", b"3"]


async def test_put_to_goes_to_its_receiver_only(node: Node, connect: Connect) -> None:
    mq, other = await connect(node), await connect(node)
    for name in "ab":
        await mq.create_queue(name)

    await mq.put_to(["a", "b"], b"mine", receiver=mq.client_id)

    with pytest.raises(e.NoMessagesRetrieved):
        await other.get("a")
    assert (await mq.get("a")).payload == (await mq.get("b")).payload == b"mine"


async def test_a_resent_put_to_is_stored_once(node: Node, connect: Connect) -> None:
    mq = await connect(node)
    ids = [(await mq.create_queue(name)).queue_id for name in "ab"]
    packet = PutToQueues(ids, producer=99, batch=1, priority=5)
    link = await mq.connected()

    for _ in range(3):
        answer = (await link.request(packet, [b"once"])).packet
        assert isinstance(answer, PutToQueuesResponse)
        assert answer.queue_ids == ids

    for name in "ab":
        assert [m.payload for m in await mq.browse(name)] == [b"once"]


async def test_put_many_returns_an_id_for_each_in_order(mq: Client) -> None:
    await mq.create_queue("orders")
    payloads = [b"%d" % n for n in range(1500)]

    ids = await mq.put_many("orders", payloads, priority=2)

    assert ids == sorted(set(ids))
    assert len(ids) == 1500
    async with mq.subscribe("orders", ack="automatic", prefetch=2000) as subscription:
        received: list[tuple[int, bytes]] = []
        async for message in subscription:
            received.append((message.message_id, message.payload))
            if len(received) == 1500:
                break
    assert received == list(zip(ids, payloads, strict=True))
    assert await mq.put_many("orders", []) == []


async def test_put_soon_and_flush_confirm_everything(mq: Client) -> None:
    await mq.create_queue("orders")
    futures = [mq.put_soon("orders", b"%d" % n) for n in range(50)]

    await mq.flush()

    assert all(future.done() for future in futures)
    assert len(await mq.browse("orders")) == 50
    mq.put_soon("nowhere", b"")
    with pytest.raises(e.QueueNotExisting):
        await mq.flush()


async def test_a_batch_that_is_sent_twice_is_stored_once(mq: Client) -> None:
    queue = await mq.create_queue("orders")
    link = await mq.connected()
    packet = PutMessages(queue.queue_id, 4711, 1, [1, 1], [5])

    first = (await link.request(packet, [b"ab"])).packet
    second = (await link.request(packet, [b"ab"])).packet
    third, fourth = await asyncio.gather(
        link.request(PutMessages(queue.queue_id, 4711, 2, [1], [5]), [b"c"]),
        link.request(PutMessages(queue.queue_id, 4711, 2, [1], [5]), [b"c"]),
    )

    assert isinstance(first, PutMessageResponse)
    assert isinstance(second, PutMessageResponse)
    assert first.first_id > 0
    assert second.first_id == 0, "stored before: the id is not known any more"
    assert isinstance(third.packet, PutMessageResponse)
    assert isinstance(fourth.packet, PutMessageResponse)
    assert sorted([third.packet.first_id > 0, fourth.packet.first_id > 0]) == [False, True]
    assert [m.payload for m in await mq.browse("orders")] == [b"a", b"b", b"c"]


async def test_another_producers_batch_of_the_same_number_is_another_batch(mq: Client) -> None:
    queue = await mq.create_queue("orders")
    link = await mq.connected()

    for producer in (1, 2):
        await link.request(PutMessages(queue.queue_id, producer, 1, [1], [5]), [b"a"])

    assert len(await mq.browse("orders")) == 2


@pytest.mark.parametrize(
    "packet",
    [
        PutMessages(0, 1, 1, [], [5]),
        PutMessages(0, 1, 1, [2], [5]),
        PutMessages(0, 1, 1, [-1, 2], [5]),
        PutMessages(0, 1, 0, [1], [5]),
        PutMessages(0, 1, 1, [1], []),
        PutMessages(0, 1, 1, [1], [0]),
        PutMessages(0, 1, 1, [1], [11]),
        PutMessages(0, 1, 1, [1], [5, 5]),
        PutMessages(0, 1, 1, [1], [5], receivers=[1, 2]),
        PutMessages(0, 1, 1, [1], [5], receivers=[]),
        PutMessages(0, 1, 1, [1], [5], receivers=[2**31]),
        PutMessages(0, 1, 1, [1], [5], receivers=[-(2**40)]),
        PutMessages(0, 1, 1, [1], [5], contexts=[1, 2]),
        PutMessages(0, 1, 1, [1], [5], contexts=[2**64 - 1]),
        PutMessages(0, 2**64 - 1, 1, [1], [5]),
        PutMessages(0, 1, 2**64 - 1, [1], [5]),
        PutMessages(0, 1, 1, [1], [5], attributes=[]),
        PutMessages(0, 1, 1, [1], [5], attributes=[Attributes("a\x00b")]),
        PutMessages(0, 1, 1, [1], [5], attributes=[Attributes(None, {"a": "\x00"})]),
        PutMessages(0, 1, 1, [1], [5], attributes=[Attributes(None, {"a": "x" * 70_000})]),
    ],
)
async def test_a_bad_batch_is_refused_and_harms_nobody(packet: PutMessages, mq: Client) -> None:
    packet.queue_id = (await mq.create_queue("orders")).queue_id
    link = await mq.connected()

    bad = asyncio.gather(link.request(packet, [b"x"]), return_exceptions=True)
    good = mq.put("orders", b"good")

    (answer,) = await bad
    assert isinstance(answer, e.CallerError)
    assert await good
    assert [m.payload for m in await mq.browse("orders")] == [b"good"]


@pytest.mark.parametrize(
    "call",
    [
        lambda mq: mq.put("orders", b"", priority=0),
        lambda mq: mq.put("orders", b"", priority=11),
        lambda mq: mq.put("orders", b"", receiver=0),
        lambda mq: mq.put("orders", b"", receiver=2**31),
        lambda mq: mq.put("orders", b"", context=2**63),
        lambda mq: mq.put("orders", b"", headers={"a": 1}),
        lambda mq: mq.put("", b""),
        lambda mq: mq.subscribe("orders", prefetch=0),
        lambda mq: mq.subscribe("orders", ack="never"),
        lambda mq: mq.subscribe("orders", order="random"),
    ],
)
async def test_bad_use_fails_at_the_call(call, mq: Client) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(e.InvalidValue):
        call(mq)


@pytest.mark.parametrize("payload", ["text", 5, None])
async def test_a_payload_is_bytes(payload: object, mq: Client) -> None:
    with pytest.raises(TypeError):
        mq.put("orders", payload)  # type: ignore[arg-type]


async def test_a_large_message_arrives_bit_for_bit(mq: Client) -> None:
    await mq.create_queue("orders")
    large = bytes(range(256)) * 8192

    await asyncio.gather(mq.put("orders", large), mq.put("orders", b"small"))

    assert (await mq.get("orders")).payload == large
    assert (await mq.get("orders")).payload == b"small"
