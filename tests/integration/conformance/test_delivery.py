"""Delivery people rely on: retries, dead letters, delays, expiry, dedup ids, limits, pauses."""

from __future__ import annotations

import asyncio

import pytest
from backing import Backing, Connect, StartNode, TurnedClock, crash
from logical import Talker
from waiting import LIMIT_S, eventually_async

from tidegate.broker import node as server
from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core import errors as e
from tidegate.core.model import DeathReason, Overflow, QueuePolicy
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.messages import Deliver, Subscribe
from tidegate.telemetry.stats import QueueStats

LONG_S = 36_000.0


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
async def node(start_node: StartNode, clock: TurnedClock) -> Node:
    """A node whose clock the test turns, and whose lease outlives that."""
    return await start_node(clock=clock, limits=NodeLimits(lease_s=LONG_S))


def numbers(node: Node, name: str) -> QueueStats:
    found = [r.numbers() for r in node.replicas.values() if r.info.name == name]
    return found[0]


async def take(mq: Client, queue: str) -> Message:
    return await mq.get(queue, lease=600, wait=LIMIT_S)


async def is_empty(mq: Client, queue: str) -> bool:
    try:
        message = await mq.get(queue, lease=600)
    except (e.NoMessagesInQueue, e.NoMessagesRetrieved):
        return True
    await message.release()
    return False


# Retries


async def test_a_failed_message_comes_again_after_the_queues_backoff(
    node: Node, mq: Client, clock: TurnedClock
) -> None:
    policy = QueuePolicy(retry_first_s=10, retry_factor=3, retry_max_s=60, retry_jitter=0)
    await mq.create_queue("orders", policy=policy)
    await mq.put("orders", b"x")
    for wait_s, delivery in ((10, 1), (30, 2), (60, 3), (60, 4)):
        message = await take(mq, "orders")
        assert message.delivery_count == delivery
        await message.nack(error="no luck")
        clock.turn(wait_s - 1)
        node.replicas[1].tick()
        assert await is_empty(mq, "orders")
        assert numbers(node, "orders").delayed == 1
        clock.turn(1.01)


async def test_a_nack_may_say_when(node: Node, mq: Client, clock: TurnedClock) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"x")
    await (await take(mq, "orders")).nack(delay=3600)
    assert await is_empty(mq, "orders")
    clock.turn(3600.01)
    again = await take(mq, "orders")
    assert again.redelivered
    await again.nack(delay=0)
    assert (await take(mq, "orders")).delivery_count == 3


async def test_others_are_delivered_while_one_waits_to_be_tried_again(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"1", b"2"])
    await (await take(mq, "orders")).nack(delay=3600)
    assert (await take(mq, "orders")).payload == b"2"


async def test_released_message_returns_without_a_failure(mq: Client) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=2))
    await mq.put("orders", b"x")
    for deliveries in range(1, 6):
        message = await take(mq, "orders")
        assert message.delivery_count == deliveries
        await message.release()
    assert (await mq.queues()) == [await mq.queue("orders")]


async def test_failures_and_waits_survive_the_node(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    first = await start_node()
    mq = await connect(first)
    await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=3))
    await mq.put_many("orders", [b"poison", b"later", b"fine"])
    await (await take(mq, "orders")).nack(delay=0, error="boom")
    await (await take(mq, "orders")).nack(delay=0, error="boom again")
    later = await mq.get("orders", lease=600, wait=LIMIT_S, order="oldest")
    assert later.payload == b"poison"
    await later.release()
    held = [await take(mq, "orders"), await take(mq, "orders")]
    await held[1].nack(delay=3600)
    await held[0].release()
    await eventually_async(lambda: not first.replicas[1]._settling.busy)
    await crash(first)
    await backing.declare_dead(first.member_id)

    second = await start_node()
    mq = await connect(second)
    message = await take(mq, "orders")
    assert (message.payload, message.delivery_count) == (b"poison", 3)
    await message.nack(error="the last time")
    dead = await take_dead(mq, "orders.dead")
    assert dead.payload == b"poison"
    assert [f.error for f in dead.deaths[0].failures] == ["boom", "boom again", "the last time"]
    assert (await take(mq, "orders")).payload == b"fine"
    assert numbers(second, "orders").delayed == 1


# Leases


