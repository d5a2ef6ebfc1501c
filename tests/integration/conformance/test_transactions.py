"""Puts and acknowledgements across queues: done together, or not at all."""
# ruff: noqa: PT012 – a transaction is a block, and it fails where the block ends.

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from backing import Backing, Connect, MemoryBacking, StartNode, TurnedClock, crash
from hypothesis import given
from hypothesis import strategies as st
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core import errors as e
from tidegate.core.model import Overflow, QueuePolicy
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Publication, Settlement, Write
from tidegate.protocol.messages import Acknowledged, PutMessages, Transact, TransactResponse


async def payloads(mq: Client, queue: str) -> list[bytes]:
    return [message.payload for message in await mq.browse(queue, limit=1000)]


async def make(mq: Client, *names: str) -> None:
    for name in names:
        await mq.create_queue(name)


async def test_puts_and_acks_are_done_when_the_block_ends(mq: Client) -> None:
    await make(mq, "orders", "shipped", "billed")
    await mq.put_many("orders", [b"1", b"2"])
    first = await mq.get("orders", lease=60)
    second = await mq.get("orders", lease=60)

    async with mq.transaction() as tx:
        tx.put("shipped", b"a", priority=7, headers={"x": "y"})
        tx.put("billed", b"b")
        tx.put("shipped", b"c", priority=2)
        tx.ack(first)
        tx.ack(second)
        assert await payloads(mq, "shipped") == []

    shipped = await mq.browse("shipped")
    assert [(m.payload, m.priority, m.headers) for m in shipped] == [
        (b"a", 7, {"x": "y"}),
        (b"c", 2, {}),
    ]
    (billed,) = await mq.browse("billed")
    assert tx.message_ids == [shipped[0].message_id, billed.message_id, shipped[1].message_id]
    with pytest.raises(e.LeaseLost):
        await first.ack_confirmed()
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")
    numbers = (await mq.stats("orders")).queue("orders")
    assert numbers is not None
    assert (numbers.acked, numbers.unacknowledged) == (2, 0)


async def test_an_exception_leaves_everything_as_it_was(mq: Client) -> None:
    await make(mq, "orders", "shipped")
    await mq.put("orders", b"1")
    held = await mq.get("orders", lease=60)

    with pytest.raises(ValueError, match="no stock"):
        async with mq.transaction() as tx:
            tx.put("shipped", b"a")
            tx.ack(held)
            raise ValueError("no stock")

    assert await payloads(mq, "shipped") == []
    await held.ack_confirmed()


async def test_a_lost_lease_undoes_the_rest(mq: Client) -> None:
    await make(mq, "orders", "shipped")
    await mq.put_many("orders", [b"1", b"2"])
    gone = await mq.get("orders", lease=60)
    held = await mq.get("orders", lease=60)
    await gone.ack_confirmed()

    with pytest.raises(e.LeaseLost, match="nothing"):
        async with mq.transaction() as tx:
            tx.put("shipped", b"a")
            tx.ack(held)
            tx.ack(gone)

    assert await payloads(mq, "shipped") == []
    # What was still held is held again.
    await held.extend(60)
    await held.ack_confirmed()


async def test_a_transaction_may_put_only_or_ack_only(mq: Client) -> None:
    await make(mq, "orders", "shipped")
    async with mq.transaction() as tx:
        tx.put("orders", b"1")
        tx.put("shipped", b"2")
    held = await mq.get("orders", lease=60)
    async with mq.transaction() as tx:
        tx.ack(held)
        tx.ack(held)
    async with mq.transaction():
        pass
    assert await payloads(mq, "orders") == []
    assert await payloads(mq, "shipped") == [b"2"]
    with pytest.raises(e.InvalidValue, match="not open"):
        tx.put("orders", b"late")


