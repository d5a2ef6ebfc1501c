"""Two nodes on one store: either serves every queue, and one takes over when the other is gone."""

from __future__ import annotations

import asyncio

import pytest
from backing import Backing, Connect, StartNode, crash
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Location

# Nobody's lease ends while this machine does something else.
PATIENT = NodeLimits(lease_s=600.0)
# Soon over for who waits for it.
QUICK = NodeLimits(lease_s=1.5)


class Pair:
    """Node A, which owns nothing, and node B, which owns `orders`."""

    def __init__(self, a: Node, b: Node, at_a: Client, at_b: Client) -> None:
        self.a = a
        self.b = b
        self.at_a = at_a
        self.at_b = at_b


@pytest.fixture
async def pair(start_node: StartNode, connect: Connect) -> Pair:
    return await pair_of(
        await start_node(limits=PATIENT), await start_node(limits=PATIENT), connect
    )


@pytest.fixture
async def pair_with_a_quick_lease(start_node: StartNode, connect: Connect) -> Pair:
    """That of B."""
    return await pair_of(await start_node(limits=PATIENT), await start_node(limits=QUICK), connect)


async def pair_of(a: Node, b: Node, connect: Connect) -> Pair:
    at_a = await connect(a, name="at-a", mode="admin")
    at_b = await connect(b, name="at-b")
    queue = await at_b.create_queue("orders")
    assert queue.queue_id in b.replicas
    return Pair(a, b, at_a, at_b)


async def owner_of(pair: Pair, name: str) -> Node | None:
    queue_id = (await pair.at_a.queue(name)).queue_id
    for node in (pair.a, pair.b):
        if queue_id in node.replicas:
            return node
    return None


async def test_both_are_members(pair: Pair) -> None:
    members = await pair.at_a.members()

    assert [m.member_id for m in members] == [pair.a.member_id, pair.b.member_id]
    assert all(m.alive for m in members)
    assert {m.address for m in members} == {pair.a.address, pair.b.address}
    assert [m.queues for m in members] == [0, 1]