async def test_the_lease_is_the_queues_own(node: Node, mq: Client, clock: TurnedClock) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(lease_s=5))
    await mq.put("orders", b"x")
    async with mq.subscribe("orders") as subscription:
        await anext(aiter(subscription))
        assert numbers(node, "orders").unacknowledged == 1
        await mq.set_policy("orders", paused=True)
        clock.turn(5.01)
        await eventually_async(lambda: numbers(node, "orders").unacknowledged == 0)
    assert numbers(node, "orders").returned == 1


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_a_wall_clock_that_is_set_ends_no_lease_and_prolongs_none(
    node: Node, mq: Client, clock: TurnedClock, jump_s: float
) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"held", b"forgotten"])
    held, forgotten = [await mq.get("orders", lease=600, wait=LIMIT_S) for _ in range(2)]

    clock.jump(jump_s)
    clock.turn(599)
    node.replicas[1].tick()

    assert numbers(node, "orders").unacknowledged == 2
    await held.ack_confirmed()
    clock.turn(1.01)
    node.replicas[1].tick()
    assert numbers(node, "orders").unacknowledged == 0
    with pytest.raises(e.LeaseLost):
        await forgotten.ack_confirmed()
    again = await take(mq, "orders")
    assert (again.payload, again.redelivered) == (b"forgotten", True)


# Dead letters


async def test_after_as_many_failures_as_allowed_it_is_a_dead_letter(
    node: Node, mq: Client
) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=3))
    await mq.put("orders", b"poison", headers={"k": "v"}, priority=7, context=9)
    for _ in range(3):
        await (await take(mq, "orders")).nack(delay=0, error="ValueError: no")
    dead = await take_dead(mq, "orders.dead")
    assert (dead.payload, dead.headers, dead.priority, dead.context) == (
        b"poison",
        {"k": "v"},
        7,
        9,
    )
    (death,) = dead.deaths
    assert (death.queue, death.reason, death.error) == (
        "orders",
        DeathReason.DELIVERIES,
        "ValueError: no",
    )
    assert (death.deliveries, len(death.failures)) == (3, 3)
    assert death.failures[0].reason == "nack"
    assert await is_empty(mq, "orders")
    assert numbers(node, "orders").dead_lettered == 1


async def test_a_rejected_message_is_a_dead_letter_at_once(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"x")
    await (await take(mq, "orders")).reject(error="malformed")
    (death,) = (await take_dead(mq, "orders.dead")).deaths
    assert (death.reason, death.error, death.deliveries) == (
        DeathReason.REJECTED,
        "malformed",
        1,
    )


async def test_a_worker_that_dies_again_and_again_does_not_block_the_others(
    node: Node, mq: Client, connect: Connect
) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=3))
    await mq.put_many("orders", [b"poison", b"fine"])
    deliveries = 0
    for _ in range(3):
        victim = await connect(node)
        async with asyncio.timeout(LIMIT_S):
            message = await victim.get("orders", lease=600, wait=LIMIT_S)
        assert message.payload == b"poison"
        deliveries += 1
        assert victim.transport is not None
        victim.transport.abort()
        await eventually_async(lambda: numbers(node, "orders").unacknowledged == 0)
        await victim.close()
    dead = await take_dead(mq, "orders.dead")
    assert (dead.payload, deliveries) == (b"poison", 3)
    assert dead.deaths[0].failures[-1].reason == "consumer gone"
    assert (await take(mq, "orders")).payload == b"fine"


async def test_broken_connection_counts_one_failure_for_each_message(
    node: Node, mq: Client
) -> None:
    queue_id = (await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=3))).queue_id
    victim = await Talker.to(node, "victim")
    for consumer in (1, 2, 3):
        await victim.ask(Subscribe(queue_id, consumer, 3))
    await mq.put_many("orders", [b"x"] * 3)
    for _ in range(3):
        await victim.heard(Deliver)
    victim.close()

    back = [await take(mq, "orders") for _ in range(3)]

    assert [message.delivery_count for message in back] == [2, 2, 2]
    assert numbers(node, "orders").returned == 3


async def test_a_dead_letter_queue_of_ones_own_choice_or_none(node: Node, mq: Client) -> None:
    await mq.create_queue("graveyard")
    await mq.create_queue("a", policy=QueuePolicy(dead_letter="graveyard"))
    await mq.create_queue("b", policy=QueuePolicy(dead_letter=""))
    for queue in ("a", "b"):
        await mq.put(queue, queue.encode())
        await (await take(mq, queue)).reject()
    assert (await take(mq, "graveyard")).payload == b"a"
    assert await is_empty(mq, "b")
    assert numbers(node, "b").dropped == 1
    assert {queue.name for queue in await mq.queues()} == {"graveyard", "a", "b"}