async def test_messages_of_a_subscription_are_acked_in_a_transaction(mq: Client) -> None:
    await make(mq, "orders", "shipped")
    await mq.put_many("orders", [b"%d" % n for n in range(30)])
    async with mq.subscribe("orders", prefetch=4) as subscription, asyncio.timeout(LIMIT_S):
        done = 0
        async for message in subscription:
            if done % 3 == 0:
                message.ack()
            else:
                async with mq.transaction() as tx:
                    tx.ack(message)
                    tx.put("shipped", message.payload)
            done += 1
            if done == 30:
                break
    assert await payloads(mq, "shipped") == [b"%d" % n for n in range(30) if n % 3]
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_a_message_that_is_not_held_here_cannot_be_acked(
    node: Node, mq: Client, connect: Connect
) -> None:
    await make(mq, "orders")
    await mq.put_many("orders", [b"1", b"2"])
    # Both have the same number, each for its client.
    mine, yours = (
        await mq.get("orders", lease=60),
        await (await connect(node)).get("orders", lease=60),
    )
    async with mq.transaction() as tx:
        with pytest.raises(e.InvalidValue, match="another client"):
            tx.ack(yours)
    await mine.ack_confirmed()
    await yours.ack_confirmed()
    await mq.put("orders", b"3")
    async with mq.transaction() as tx:
        with pytest.raises(e.InvalidValue):
            tx.ack((await mq.browse("orders"))[0])
        with pytest.raises(e.InvalidValue):
            tx.put("orders", b"", priority=11)


async def test_a_transaction_is_bounded_and_takes_what_fits(mq: Client) -> None:
    await make(mq, "orders", "shipped")
    megabyte = b"x" * 2**20
    async with mq.transaction() as tx:
        for _ in range(8):
            tx.put("orders", megabyte)
            tx.put("shipped", megabyte)
        with pytest.raises(e.TooLarge):
            tx.put("orders", b"one more")
    for name in ("orders", "shipped"):
        assert len(await mq.browse(name)) == 8


async def test_options_of_puts_are_those_of_transactions(mq: Client) -> None:
    await make(mq, "orders", "jobs")
    await mq.put("orders", b"1", dedup_id="a")
    await mq.put("jobs", b"job")
    async with mq.transaction() as tx:
        tx.ack(await mq.get("jobs", lease=60))
        tx.put("orders", b"2", dedup_id="a")
        tx.put("orders", b"3", dedup_id="b", group="g")
        tx.put("orders", b"4", dedup_id="b")
        tx.put("orders", b"5", delay=60)
        tx.put("orders", b"6", ttl=60)
    first, second, third = await mq.browse("orders")
    assert (third.payload, third.expires_at is not None) == (b"6", True)
    assert (first.payload, second.payload, second.group) == (b"1", b"3", "g")
    assert tx.message_ids[0] == tx.message_ids[2] == 0
    assert tx.message_ids[1] == second.message_id
    # All of it was stored before: done, and nothing is stored.
    async with mq.transaction() as tx:
        tx.put("orders", b"7", dedup_id="a")
    assert tx.message_ids == [0]


async def test_a_full_queue_refuses_or_slows_the_transaction_down(mq: Client) -> None:
    refusing = QueuePolicy(length_max=1, overflow=Overflow.REFUSE)
    await mq.create_queue("refusing", policy=refusing)
    await mq.create_queue("slow", policy=QueuePolicy(length_max=1))
    await make(mq, "jobs")
    for name in ("refusing", "slow", "jobs"):
        await mq.put(name, b"1")
    job = await mq.get("jobs", lease=60)
    with pytest.raises(e.LimitReached, match="full"):
        async with mq.transaction() as tx:
            tx.ack(job)
            tx.put("refusing", b"2")

    async def commit() -> None:
        async with mq.transaction() as tx:
            tx.ack(job)
            tx.put("slow", b"2")

    committing = asyncio.create_task(commit())
    await mq.ping()
    assert await payloads(mq, "slow") == [b"1"]
    await mq.get("slow")
    await committing
    assert await payloads(mq, "slow") == [b"2"]


