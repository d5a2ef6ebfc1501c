"""More waits than memory holds: the rest lies in the store, and nobody can tell by the order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from backing import Backing, Connect, StartNode, crash
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.runtime import NodeLimits

MIB = 1024 * 1024
BOUND = 1 * MIB
# A chunk from the store for each of a few lanes, beyond the bound.
SLACK = 4 * MIB
PADDING = b"." * 8000


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(limits=NodeLimits(memory_bytes=BOUND))


def payload(n: int) -> bytes:
    return b"%d " % n + PADDING


def number(data: bytes) -> int:
    return int(data.split()[0])


async def fill(mq: Client, count: int, start: int = 0, priority: int = 5) -> None:
    """Put messages in several commits."""
    for at in range(start, start + count, 100):
        await mq.put_many(
            "orders",
            [payload(n) for n in range(at, min(at + 100, start + count))],
            priority=priority,
        )


async def test_order_holds_and_memory_is_bounded(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    peak = 0

    def look() -> None:
        nonlocal peak
        peak = max(peak, node.budget.used_bytes)

    await fill(mq, 2000)
    look()
    numbers = (await mq.stats("orders")).queue("orders")
    assert numbers is not None
    assert numbers.waiting == 2000
    assert numbers.waiting_in_store > 1000

    received: list[int] = []
    async with mq.subscribe("orders", prefetch=50) as subscription:
        async for message in subscription:
            received.append(number(message.payload))
            message.ack()
            look()
            if len(received) == 2000:
                break

    assert received == list(range(2000))
    assert peak <= BOUND + SLACK
    await eventually_async(lambda: node.budget.used_bytes == 0)


async def test_priority_holds(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    for start, priority in ((0, 5), (200, 1), (400, 9), (600, 5)):
        await fill(mq, 200, start, priority)

    received = [number((await mq.get("orders", order="priority")).payload) for _ in range(800)]

    assert received == [*range(400, 600), *range(200), *range(600, 800), *range(200, 400)]
    assert node.budget.used_bytes <= BOUND + SLACK


async def test_the_oldest_comes_first_whatever_its_priority(mq: Client) -> None:
    await mq.create_queue("orders")
    for round_ in range(8):
        await fill(mq, 50, 50 * round_, priority=1 + round_ % 3)

    received = [number((await mq.get("orders", order="oldest")).payload) for _ in range(400)]

    assert received == list(range(400))


async def test_new_message_waits_behind_stored_ones(mq: Client) -> None:
    await mq.create_queue("orders")
    await fill(mq, 300)
    received = []
    async with mq.subscribe("orders", prefetch=10) as subscription:
        async for message in subscription:
            received.append(number(message.payload))
            message.ack()
            if len(received) % 100 == 0 and len(received) <= 300:
                await fill(mq, 100, 200 + len(received))
            if len(received) == 600:
                break

    assert received == list(range(600))


async def test_selective_reads_find_what_lies_in_the_store(node: Node, connect: Connect) -> None:
    ann, bob = await connect(node, name="ann"), await connect(node, name="bob")
    await ann.create_queue("orders")
    await fill(ann, 300)
    await bob.put("orders", b"from bob")
    await bob.put("orders", b"in context", context=99)
    await ann.put("orders", b"to bob", receiver=bob.client_id)
    await fill(ann, 300, 300)
    numbers = (await ann.stats("orders")).queue("orders")
    assert numbers is not None
    assert numbers.waiting_in_store > 300

    assert (await ann.get("orders", sender="bob")).payload == b"from bob"
    assert (await ann.get("orders", context=99)).payload == b"in context"
    with pytest.raises(e.NoMessagesRetrieved):
        await ann.get("orders", context=100)
    with pytest.raises(e.NoMessagesRetrieved):
        await ann.get("orders", sender="bob")

    received = [number((await ann.get("orders")).payload) for _ in range(600)]
    assert received == list(range(600))
    assert (await bob.get("orders")).payload == b"to bob"
    with pytest.raises(e.NoMessagesInQueue):
        await bob.get("orders")


async def test_addressed_messages_beyond_memory_reach_their_receiver_in_order(
    node: Node, connect: Connect
) -> None:
    ann, bob = await connect(node), await connect(node)
    await ann.create_queue("orders")
    for n in range(300):
        receiver = (ann, bob)[n % 2]
        ann.put_soon("orders", payload(n), receiver=receiver.client_id)
        if n % 20 == 0:
            await ann.flush()
    await ann.flush()

    async with bob.subscribe("orders", prefetch=7) as subscription:
        received = []
        async with asyncio.timeout(LIMIT_S):
            async for message in subscription:
                received.append(number(message.payload))
                message.ack()
                if len(received) == 150:
                    break
    assert received == list(range(1, 300, 2))
    assert [number((await ann.get("orders")).payload) for _ in range(150)] == list(range(0, 300, 2))


async def test_addressed_and_other_messages_come_in_one_order(node: Node, connect: Connect) -> None:
    mq, filler = await connect(node), await connect(node)
    await mq.create_queue("orders")
    await fill(filler, 150)
    for n in range(150, 450):
        receiver = mq.client_id if n % 3 == 0 else None
        filler.put_soon("orders", payload(n), receiver=receiver)
        if n % 10 == 9:
            await filler.flush()
    await filler.flush()

    received = [number((await mq.get("orders")).payload) for _ in range(450)]

    # One commit may hold both kinds, then each has its own run of ids.
    assert sorted(received) == list(range(450))
    assert [n for n in received if n % 3] == [n for n in range(450) if n % 3]
    assert [n // 10 for n in received] == sorted(n // 10 for n in received)


@pytest.mark.parametrize("what", ["receiver", "sender", "context"])
async def test_a_waiting_read_gets_its_message_though_memory_is_full(
    what: str, node: Node, connect: Connect
) -> None:
    reader, other = await connect(node), await connect(node)
    absent = await reader.client_id_of("absent")
    queue = await reader.create_queue("orders")
    for n in range(300):
        reader.put_soon("orders", payload(n), receiver=absent)
        if n % 20 == 0:
            await reader.flush()
    await reader.flush()
    assert not node.budget.has_room_for(20 * len(PADDING))
    selection: dict[str, Any] = {"sender": other.client_id} if what == "sender" else {}
    fields: dict[str, Any] = {} if what == "sender" else {"receiver": reader.client_id}
    if what == "context":
        selection["context"] = fields["context"] = 5
    waiting = reader.spawn(reader.get("orders", wait=LIMIT_S, **selection))
    await eventually_async(lambda: node.replicas[queue.queue_id].dispatch.readers.count == 1)

    await other.put("orders", b"it", **fields)
    numbers = (await other.stats("orders")).queue("orders")
    assert numbers is not None
    assert numbers.waiting_in_store > 100

    assert (await asyncio.wait_for(waiting, LIMIT_S)).payload == b"it"


@pytest.mark.parametrize("what", ["anything", "sender"])
async def test_reader_is_served_after_memory_was_full(
    what: str, node: Node, connect: Connect
) -> None:
    reader, other, filler = await connect(node), await connect(node), await connect(node)
    queue = await reader.create_queue("orders")
    # What fills the memory is not for the reader: somebody else's, or of another sender.
    selection: dict[str, Any] = {"sender": other.client_id} if what == "sender" else {}
    absent = None if what == "sender" else await reader.client_id_of("absent")
    waiting = reader.spawn(reader.get("orders", wait=LIMIT_S, **selection))
    await eventually_async(lambda: node.replicas[queue.queue_id].dispatch.readers.count == 1)
    for n in range(300):
        filler.put_soon("orders", payload(n), receiver=absent)
        if n % 20 == 0:
            await filler.flush()
    await filler.flush()
    assert not node.budget.has_room_for(20 * len(PADDING))

    await other.put("orders", b"it")

    assert (await asyncio.wait_for(waiting, LIMIT_S)).payload == b"it"


@pytest.mark.parametrize(("order", "expected"), [("oldest", [0, 1, 2]), ("priority", [1, 2, 0])])
async def test_selective_reads_keep_the_order_though_some_lie_in_the_store(
    order: str, expected: list[int], node: Node, connect: Connect
) -> None:
    ann, bob = await connect(node, name="ann"), await connect(node, name="bob")
    await ann.create_queue("orders")
    await fill(ann, 200)
    await bob.put("orders", payload(0), priority=5)
    await fill(ann, 100, priority=8)
    await bob.put("orders", payload(1), priority=9)
    await fill(ann, 100, priority=8)
    await bob.put("orders", payload(2), priority=8)
    # Something of bob's is in memory, and newer than what is not.
    await bob.put("orders", payload(3), priority=1)

    received = [
        number((await ann.get("orders", sender="bob", order=order)).payload)  # type: ignore[arg-type]
        for _ in range(3)
    ]

    assert received == expected


async def test_a_subscriber_gets_its_messages_though_memory_is_full_of_others(
    node: Node, connect: Connect
) -> None:
    mq = await connect(node)
    absent = await mq.client_id_of("absent")
    await mq.create_queue("orders")
    for n in range(300):
        mq.put_soon("orders", payload(n), receiver=absent)
        if n % 20 == 0:
            await mq.flush()
    await mq.flush()

    async with mq.subscribe("orders") as subscription, asyncio.timeout(LIMIT_S):
        stream = aiter(subscription)
        for n in range(5):
            await mq.put("orders", b"%d" % n, receiver=mq.client_id)
            await mq.put("orders", b"anyone %d" % n)
            assert (await anext(stream)).payload == b"%d" % n
            assert (await anext(stream)).payload == b"anyone %d" % n


async def test_returned_messages_keep_their_place_before_the_tail(mq: Client) -> None:
    await mq.create_queue("orders")
    await fill(mq, 500)
    held = [await mq.get("orders", lease=60) for _ in range(300)]

    for message in held[::3]:
        await message.nack(delay=0)

    received = [number((await mq.get("orders")).payload) for _ in range(300)]
    assert received == [*range(0, 300, 3), *range(300, 500)]


async def test_browsing_and_purging_see_everything(mq: Client) -> None:
    await mq.create_queue("orders")
    await fill(mq, 500)

    seen = await mq.browse("orders", limit=400)
    assert [number(m.payload) for m in seen] == list(range(400))
    assert await mq.purge("orders") == 500
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")
    await mq.put("orders", payload(1))
    assert number((await mq.get("orders")).payload) == 1


async def test_a_crash_with_a_full_store_loses_nothing(
    node: Node, backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    mq = await connect(node)
    await mq.create_queue("orders")
    await fill(mq, 600)
    for _ in range(100):
        await mq.get("orders")
    last = await mq.get("orders", lease=60)
    await last.ack_confirmed()

    await crash(node)
    await backing.declare_dead(node.member_id)
    node = await start_node(limits=NodeLimits(memory_bytes=BOUND))
    mq = await connect(node)

    received = [number((await mq.get("orders")).payload) for _ in range(499)]
    assert received == list(range(101, 600))
    assert node.budget.used_bytes <= BOUND + SLACK


async def test_a_full_transient_queue_refuses_until_somebody_consumes(mq: Client) -> None:
    await mq.create_queue("moods", durable=False)

    results = await asyncio.gather(
        *(mq.put("moods", PADDING) for _ in range(1000)), return_exceptions=True
    )
    assert any(isinstance(result, e.LimitReached) for result in results)
    waiting = len(await mq.browse("moods", limit=1000))
    assert 0 < waiting * len(PADDING) <= BOUND
    await mq.purge("moods")
    await mq.put("moods", b"again")


async def test_queues_share_the_bound(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    await fill(mq, 300)
    for name in ("b", "c"):
        await mq.create_queue(name)
        for at in range(0, 300, 100):
            await mq.put_many(name, [payload(n) for n in range(at, at + 100)])

    assert node.budget.used_bytes <= BOUND + SLACK
    for name in ("c", "orders", "b"):
        received = [number((await mq.get(name)).payload) for _ in range(300)]
        assert received == list(range(300))


async def test_message_stored_by_a_transaction_is_delivered_once(
    node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored by a transaction, and read as part of the tail before the node was told of it: then
    it was there twice, and as many others were never read."""
    await mq.create_queue("orders")
    await fill(mq, 1000)
    transact = node.store.transact
    stored, told = asyncio.Event(), asyncio.Event()

    async def answered_late(*arguments: Any) -> bool:
        fate = await transact(*arguments)
        stored.set()
        await told.wait()
        return fate

    monkeypatch.setattr(node.store, "transact", answered_late)

    async def put_in_transaction() -> None:
        async with mq.transaction() as tx:
            for n in range(1000, 1010):
                tx.put("orders", payload(n))

    transaction = asyncio.create_task(put_in_transaction())
    await stored.wait()
    await fill(mq, 500, start=1010)
    received: list[int] = []
    async with mq.subscribe("orders", prefetch=50) as subscription:
        async for message in subscription:
            received.append(number(message.payload))
            message.ack()
            if len(received) == 1500:
                told.set()
                await transaction
            if len(received) == 1510:
                break
    assert sorted(received) == list(range(1510))
    numbers = (await mq.stats("orders")).queue("orders")
    assert numbers is not None
    assert (numbers.waiting, numbers.unacknowledged) == (0, 0)