async def test_dead_letters_are_sent_back_as_they_were(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"x", receiver=mq.client_id, headers={"a": "1"})
    await (await take(mq, "orders")).reject(error="not now")
    dead = await take_dead(mq, "orders.dead")
    assert dead.receiver is None
    await dead.release()

    assert await mq.redrive("orders.dead") == 1

    back = await take(mq, "orders")
    assert (back.payload, back.receiver, back.headers) == (b"x", mq.client_id, {"a": "1"})
    assert [death.error for death in back.deaths] == ["not now"]
    assert await is_empty(mq, "orders.dead")
    await back.reject(error="still not")
    dead = await take_dead(mq, "orders.dead")
    assert [death.error for death in dead.deaths] == ["not now", "still not"]


async def test_a_selection_of_dead_letters_is_sent_back(mq: Client) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=1))
    await mq.create_queue("elsewhere")
    for n in range(6):
        await mq.put("orders", b"%d" % n)
    for n in range(6):
        message = await take(mq, "orders")
        await (message.reject() if n % 2 else message.nack())
    await until_waiting(mq, "orders.dead", 6)
    dead = await mq.browse("orders.dead")
    wanted = [message.message_id for message in dead if message.payload == b"4"]

    assert await mq.redrive("orders.dead", message_ids=wanted, to="elsewhere") == 1
    assert (await take(mq, "elsewhere")).payload == b"4"
    assert await mq.redrive("orders.dead", reason="rejected", limit=2) == 2
    assert sorted([(await take(mq, "orders")).payload for _ in range(2)]) == [b"1", b"3"]
    left = [message.payload for message in await mq.browse("orders.dead")]
    assert sorted(left) == [b"0", b"2", b"5"]
    assert [m.message_id for m in await mq.browse("orders.dead")] == sorted(
        m.message_id for m in dead if m.payload in left
    )


async def until_waiting(mq: Client, queue: str, count: int) -> None:
    async def are_there() -> bool:
        try:
            found = (await mq.stats(queue)).queue(queue)
        except e.QueueNotExisting:
            return False
        return found is not None and found.waiting == count

    await eventually_async(are_there, f"{count} messages wait in {queue}")


async def test_dead_letter_stays_when_its_queue_is_deleted(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"1", b"2"])
    for _ in range(2):
        await (await take(mq, "orders")).reject()
    await until_waiting(mq, "orders.dead", 2)
    await mq.delete_queue("orders")
    with pytest.raises(e.QueueNotExisting, match="orders"):
        await mq.redrive("orders.dead")
    assert [m.payload for m in await mq.browse("orders.dead")] == [b"1", b"2"]
    with pytest.raises(e.InvalidValue, match="reason is one of"):
        await mq.redrive("orders.dead", reason="because")


async def test_dead_letters_and_their_queues_survive_a_crash(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    first = await start_node()
    mq = await connect(first)
    await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=1))
    await mq.put_many("orders", [b"%d" % n for n in range(50)])
    for n in range(50):
        message = await take(mq, "orders")
        if n % 2:
            await message.nack()
        else:
            await message.ack_confirmed()
    await until_waiting(mq, "orders.dead", 25)
    await crash(first)
    await backing.declare_dead(first.member_id)
    second = await start_node()
    mq = await connect(second)
    assert await is_empty(mq, "orders")
    payloads = {m.payload for m in await mq.browse("orders.dead", limit=100)}
    assert payloads == {b"%d" % n for n in range(1, 50, 2)}


# Later


async def test_a_delayed_message_comes_when_it_is_due(
    node: Node, mq: Client, clock: TurnedClock
) -> None:
    await mq.create_queue("orders")
    await asyncio.gather(
        mq.put("orders", b"in an hour", delay=3600),
        mq.put("orders", b"at a time", deliver_at=clock.wall() + 1800),
        mq.put("orders", b"now"),
        mq.put("orders", b"in the past", deliver_at=clock.wall() - 5),
    )
    for payload in (b"now", b"in the past"):
        message = await take(mq, "orders")
        assert message.payload == payload
        await message.ack_confirmed()
    assert await is_empty(mq, "orders")
    assert (numbers(node, "orders").waiting, numbers(node, "orders").delayed) == (2, 2)
    for payload in (b"at a time", b"in an hour"):
        clock.turn(1800.01)
        message = await take(mq, "orders")
        assert message.payload == payload
        await message.ack_confirmed()