async def test_transient_queues_take_no_part(mq: Client) -> None:
    await make(mq, "kept")
    await mq.create_queue("passing", durable=False)
    await mq.put("passing", b"1")
    held = await mq.get("passing", lease=60)
    with pytest.raises(e.InvalidValue, match="transient"):
        async with mq.transaction() as tx:
            tx.put("kept", b"1")
            tx.put("passing", b"2")
    with pytest.raises(e.InvalidValue, match="transient"):
        async with mq.transaction() as tx:
            tx.put("kept", b"1")
            tx.ack(held)
    assert await payloads(mq, "kept") == []
    await held.ack_confirmed()


async def test_an_unknown_queue_undoes_the_rest(mq: Client) -> None:
    await make(mq, "orders", "gone")
    await mq.put("orders", b"1")
    held = await mq.get("orders", lease=60)
    other = await mq.queue("gone")
    await mq.delete_queue("gone")
    mq._queues.ids["gone"] = other.queue_id
    with pytest.raises(e.QueueNotExisting):
        async with mq.transaction() as tx:
            tx.ack(held)
            tx.put("orders", b"2")
            tx.put("gone", b"3")
    await held.ack_confirmed()
    assert await payloads(mq, "orders") == []


async def test_a_resend_is_answered_and_not_done_again(mq: Client) -> None:
    await make(mq, "orders", "shipped")
    ids = [(await mq.queue(name)).queue_id for name in ("orders", "shipped")]
    await mq.put("orders", b"1")
    await mq.get("orders", lease=60)
    link = await mq.connected()

    def packet(*, resent: bool) -> Transact:
        put = PutMessages(ids[1], 0, 1, [1], [5])
        return Transact(99, 1, [put], [Acknowledged(ids[0], 0, [(1, 1)])], resent)

    with pytest.raises(e.LeaseLost, match="nothing"):
        await link.request(packet(resent=True), [b"x"])
    first, twin = await asyncio.gather(
        link.request(packet(resent=False), [b"x"]), link.request(packet(resent=False), [b"x"])
    )
    again = await link.request(packet(resent=True), [b"x"])

    assert isinstance(first.packet, TransactResponse)
    assert isinstance(twin.packet, TransactResponse)
    assert first.packet.puts == twin.packet.puts
    assert isinstance(again.packet, TransactResponse)
    assert again.packet.puts == []
    assert await payloads(mq, "shipped") == [b"x"]


@pytest.mark.parametrize(
    ("packet", "body"),
    [
        (Transact(1, 0, [PutMessages(1, 0, 1, [1], [5])], []), b"x"),
        (Transact(1, 1, [PutMessages(1, 0, 1, [2], [5])], []), b"x"),
        (Transact(1, 1, [PutMessages(1, 0, 1, [1], [5])], []), b"xx"),
        (Transact(1, 1, [PutMessages(1, 0, 1, [-1], [5])], []), b"x"),
        (Transact(1, 1, [PutMessages(1, 0, 1, [1], [0])], []), b"x"),
        (Transact(1, 1, [PutMessages(1, 0, 1, [1], [5])] * 2, []), b"xx"),
        (Transact(2**63, 1, [PutMessages(1, 0, 1, [1], [5])], []), b"x"),
    ],
)
async def test_a_bad_transaction_is_refused(packet: Transact, body: bytes, mq: Client) -> None:
    queue = await mq.create_queue("orders")
    for put in packet.puts:
        put.queue_id = queue.queue_id
    with pytest.raises(e.CallerError):
        await (await mq.connected()).request(packet, [body])
    assert await payloads(mq, "orders") == []
    await mq.ping()


# The store's answer is lost, or it says no


class Forgetful:
    """A store whose `transact` is done, or is not, and whose answer is lost the first times."""

    def __init__(self, node: Node, *, first_is_done: bool, losses: int) -> None:
        self._transact = node.store.transact
        self._first_is_done = first_is_done
        self._losses = losses
        node.store.transact = self.transact  # type: ignore[method-assign]

    async def transact(
        self,
        writes: list[Write],
        settlements: list[Settlement],
        publications: list[Publication],
    ) -> bool:
        if self._losses == 0:
            return await self._transact(writes, settlements, publications)
        self._losses -= 1
        if self._first_is_done:
            assert await self._transact(writes, settlements, publications)
        raise e.Unavailable("the answer was lost")