async def test_a_queue_that_another_node_adopts_the_moment_it_is_made_is_made(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes adopt what nobody owns; who made it was told to try again, and then that it exists."""
    store = pair.a.store

    async def locate(queue_id: int) -> Location | None:
        monkeypatch.undo()
        seen = await store.locate(queue_id)
        await pair.b.ownership.adopt()
        return seen

    monkeypatch.setattr(store, "locate", locate)
    queue = await pair.at_a.create_queue("invoices")

    assert queue.queue_id in pair.b.replicas
    await pair.at_a.put("invoices", b"1")
    assert (await pair.at_b.get("invoices")).payload == b"1"


async def test_a_subscription_drains_through_the_other_node(pair: Pair) -> None:
    await pair.at_b.put_many("orders", [b"%d" % n for n in range(10)])

    async with pair.at_a.subscribe("orders", prefetch=5) as subscription:
        first = await anext(aiter(subscription))
        await subscription.drain()
        again = [await pair.at_b.get("orders") for _ in range(9)]
        await first.ack_confirmed()

    assert [m.payload for m in again] == [b"%d" % n for n in range(1, 10)]


async def test_a_client_of_one_reads_and_writes_the_queues_of_the_other(pair: Pair) -> None:
    ids = await pair.at_a.put_many("orders", [b"1", b"2"])
    await pair.at_a.put("orders", b"3", priority=9, headers={"a": "b"})

    assert [m.message_id for m in await pair.at_b.browse("orders")][:2] == ids
    assert (await pair.at_a.get("orders", order="priority")).headers == {"a": "b"}
    assert (await pair.at_b.get("orders")).payload == b"1"
    held = await pair.at_a.get("orders", lease=60)
    await held.extend(60)
    await held.nack(delay=0)
    again = await pair.at_a.get("orders", lease=60)
    assert (again.payload, again.delivery_count) == (b"2", 2)
    await again.ack_confirmed()
    with pytest.raises(e.NoMessagesInQueue):
        await pair.at_a.get("orders")
    with pytest.raises(e.InvalidValue):
        await pair.at_a.get("orders", wait=-1)
    assert await pair.at_a.purge("orders") == 0
    assert await owner_of(pair, "orders") is pair.b


async def test_a_client_of_one_subscribes_to_a_queue_of_the_other(pair: Pair) -> None:
    async with pair.at_a.subscribe("orders", prefetch=2) as subscription, asyncio.timeout(LIMIT_S):
        await pair.at_b.put_many("orders", [b"%d" % n for n in range(10)])
        received = []
        async for message in subscription:
            received.append(int(message.payload))
            await message.ack_confirmed()
            if len(received) == 5:
                await subscription.set_prefetch(10)
            if len(received) == 10:
                break
    assert received == list(range(10))


async def test_waiting_reads_and_requests_work_across_nodes(pair: Pair) -> None:
    waiting = asyncio.create_task(pair.at_a.get("orders", wait=LIMIT_S))
    queue_id = (await pair.at_a.queue("orders")).queue_id
    await eventually_async(lambda: pair.b.replicas[queue_id].dispatch.readers.count == 1)
    await pair.at_b.put("orders", b"now")
    assert (await waiting).payload == b"now"

    asking = asyncio.create_task(pair.at_a.request("orders", b"?", timeout=LIMIT_S))
    await pair.at_b.reply(await pair.at_b.get("orders", wait=LIMIT_S), b"!")
    assert (await asking).payload == b"!"


async def test_messages_find_their_receiver_at_another_node(pair: Pair) -> None:
    await pair.at_b.put("orders", b"for a", receiver=pair.at_a.client_id)

    with pytest.raises(e.NoMessagesRetrieved):
        await pair.at_b.get("orders")
    assert [q.name for q in await pair.at_a.active_queues()] == ["orders"]
    assert await pair.at_b.active_queues() == []
    assert (await pair.at_a.get("orders")).payload == b"for a"


async def test_stats_show_all_nodes(pair: Pair) -> None:
    await pair.at_a.put("orders", b"1")

    everything = await pair.at_a.stats()
    assert {n.member_id for n in everything.nodes} == {pair.a.member_id, pair.b.member_id}
    orders = (await pair.at_a.stats("orders")).queue("orders")
    assert orders is not None
    assert (orders.waiting, orders.put) == (1, 1)


async def test_an_admin_moves_a_queue_and_nothing_is_lost(pair: Pair) -> None:
    await pair.at_b.put_many("orders", [b"%d" % n for n in range(100)])
    held = await pair.at_b.get("orders", lease=60)
    async with pair.at_b.subscribe("orders", prefetch=5) as subscription, asyncio.timeout(LIMIT_S):
        received: list[int] = []

        async def consume() -> None:
            async for message in subscription:
                await message.ack_confirmed()
                received.append(int(message.payload))

        consuming = asyncio.create_task(consume())
        await eventually_async(lambda: len(received) > 10)
        await pair.at_a.set_owner("orders", pair.a.member_id)
        await pair.at_b.put_many("orders", [b"%d" % n for n in range(100, 120)])
        assert await owner_of(pair, "orders") is pair.a

        def is_all_received() -> bool:
            nonlocal consuming
            if consuming.done():
                consuming = asyncio.create_task(consume())
            return len(set(received)) == 120

        try:
            await eventually_async(is_all_received)
        finally:
            consuming.cancel()
    with pytest.raises(e.LeaseLost):
        await held.ack_confirmed()

    assert set(received) == set(range(120))
    with pytest.raises(e.NoMessagesInQueue):
        await pair.at_b.get("orders")


async def test_a_queue_moves_back_and_forth_under_load(pair: Pair) -> None:
    stop = asyncio.Event()
    put: list[int] = []

    async def produce() -> None:
        n = 0
        while not stop.is_set():
            await pair.at_b.put("orders", b"%d" % n)
            put.append(n)
            n += 1

    producing = asyncio.create_task(produce())
    for node in (pair.a, pair.b) * 3:
        await pair.at_a.set_owner("orders", node.member_id)
        seen = len(put)
        await eventually_async(lambda seen=seen: len(put) > seen + 5)  # type: ignore[misc]
    stop.set()
    await producing

    stored = [int(m.payload) for m in await pair.at_a.browse("orders", limit=10_000)]
    assert stored == put


async def test_a_queue_moves_only_to_a_living_member(pair: Pair) -> None:
    with pytest.raises(e.InvalidValue):
        await pair.at_a.set_owner("orders", 999)
    assert await owner_of(pair, "orders") is pair.b
    await pair.at_a.set_owner("orders", pair.b.member_id)


async def test_put_to_queues_of_two_nodes_is_all_or_none(pair: Pair) -> None:
    await pair.at_a.create_queue("here")

    assert await pair.at_a.put_to(["here", "orders"], b"both") == ["here", "orders"]
    with pytest.raises(e.QueueNotExisting):
        await pair.at_a.put_to(["here", "orders", "nowhere"], b"none")

    for name in ("here", "orders"):
        assert [m.payload for m in await pair.at_b.browse(name)] == [b"both"]


async def test_puts_to_several_queues_from_both_sides_do_not_deadlock(pair: Pair) -> None:
    await pair.at_a.create_queue("here")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(
            *(pair.at_a.put_to(["here", "orders"], b"a") for _ in range(5)),
            *(pair.at_b.put_to(["orders", "here"], b"b") for _ in range(5)),
        )
    for name in ("here", "orders"):
        assert len(await pair.at_a.browse(name)) == 10


async def test_the_other_takes_over_when_the_owner_stops(pair: Pair) -> None:
    await pair.at_a.put_many("orders", [b"1", b"2"])

    await pair.b.stop()

    assert (await pair.at_a.get("orders", wait=LIMIT_S)).payload == b"1"
    assert await owner_of(pair, "orders") is pair.a


async def test_the_other_takes_over_when_the_owner_dies(pair: Pair, backing: Backing) -> None:
    await pair.at_a.put_many("orders", [b"%d" % n for n in range(50)])
    async with pair.at_a.subscribe("orders", prefetch=5) as subscription, asyncio.timeout(LIMIT_S):
        stream = aiter(subscription)
        first = await anext(stream)
        await first.ack_confirmed()
        waiting = asyncio.create_task(pair.at_a.get("orders", wait=LIMIT_S, context=77))
        await pair.at_a.ping()

        await crash(pair.b)
        await backing.declare_dead(pair.b.member_id)

        put = pair.at_a.put("orders", b"50")
        received: list[int] = []
        while len(received) < 49 or 50 not in received:
            message = await anext(stream)
            await message.ack_confirmed()
            received.append(int(message.payload))
        await put
        await pair.at_a.put("orders", b"reply", context=77, receiver=pair.at_a.client_id)
        assert (await waiting).payload == b"reply"

    assert set(received) == set(range(1, 51))
    assert await owner_of(pair, "orders") is pair.a


async def test_a_client_of_the_dead_node_goes_to_the_next_one_in_its_url(
    pair_with_a_quick_lease: Pair,
) -> None:
    """When the lease of the dead one is over."""
    pair = pair_with_a_quick_lease
    url = f"{pair.b.address},{pair.a.address.removeprefix('tidegate://')}"
    async with Client(url) as mq:
        await mq.put("orders", b"before")
        await crash(pair.b)
        await mq.put("orders", b"after")
        received = [(await mq.get("orders", wait=LIMIT_S)).payload for _ in range(2)]
    assert received == [b"before", b"after"]


async def test_a_deposed_owner_confirms_nothing_and_hands_nothing_out(
    pair: Pair, backing: Backing
) -> None:
    """As after a long pause: B still believes in itself, the store does not."""
    await pair.at_b.put_many("orders", [b"1", b"2", b"3"])
    held = await pair.at_b.get("orders", lease=60)
    queue_id = (await pair.at_a.queue("orders")).queue_id
    deposed = pair.b.replicas[queue_id]

    await backing.declare_dead(pair.b.member_id)
    await pair.a.ownership.route(queue_id)

    assert pair.a.replicas[queue_id].epoch > deposed.epoch
    with pytest.raises(e.LeaseLost):
        await held.ack_confirmed()
    # The client asks again until it is heard, and then it is the new owner that stores it.
    await pair.at_b.put("orders", b"4")
    await eventually_async(lambda: deposed.fenced)
    seen = [m.payload for m in await pair.at_a.browse("orders")]
    assert seen == [b"1", b"2", b"3", b"4"]


async def test_a_node_that_was_declared_dead_starts_over(
    pair_with_a_quick_lease: Pair, backing: Backing
) -> None:
    pair = pair_with_a_quick_lease
    old = pair.b.member_id
    await backing.declare_dead(old)
    queue_id = (await pair.at_a.queue("orders")).queue_id
    await pair.a.ownership.route(queue_id)

    await eventually_async(lambda: pair.b.member_id != old)

    await pair.at_b.put("orders", b"by relay")
    assert (await pair.at_a.get("orders")).payload == b"by relay"
    assert {m.member_id for m in await pair.at_a.members() if m.alive} == {
        pair.a.member_id,
        pair.b.member_id,
    }


async def test_deleting_a_queue_of_the_other_ends_what_hangs_on_it(pair: Pair) -> None:
    async with pair.at_a.subscribe("orders") as subscription:
        await pair.at_a.delete_queue("orders")
        with pytest.raises(e.QueueNotExisting):
            async with asyncio.timeout(LIMIT_S):
                await anext(aiter(subscription))
    with pytest.raises(e.QueueNotExisting):
        await pair.at_b.queue("orders")


async def test_a_subscription_never_comes_back_to_the_node_that_relays_it(
    start_node: StartNode, connect: Connect
) -> None:
    """It stood at its own node as somebody else's: acknowledgements and its end did not find it."""
    one, other = await start_node(), await start_node()
    mq = await connect(one)
    info = await mq.create_queue("orders")
    await one.ownership.transfer_ownership(one.replicas[info.queue_id], other.member_id)
    await mq.put("orders", b"x")  # from now on this connection knows the way to the other node
    await other.ownership.transfer_ownership(other.replicas[info.queue_id], one.member_id)

    async with mq.subscribe("orders") as subscription:
        message = await anext(aiter(subscription))
        await message.ack_confirmed()

    holders = one.replicas[info.queue_id].dispatch.holders
    assert (holders.consumers, holders.unacknowledged) == ([], 0)