async def test_retry_time_survives_a_change_of_the_owner(
    start_node: StartNode, connect: Connect
) -> None:
    first = await start_node()
    mq = await connect(first)
    await mq.create_queue("orders")
    await mq.put("orders", b"one", delay=0.01)
    await (await take(mq, "orders")).nack(delay=600)
    await first.stop()

    mq = await connect(await start_node())

    with pytest.raises(e.NoMessagesRetrieved):
        await mq.get("orders", wait=0.5)  # two ticks of the node: whatever is due is let in


async def test_an_alarm_rings_without_a_tick_of_the_node(
    start_node: StartNode, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_TICK_S", LONG_S)
    mq = await connect(await start_node())
    await mq.create_queue("orders")
    await mq.put("orders", b"soon", delay=0.15)
    assert (await take(mq, "orders")).payload == b"soon"


async def test_delayed_message_survives_a_restart_and_is_delivered_once(
    start_node: StartNode, connect: Connect, clock: TurnedClock
) -> None:
    first = await start_node(clock=clock, limits=NodeLimits(lease_s=LONG_S))
    mq = await connect(first)
    await mq.create_queue("orders")
    for n in range(20):
        await mq.put("orders", b"%d" % n, delay=100 + 10 * n)
    await first.stop()
    clock.turn(205)
    second = await start_node(clock=clock, limits=NodeLimits(lease_s=LONG_S))
    mq = await connect(second)
    for n in range(11):
        message = await take(mq, "orders")
        assert message.payload == b"%d" % n
        await message.ack_confirmed()
    assert await is_empty(mq, "orders")
    clock.turn(100)
    for n in range(11, 20):
        assert (await take(mq, "orders")).payload == b"%d" % n


async def test_messages_for_later_beyond_memory_come_in_the_order_of_their_time(
    start_node: StartNode, connect: Connect, clock: TurnedClock
) -> None:
    limits = NodeLimits(lease_s=LONG_S, memory_bytes=16 * 1024 * 1024)
    node = await start_node(clock=clock, limits=limits)
    mq = await connect(node)
    await mq.create_queue("orders")
    payload = b"x" * 256 * 1024
    await asyncio.gather(
        *(mq.put("orders", b"%03d" % n + payload, delay=1000 - n) for n in range(100))
    )
    replica = next(iter(node.replicas.values()))
    assert replica._context.queue.delayed.in_store > 0
    assert numbers(node, "orders").delayed == 100
    clock.turn(2000)
    async with mq.subscribe("orders", prefetch=4) as subscription:
        seen = []
        async with asyncio.timeout(LIMIT_S):
            async for message in subscription:
                seen.append(int(message.payload[:3]))
                message.ack()
                if len(seen) == 100:
                    break
    assert sorted(seen) == list(range(100))
    assert len(set(seen)) == 100


async def test_purge_drops_what_waits_for_its_time_too(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"later", delay=3600)
    await mq.put("orders", b"now")
    await (await take(mq, "orders")).nack(delay=3600)
    assert await mq.purge("orders") == 2
    assert numbers(node, "orders").waiting == 0


# Not after


async def test_an_expired_message_is_never_delivered(
    node: Node, mq: Client, clock: TurnedClock
) -> None:
    await mq.create_queue("orders")
    await asyncio.gather(
        mq.put("orders", b"short", ttl=10),
        mq.put("orders", b"long", ttl=1000),
        mq.put("orders", b"for ever"),
        mq.put("orders", b"until then", expires_at=clock.wall() + 20),
        mq.put("orders", b"late and short", delay=5, ttl=6),
    )
    clock.turn(30)
    assert (await take(mq, "orders")).payload == b"long"
    assert (await take(mq, "orders")).payload == b"for ever"
    assert await is_empty(mq, "orders")
    await eventually_async(lambda: numbers(node, "orders").expired == 3)
    assert numbers(node, "orders").waiting == 0


async def test_a_queues_own_time_to_live_and_its_dead_letters(
    node: Node, mq: Client, clock: TurnedClock
) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(ttl_s=60, keep_expired=True))
    await mq.put("orders", b"a")
    await mq.put("orders", b"b", ttl=600)
    clock.turn(61)
    dead = await take_dead(mq, "orders.dead")
    assert (dead.payload, dead.deaths[0].reason) == (b"a", DeathReason.EXPIRED)
    assert (await take(mq, "orders")).payload == b"b"