@pytest.mark.parametrize("first_is_done", [True, False])
async def test_a_commit_without_an_answer_is_looked_up(
    first_is_done: bool, node: Node, mq: Client
) -> None:
    await make(mq, "orders", "shipped", "billed")
    await mq.put("orders", b"1")
    held = await mq.get("orders", lease=60)
    Forgetful(node, first_is_done=first_is_done, losses=1)

    async with mq.transaction() as tx:
        tx.ack(held)
        tx.put("shipped", b"a")
        tx.put("billed", b"b")

    assert await payloads(mq, "shipped") == [b"a"]
    assert await payloads(mq, "billed") == [b"b"]
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_transaction_is_invisible_while_its_result_is_unknown(
    start_node: StartNode, connect: Connect
) -> None:
    clock = TurnedClock()
    node = await start_node(clock=clock, limits=NodeLimits(lease_s=36_000.0))
    mq = await connect(node)
    await make(mq, "orders", "shipped")
    await mq.put("orders", b"1")
    other = await connect(node)
    held = await mq.get("orders", lease=600)
    asked = asyncio.Event()
    go_on = asyncio.Event()
    transact = node.store.transact

    async def slow(*change: object) -> bool:
        asked.set()
        await go_on.wait()
        return await transact(*change)  # type: ignore[arg-type]

    node.store.transact = slow  # type: ignore[method-assign, assignment]

    async def commit() -> None:
        async with mq.transaction() as tx:
            tx.ack(held)
            tx.put("shipped", b"a")

    committing = asyncio.create_task(commit())
    await asked.wait()
    # Its lease ends meanwhile, and somebody purges: the message is the transaction's.
    clock.turn(1000)
    for replica in node.replicas.values():
        replica.tick()
    with pytest.raises(e.NoMessagesInQueue):
        await other.get("orders")
    assert await other.purge("orders") == 0
    assert await payloads(other, "shipped") == []
    go_on.set()
    await committing
    assert await payloads(other, "shipped") == [b"a"]
    with pytest.raises(e.NoMessagesInQueue):
        await other.get("orders")


async def test_a_refused_commit_gives_back_what_its_client_no_longer_holds(
    node: Node, mq: Client, connect: Connect
) -> None:
    await make(mq, "orders", "shipped")
    await mq.put("orders", b"1")
    worker = await connect(node)
    held = await worker.get("orders", lease=60)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def full(*change: object) -> bool:
        asked.set()
        await go_on.wait()
        raise e.LimitReached("no room")

    node.store.transact = full  # type: ignore[method-assign, assignment]

    async def commit() -> None:
        async with worker.transaction() as tx:
            tx.ack(held)
            tx.put("shipped", b"a")

    committing = asyncio.create_task(commit())
    await asked.wait()
    assert worker.transport is not None
    worker.transport.abort()
    waiting = asyncio.create_task(mq.get("orders", wait=LIMIT_S))
    go_on.set()
    again = await waiting
    assert (again.payload, again.redelivered) == (b"1", True)
    assert await payloads(mq, "shipped") == []
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)


# A broken connection


async def test_a_connection_that_breaks_at_the_commit_does_it_once(node: Node, mq: Client) -> None:
    await make(mq, "orders", "shipped")
    await mq.put("orders", b"1")
    held = await mq.get("orders", lease=60)
    transact = node.store.transact
    broken = False

    async def breaking(*change: object) -> bool:
        nonlocal broken
        done = await transact(*change)  # type: ignore[arg-type]
        if not broken and mq.transport is not None:
            broken = True
            mq.transport.abort()
            await eventually_async(lambda: mq.transport is not None and mq.transport.alive)
        return done

    node.store.transact = breaking  # type: ignore[method-assign, assignment]

    async with mq.transaction() as tx:
        tx.ack(held)
        tx.put("shipped", b"a")

    assert broken
    assert await payloads(mq, "shipped") == [b"a"]
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_acks_alone_say_that_their_outcome_is_unknown(node: Node, mq: Client) -> None:
    await make(mq, "orders")
    await mq.put("orders", b"1")
    held = await mq.get("orders", lease=60)
    transact = node.store.transact

    async def breaking(*change: object) -> bool:
        assert mq.transport is not None
        mq.transport.abort()
        return await transact(*change)  # type: ignore[arg-type]

    node.store.transact = breaking  # type: ignore[method-assign, assignment]
    with pytest.raises(e.IoFailure, match="not known"):
        async with mq.transaction() as tx:
            tx.ack(held)


