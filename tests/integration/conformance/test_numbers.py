"""The stats verb: live numbers per queue and consumer, exact."""

from __future__ import annotations

import asyncio

import pytest
from backing import Connect
from waiting import LIMIT_S

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.telemetry.stats import QueueStats


async def numbers_of(mq: Client, queue: str) -> QueueStats:
    numbers = (await mq.stats(queue)).queue(queue)
    assert numbers is not None
    return numbers


async def test_counts_are_exact(node: Node, connect: Connect) -> None:
    mq = await connect(node, name="me")
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"x" * 100] * 10)
    held = [await mq.get("orders", lease=60) for _ in range(4)]
    await held[0].ack_confirmed()
    await held[1].nack(delay=0)

    numbers = await numbers_of(mq, "orders")

    assert (numbers.queue_id, numbers.name, numbers.durable) == (queue.queue_id, "orders", True)
    assert (numbers.waiting, numbers.unacknowledged) == (7, 2)
    assert (numbers.put, numbers.delivered, numbers.acked) == (10, 4, 1)
    assert (numbers.returned, numbers.redelivered, numbers.refused) == (1, 0, 0)
    assert numbers.resident_bytes >= 1000
    assert 0 <= numbers.oldest_age_s < 60
    assert numbers.wait.count >= 4
    assert (numbers.service.count, numbers.epoch) == (1, 1)


async def test_consumers_are_listed_with_what_they_hold(node: Node, connect: Connect) -> None:
    mq = await connect(node, name="worker")
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"x"] * 10)
    async with mq.subscribe("orders", prefetch=4) as subscription, asyncio.timeout(LIMIT_S):
        stream = aiter(subscription)
        messages = [await anext(stream) for _ in range(4)]
        await messages[1].ack_through()
        numbers = await numbers_of(mq, "orders")

        (consumer,) = numbers.consumers
        assert (consumer.client_name, consumer.client_id) == ("worker", mq.client_id)
        assert (consumer.consumer, consumer.prefetch) == (subscription.consumer, 4)
        assert (consumer.unacknowledged, consumer.acked, consumer.delivered) == (4, 2, 6)
        assert not consumer.automatic
        assert consumer.service.count == 2
        assert 0 < consumer.service.p50_ms <= consumer.service.max_ms
    assert (await numbers_of(mq, "orders")).consumers == []


async def test_waiting_readers_are_counted(mq: Client) -> None:
    await mq.create_queue("orders")
    reading = asyncio.create_task(mq.get("orders", wait=LIMIT_S))
    async with asyncio.timeout(LIMIT_S):
        while (await numbers_of(mq, "orders")).readers_waiting != 1:
            pass
    await mq.put("orders", b"")
    await reading
    assert (await numbers_of(mq, "orders")).readers_waiting == 0


async def test_the_node_itself_has_numbers(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"x")

    (numbers,) = (await mq.stats()).nodes

    assert (numbers.member_id, numbers.address) == (node.member_id, node.address)
    assert numbers.connections == 1
    assert numbers.memory_bound_bytes == node.limits.memory_bytes
    assert 0 < numbers.memory_resident_bytes < numbers.process_memory_bytes
    assert (numbers.commits, numbers.messages_per_commit) == (1, 1.0)
    assert numbers.commit.max_ms > 0
    assert numbers.packets_in >= numbers.packets_out > 0
    assert numbers.phases.total.count > 0


async def test_an_unknown_queue_has_no_numbers(mq: Client) -> None:
    with pytest.raises(e.QueueNotExisting):
        await mq.stats("nowhere")
    with pytest.raises(e.QueueNotExisting):
        await mq.stats(12345)
