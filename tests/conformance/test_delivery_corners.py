"""Corners of delivery in which a hostile reader found something wrong."""

from __future__ import annotations

import asyncio

from backing import until
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.model import Overflow, QueuePolicy
from tidegate.node.server import Node
from tidegate.telemetry.numbers import QueueNumbers

SOON_S = 10.0


def numbers(node: Node, name: str) -> QueueNumbers:
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
    async with asyncio.timeout(SOON_S):
        await mq.put("orders", b"again", dedup_id="a")
        await mq.put("orders", b"plain")
    assert numbers(node, "orders").waiting == 3


async def test_what_a_dedup_id_leaves_out_weighs_nothing(node: Node, mq: Client) -> None:
    """It was never taken off what waits for the disk, until the node read no more."""
    await mq.create_queue("orders")
    await put_together(mq, (b"first", "a"), (b"again", "a"), (b"new", "b"))
    assert node._budget.waiting_bytes == 0


# Addressed messages, which nobody but their receiver may take


async def test_a_queue_of_addressed_messages_keeps_its_byte_limit(node: Node, mq: Client) -> None:
    """The node looked for something to drop, and did nothing else any more."""
    policy = QueuePolicy(bytes_max=10, overflow=Overflow.DROP)
    await mq.create_queue("orders", policy=policy)
    for body in (b"first---", b"second--", b"third---"):
        await mq.put("orders", body, receiver=12345)
    await until(lambda: numbers(node, "orders").dead_lettered == 2)
    assert numbers(node, "orders").waiting == 1


async def test_a_queue_of_addressed_messages_keeps_its_length(node: Node, mq: Client) -> None:
    policy = QueuePolicy(length_max=3, overflow=Overflow.DROP)
    await mq.create_queue("orders", policy=policy)
    for number in range(4):
        await mq.put("orders", b"x", receiver=100 + number)
    await mq.put("orders", b"for anyone")
    await until(lambda: numbers(node, "orders").dead_lettered == 2)
    assert numbers(node, "orders").waiting == 3


async def test_redrive_leaves_addressed_messages_where_they_are(node: Node, mq: Client) -> None:
    """It asked for them again and again, and the node did nothing else any more."""
    await mq.create_queue("orders")
    await mq.create_queue("orders.dead")
    await mq.put("orders.dead", b"for one", receiver=12345)
    await mq.put("orders.dead", b"for anyone")
    async with asyncio.timeout(SOON_S):
        assert await mq.redrive("orders.dead", to="orders") == 1
    assert numbers(node, "orders.dead").waiting == 1