async def take_dead(mq: Client, queue: str) -> Message:
    await until_waiting(mq, queue, 1)
    return await take(mq, queue)


# Dedup ids


async def test_of_messages_with_the_same_id_one_is_stored(
    node: Node, mq: Client, clock: TurnedClock
) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(dedup_window_s=60))
    ids = await asyncio.gather(
        *(mq.put("orders", b"%d" % n, dedup_id=f"d{n % 3}") for n in range(9))
    )
    assert sorted(ids)[:6] == [0] * 6
    assert len(set(ids)) == 4
    again = await mq.put("orders", b"again", dedup_id="d0")
    other = await mq.put("orders", b"other")
    assert again == 0
    assert other > 0
    assert [m.payload for m in await mq.browse("orders")] == [b"0", b"1", b"2", b"other"]
    assert numbers(node, "orders").deduplicated == 7
    clock.turn(61)
    assert await mq.put("orders", b"new", dedup_id="d0") > 0


async def test_the_ids_are_known_to_the_next_owner(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    first = await start_node()
    mq = await connect(first)
    await mq.create_queue("orders")
    await mq.put("orders", b"1", dedup_id="one")
    await (await take(mq, "orders")).ack_confirmed()
    await crash(first)
    await backing.declare_dead(first.member_id)
    mq = await connect(await start_node())
    assert await mq.put("orders", b"1", dedup_id="one") == 0
    assert await mq.put("orders", b"2", dedup_id="two") > 0
    assert [m.payload for m in await mq.browse("orders")] == [b"2"]


# Limits


async def test_a_full_queue_slows_its_producers_down(node: Node, mq: Client) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(length_max=10))
    puts = [asyncio.ensure_future(mq.put("orders", b"%d" % n)) for n in range(8)]
    await asyncio.gather(*puts)
    more = [asyncio.ensure_future(mq.put("orders", b"%d" % n)) for n in range(8, 16)]
    await mq.ping()
    await mq.ping()
    assert not any(put.done() for put in more), "they go together, and do not fit"
    assert numbers(node, "orders").waiting == 8
    for n in range(6):
        message = await take(mq, "orders")
        assert message.payload == b"%d" % n
        message.ack()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*more)
    assert numbers(node, "orders").waiting == 10


async def test_a_slow_queue_that_moves_lets_its_producers_go_on_elsewhere(
    start_node: StartNode, connect: Connect
) -> None:
    first, second = await start_node(), await start_node()
    mq = await connect(first, mode="admin")
    queue = await mq.create_queue("orders", policy=QueuePolicy(length_max=1))
    await mq.put("orders", b"1")
    put = asyncio.ensure_future(mq.put("orders", b"2"))
    await mq.ping()
    async with asyncio.timeout(LIMIT_S):
        await mq.set_owner("orders", second.member_id)
        assert queue.queue_id not in first.replicas
        assert (await take(mq, "orders")).payload == b"1"
        await put


async def test_a_full_queue_may_refuse(mq: Client) -> None:
    policy = QueuePolicy(length_max=2, overflow=Overflow.REFUSE)
    await mq.create_queue("orders", policy=policy)
    await mq.put("orders", b"1")
    await mq.put("orders", b"2")
    with pytest.raises(e.LimitReached, match="2 messages"):
        await mq.put("orders", b"3")
    (await take(mq, "orders")).ack()
    await mq.put("orders", b"4")
    assert [m.payload for m in await mq.browse("orders")] == [b"2", b"4"]
    await mq.create_queue("bytes", policy=QueuePolicy(bytes_max=100, overflow=Overflow.REFUSE))
    await mq.put("bytes", b"x" * 60)
    with pytest.raises(e.LimitReached, match="100 bytes"):
        await mq.put("bytes", b"x" * 60)


