"""A node with several writers on fewer store connections keeps every message in its order."""

from __future__ import annotations

import asyncio

import pytest
from backing import PostgresBacking

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.runtime import NodeLimits
from tidegate.storage.postgres.store import PostgresStore

QUEUES = [f"orders.{number}" for number in range(6)]
EACH = 50


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("backing", ["embedded"], indirect=True)
async def test_messages_of_several_writers_survive_a_restart(
    backing: PostgresBacking, connections: int
) -> None:
    async def filled(mq: Client, queue: str) -> None:
        await mq.create_queue(queue)
        for number in range(EACH):
            await mq.put(queue, str(number).encode())

    async def taken(mq: Client, queue: str) -> list[int]:
        found = []
        async with mq.subscribe(queue) as messages:
            async for message in messages:
                found.append(int(message.payload))
                message.ack()
                if len(found) == EACH:
                    return found
        raise AssertionError("a subscription does not end by itself")

    limits = NodeLimits(writers=3, lease_s=30.0)
    for work in (filled, taken):
        node = Node(PostgresStore(backing.url, writers=connections), name="node", limits=limits)
        await node.start()
        try:
            async with Client(node.address) as mq:
                results = await asyncio.gather(*(work(mq, queue) for queue in QUEUES))
        finally:
            await node.stop()
    assert results == [list(range(EACH))] * len(QUEUES)
