"""Corners of delivery in which a hostile reader found something wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from backing import Connect, StartNode
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.model import Overflow, QueuePolicy
from tidegate.telemetry.stats import QueueStats


def numbers(node: Node, name: str) -> QueueStats:
    return next(r.numbers() for r in node.replicas.values() if r.info.name == name)


async def put_together(mq: Client, *messages: tuple[bytes, str]) -> None:
    """In one turn of the loop, hence in one batch."""
    await asyncio.gather(*(mq.put("orders", body, dedup_id=each) for body, each in messages))


# Dedup ids


async def test_a_duplicate_beside_a_new_message_leaves_its_id_free(node: Node, mq: Client) -> None:
    """It stayed on its way for ever, and whoever came with it next held up the whole queue."""
    await mq.create_queue("orders")
    await mq.put("orders", b"first", dedup_id="a")
    await put_together(mq, (b"again", "a"), (b"new", "b"))
    async with asyncio.timeout(LIMIT_S):
        await mq.put("orders", b"again", dedup_id="a")
        await mq.put("orders", b"plain")
    assert numbers(node, "orders").waiting == 3


async def test_deduplicated_message_takes_no_waiting_bytes(node: Node, mq: Client) -> None:
    """It was never taken off what waits for the disk, until the node read no more."""
    await mq.create_queue("orders")
    await put_together(mq, (b"first", "a"), (b"again", "a"), (b"new", "b"))
    assert node.budget.waiting_bytes == 0


# Addressed messages, which nobody but their receiver may take


async def test_a_queue_of_addressed_messages_keeps_its_byte_limit(node: Node, mq: Client) -> None:
    """The node looked for something to drop, and did nothing else any more."""
    policy = QueuePolicy(bytes_max=10, overflow=Overflow.DROP)
    await mq.create_queue("orders", policy=policy)
    for body in (b"first---", b"second--", b"third---"):
        await mq.put("orders", body, receiver=12345)
    await eventually_async(lambda: numbers(node, "orders").dead_lettered == 2)
    assert numbers(node, "orders").waiting == 1


async def test_a_queue_of_addressed_messages_keeps_its_length(node: Node, mq: Client) -> None:
    policy = QueuePolicy(length_max=3, overflow=Overflow.DROP)
    await mq.create_queue("orders", policy=policy)
    for number in range(4):
        await mq.put("orders", b"x", receiver=100 + number)
    await mq.put("orders", b"for anyone")
    await eventually_async(lambda: numbers(node, "orders").dead_lettered == 2)
    assert numbers(node, "orders").waiting == 3


async def test_redrive_leaves_addressed_messages_where_they_are(node: Node, mq: Client) -> None:
    """It asked for them again and again, and the node did nothing else any more."""
    await mq.create_queue("orders")
    await mq.create_queue("orders.dead")
    await mq.put("orders.dead", b"for one", receiver=12345)
    await mq.put("orders.dead", b"for anyone")
    async with asyncio.timeout(LIMIT_S):
        assert await mq.redrive("orders.dead", to="orders") == 1
    assert numbers(node, "orders.dead").waiting == 1


# Dead letters that cannot go where they should


async def test_dead_letters_of_a_stored_queue_avoid_a_transient_queue(
    node: Node, mq: Client
) -> None:
    """It could not, came back, and was delivered again without end."""
    await mq.create_queue("fleeting", durable=False)
    await mq.create_queue("orders", policy=QueuePolicy(dead_letter="fleeting"))
    await mq.put("orders", b"x")
    await (await mq.get("orders", lease=60, wait=LIMIT_S)).reject()
    await eventually_async(lambda: numbers(node, "orders").dead_lettered == 1)
    assert (await mq.get("orders.dead", lease=60, wait=LIMIT_S)).payload == b"x"
    assert numbers(node, "orders").waiting == 0


async def test_queues_that_drop_into_each_other_come_to_rest(node: Node, mq: Client) -> None:
    """Their messages went round and round, each time with a longer history."""
    for name, other in (("left", "right"), ("right", "left")):
        policy = QueuePolicy(length_max=1, overflow=Overflow.DROP, dead_letter=other)
        await mq.create_queue(name, policy=policy)
    for _ in range(4):
        await mq.put("left", b"x")
    await eventually_async(
        lambda: sum(numbers(node, name).dropped for name in ("left", "right")) == 2
    )
    assert numbers(node, "left").waiting == numbers(node, "right").waiting == 1


# Limits


async def test_expired_message_makes_room_in_a_paused_queue(node: Node, mq: Client) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(length_max=1, paused=True))
    await mq.put("orders", b"x", ttl=0.05)
    async with asyncio.timeout(LIMIT_S):
        await mq.put("orders", b"y")


async def test_a_queue_at_its_limit_moves_though_puts_are_in_line(
    start_node: StartNode, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for room, the move for them, and everyone for the move."""
    one, other = await start_node(), await start_node()
    mq = await connect(one)
    await mq.create_queue("orders", policy=QueuePolicy(length_max=20))
    await mq.put("orders", b"x")
    replica = next(iter(one.replicas.values()))
    submit = one.store.submit
    held: list[Callable[[], None]] = []

    def hold(*arguments: Any, **names: Any) -> None:
        held.append(lambda: submit(*arguments, **names))

    monkeypatch.setattr(one.store, "submit", hold)
    under_way = [asyncio.ensure_future(mq.put("orders", b"x")) for _ in range(18)]
    await eventually_async(lambda: len(held) >= 1)
    in_line = [asyncio.ensure_future(mq.put("orders", b"y")) for _ in range(10)]
    await eventually_async(lambda: len(replica.intake._waiting) > 0 or len(held) >= 2)
    moving = asyncio.ensure_future(one.ownership.transfer_ownership(replica, other.member_id))
    await eventually_async(lambda: replica.intake._closed)
    monkeypatch.setattr(one.store, "submit", submit)
    for release in held:
        release()
    async with asyncio.timeout(LIMIT_S):
        await moving
        await asyncio.gather(*under_way)
        assert await mq.purge("orders") >= 19
        await asyncio.gather(*in_line)