async def test_a_full_queue_may_drop_its_oldest_to_the_dead_letters(mq: Client) -> None:
    policy = QueuePolicy(length_max=3, overflow=Overflow.DROP)
    await mq.create_queue("orders", policy=policy)
    for n in range(5):
        await mq.put("orders", b"%d" % n)
    assert [m.payload for m in await mq.browse("orders")] == [b"2", b"3", b"4"]
    await until_waiting(mq, "orders.dead", 2)
    dead = await mq.browse("orders.dead")
    assert [m.payload for m in dead] == [b"0", b"1"]
    assert {m.deaths[0].reason for m in dead} == {DeathReason.OVERFLOW}


# Pause


async def test_a_paused_queue_takes_and_does_not_give(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"1")
    await mq.pause("orders")
    async with mq.subscribe("orders") as subscription:
        await mq.put("orders", b"2")
        with pytest.raises(e.NoMessagesRetrieved, match="paused"):
            await mq.get("orders")
        waiting = asyncio.ensure_future(mq.get("orders", wait=LIMIT_S))
        await mq.ping()
        assert numbers(node, "orders").waiting == 2
        assert numbers(node, "orders").paused
        await mq.resume("orders")
        assert (await waiting).payload == b"1"
        async for message in subscription:
            assert message.payload == b"2"
            break


async def test_a_policy_is_kept_and_checked(start_node: StartNode, connect: Connect) -> None:
    first = await start_node()
    mq = await connect(first)
    await mq.create_queue("orders", policy=QueuePolicy(lease_s=7, deliveries_max=2))
    await mq.set_policy("orders", ttl_s=30)
    with pytest.raises(e.InvalidValue, match="lease_s"):
        await mq.set_policy("orders", lease_s=-1)
    with pytest.raises(e.InvalidValue, match="leese"):
        await mq.set_policy("orders", leese=1)
    with pytest.raises(e.InvalidValue, match="overflow"):
        await mq.set_policy("orders", overflow="explode")
    with pytest.raises(e.InvalidValue, match="its own dead letters"):
        await mq.set_policy("orders", dead_letter="orders")
    with pytest.raises(e.InvalidValue, match="cannot begin with #"):
        await mq.create_queue("#1")
    with pytest.raises(e.InvalidValue, match="a list of queues"):
        await mq.put_to("orders", b"x")
    await first.stop()
    mq = await connect(await start_node())
    policy = (await mq.queue("orders")).policy
    assert policy == QueuePolicy(lease_s=7, deliveries_max=2, ttl_s=30)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": -1}, "delay"),
        ({"ttl": 0}, "ttl"),
        ({"delay": 1, "deliver_at": 5}, "not both"),
        ({"deliver_at": "noon"}, "deliver_at"),
        ({"dedup_id": ""}, "dedup_id"),
        ({"group": "x" * 300}, "group"),
        ({"tenant": 5}, "string"),
    ],
)
async def test_bad_options_fail_at_the_call(
    mq: Client, options: dict[str, object], text: str
) -> None:
    await mq.create_queue("orders")
    with pytest.raises(e.InvalidValue, match=text):
        await mq.put("orders", b"x", **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no option dlay"):
        await mq.put("orders", b"x", dlay=5)  # type: ignore[call-arg]


# Two nodes


async def test_dead_letters_and_delays_of_a_queue_that_another_node_owns(
    start_node: StartNode, connect: Connect, clock: TurnedClock
) -> None:
    settings = {"clock": clock, "limits": NodeLimits(lease_s=LONG_S)}
    first, second = await start_node(**settings), await start_node(**settings)
    here, there = await connect(first, mode="admin"), await connect(second)
    await here.create_queue("orders", policy=QueuePolicy(deliveries_max=2))
    await here.create_queue("orders.dead")
    await here.set_owner("orders", second.member_id)
    await here.put_many("orders", [b"1", b"2", b"3"])
    message = await take(here, "orders")
    # Later than the two behind it are taken.
    await message.nack(delay=100, error="not yet")
    await (await take(here, "orders")).reject(error="never")
    held = await take(here, "orders")
    clock.turn(100.01)
    again = await take(here, "orders")
    assert (held.payload, again.payload, again.delivery_count) == (b"3", b"1", 2)
    await again.nack(error="no")
    await until_waiting(here, "orders.dead", 2)
    assert [m.payload for m in await there.browse("orders.dead")] == [b"2", b"1"]
    assert await there.redrive("orders.dead", reason="rejected") == 1
    assert (await take(there, "orders")).payload == b"2"