async def test_due_message_is_delivered_once_when_memory_is_full(node: Node, mq: Client) -> None:
    """With no room and nothing more to let go of, all that was ever due was read again, also what
    somebody held."""
    await mq.create_queue("orders")
    await mq.put("orders", payload(0), delay=0.01)
    held = await mq.get("orders", lease=60, wait=LIMIT_S)
    await fill(mq, 500, start=1)
    await asyncio.gather(
        *(mq.put("orders", payload(n), delay=0.5) for n in range(501, 601)),
    )
    received: list[int] = []
    async with mq.subscribe("orders", prefetch=50) as subscription:
        async for message in subscription:
            received.append(number(message.payload))
            message.ack()
            if len(received) == 600:
                break
    assert sorted(received) == list(range(1, 601))
    await held.ack_confirmed()
    numbers = (await mq.stats("orders")).queue("orders")
    assert numbers is not None
    assert (numbers.waiting, numbers.unacknowledged) == (0, 0)


async def test_delayed_put_during_a_store_read_is_not_skipped(
    node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored after the store had answered, due before the last that it answered with: it was
    behind the horizon from then on, and nobody looked for it there."""
    await mq.create_queue("orders")
    await fill(mq, 500)
    read_due = node.store.read_due
    has_read, may_go_on = asyncio.Event(), asyncio.Event()

    async def answered_late(*arguments: Any) -> Any:
        segments = await read_due(*arguments)
        if segments and not has_read.is_set():
            has_read.set()
            await may_go_on.wait()
        return segments

    monkeypatch.setattr(node.store, "read_due", answered_late)
    await asyncio.gather(*(mq.put("orders", payload(n), delay=1.5) for n in range(500, 600)))
    await has_read.wait()
    await mq.put("orders", payload(600), delay=1.0)
    may_go_on.set()
    received: list[int] = []
    async with mq.subscribe("orders", prefetch=50) as subscription:
        async for message in subscription:
            received.append(number(message.payload))
            message.ack()
            if len(received) == 601:
                break
    assert sorted(received) == list(range(601))