async def test_transaction_loses_messages_of_an_earlier_connection(mq: Client) -> None:
    await make(mq, "orders", "shipped")
    await mq.put("orders", b"1")
    held = await mq.get("orders", lease=60)
    assert mq.transport is not None
    with pytest.raises(e.LeaseLost):
        async with mq.transaction() as tx:
            tx.ack(held)
            tx.put("shipped", b"a")
            mq.transport.abort()
            await eventually_async(lambda: mq.transport is not None and mq.transport.alive)
            # Another message now goes by the number that ours had.
            other = await mq.get("orders", lease=60, wait=LIMIT_S)
    assert await payloads(mq, "shipped") == []
    await other.ack_confirmed()


# Restarts


async def test_a_transaction_survives_its_node(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    await make(mq, "orders", "shipped")
    await mq.put_many("orders", [b"1", b"2", b"3"])
    held = [await mq.get("orders", lease=60) for _ in range(2)]
    async with mq.transaction() as tx:
        for message in held:
            tx.ack(message)
        tx.put("shipped", b"a", priority=8)
        tx.put("shipped", b"b")
    await crash(node)
    await backing.declare_dead(node.member_id)

    mq = await connect(await start_node())
    assert await payloads(mq, "shipped") == [b"a", b"b"]
    assert [(await mq.get("orders", wait=LIMIT_S)).payload] == [b"3"]
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")


async def test_a_segment_that_transactions_emptied_is_gone_after_a_crash(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    """Its node died after the commit and before it deleted what was done."""
    node = await start_node()
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"1", b"2"])
    held = [await mq.get("orders", lease=60) for _ in range(2)]
    node._writers.settler(queue.queue_id).abort()
    for message in held:
        async with mq.transaction() as tx:
            tx.ack(message)
    store = backing.store()
    assert len(await store.lanes(queue.queue_id)) == 1
    await crash(node)
    await backing.declare_dead(node.member_id)

    mq = await connect(await start_node())
    with pytest.raises(e.NoMessagesInQueue):
        await mq.get("orders")
    assert await store.lanes(queue.queue_id) == []
    await store.close()


# Two nodes


class Pair:
    """Two nodes; A owns `here`, B owns `there`; a client of each."""

    def __init__(self, a: Node, b: Node, at_a: Client, at_b: Client) -> None:
        self.a, self.b, self.at_a, self.at_b = a, b, at_a, at_b


@pytest.fixture
async def pair(start_node: StartNode, connect: Connect) -> Pair:
    a, b = await start_node(), await start_node()
    at_a, at_b = await connect(a), await connect(b)
    await make(at_a, "here", "here-too")
    await make(at_b, "there", "there-too")
    return Pair(a, b, at_a, at_b)


async def test_queues_that_are_put_to_come_to_the_leases(pair: Pair) -> None:
    await pair.at_a.put("there", b"1")
    # Held at B, by a client of A.
    held = await pair.at_a.get("there", lease=60)
    async with pair.at_a.transaction() as tx:
        tx.ack(held)
        tx.put("here", b"a")
        tx.put("there-too", b"b")
    assert await payloads(pair.at_b, "here") == [b"a"]
    assert await payloads(pair.at_a, "there-too") == [b"b"]
    assert (await pair.at_a.queue("here")).queue_id in pair.b.replicas
    with pytest.raises(e.NoMessagesInQueue):
        await pair.at_a.get("there")


async def test_leases_at_different_nodes_are_refused_with_a_reason(pair: Pair) -> None:
    await pair.at_a.put("here", b"1")
    await pair.at_a.put("there", b"2")
    held = [await pair.at_a.get(name, lease=60) for name in ("here", "there")]
    with pytest.raises(e.InvalidValue, match="different nodes"):
        async with pair.at_a.transaction() as tx:
            for message in held:
                tx.ack(message)
    for message in held:
        await message.ack_confirmed()


async def test_transactions_that_pull_at_the_same_queues_all_end(pair: Pair) -> None:
    async def work(mq: Client, own: str, other: str, mark: bytes) -> None:
        for n in range(4):
            await mq.put(own, b"job")
            held = await mq.get(own, lease=60, wait=LIMIT_S)
            async with mq.transaction() as tx:
                tx.ack(held)
                tx.put(other, b"%s%d" % (mark, n))

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(
            work(pair.at_a, "here", "there-too", b"a"),
            work(pair.at_b, "there", "there-too", b"b"),
        )
    assert sorted(await payloads(pair.at_a, "there-too")) == [
        b"%s%d" % (mark, n) for mark in (b"a", b"b") for n in range(4)
    ]


async def test_a_deposed_node_does_nothing(pair: Pair, backing: Backing) -> None:
    await pair.at_b.put("there", b"1")
    held = await pair.at_b.get("there", lease=60)
    queue_id = (await pair.at_a.queue("there")).queue_id
    await backing.declare_dead(pair.b.member_id)
    await pair.a.ownership.route(queue_id)
    with pytest.raises(e.LeaseLost):
        async with pair.at_b.transaction() as tx:
            tx.ack(held)
            tx.put("there", b"2")
    assert await payloads(pair.at_a, "there") == [b"1"]


# The law: whatever fails, a job is done with its result in the next queue, or neither.


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "raise", "lose", "refuse", "lost done"]), st.integers(1, 3)
    ),
    max_size=8,
)


@given(steps=STEPS)
def test_the_transaction_law(steps: list[Step]) -> None:
    asyncio.run(_law(steps))


async def _law(steps: list[Step]) -> None:
    backing = MemoryBacking()
    node = Node(backing.store(), name="law")
    await node.start()
    transact = node.store.transact
    try:
        async with Client(node.address) as mq:
            await make(mq, "jobs", "results", "log")
            total = sum(count for _, count in steps)
            await mq.put_many("jobs", [b"%d" % n for n in range(total)])
            expected: list[bytes] = []
            for how, count in steps:
                held = [await mq.get("jobs", lease=60) for _ in range(count)]
                node.store.transact = _fate(how, transact)  # type: ignore[assignment, method-assign]
                try:
                    await _work(mq, held, fail=how == "raise")
                except (RuntimeError, e.LimitReached):
                    for message in held:
                        await message.release()
                else:
                    expected += [message.payload for message in held]
                node.store.transact = transact  # type: ignore[method-assign]
            results, log = await payloads(mq, "results"), await payloads(mq, "log")
            left = await payloads(mq, "jobs")
            assert results == log == expected
            assert sorted(left + results) == sorted(b"%d" % n for n in range(total))
    finally:
        await node.stop()


async def _work(mq: Client, held: list[Message], *, fail: bool) -> None:
    async with mq.transaction() as tx:
        for message in held:
            tx.ack(message)
            tx.put("results", message.payload)
            tx.put("log", message.payload)
        if fail:
            raise RuntimeError("on purpose")


def _fate(how: str, transact: Callable[..., object]) -> Callable[..., object]:
    asked = 0

    async def fated(*change: object) -> bool:
        nonlocal asked
        asked += 1
        if how == "refuse":
            raise e.LimitReached("on purpose")
        if asked == 1 and how == "lost done":
            await transact(*change)  # type: ignore[misc]
        if asked == 1 and how in ("lose", "lost done"):
            raise e.Unavailable("on purpose")
        return await transact(*change)  # type: ignore[misc, no-any-return]

    return fated
