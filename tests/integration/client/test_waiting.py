"""A subscription knows what still waits for it, and asks nobody but the node that it stands at."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from backing import Connect, StartNode

from tidegate.client.client import Client
from tidegate.telemetry.stats import ClusterStats

pytestmark = pytest.mark.parametrize("backing", ["memory"], indirect=True)


async def test_waiting_counts_messages_and_is_0_in_a_paused_queue(mq: Client) -> None:
    await mq.create_queue("jobs", durable=False)
    async with mq.subscribe("jobs", prefetch=2) as subscription:
        for number in range(5):
            await mq.put("jobs", b"%d" % number)
        assert await subscription.waiting() == 3
        await mq.pause("jobs")
        assert await subscription.waiting() == 0


async def test_a_crowd_that_asks_is_told_nothing_of_each_other(
    mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of n answers would list n consumers."""
    told: list[ClusterStats] = []
    decode = msgspec.json.decode

    def heard(body: bytes, **wanted: Any) -> Any:
        found = decode(body, **wanted)
        if isinstance(found, ClusterStats):
            told.append(found)
        return found

    await mq.create_queue("jobs", durable=False)
    async with contextlib.AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(mq.subscribe("jobs", prefetch=1)) for _ in range(5)
        ]
        for _ in range(7):
            await mq.put("jobs", b"x")
        monkeypatch.setattr(msgspec.json, "decode", heard)
        assert [await one.waiting() for one in crowd] == [2] * 5
        monkeypatch.undo()
        assert [queue.consumers for one in told for queue in one.nodes[0].queues] == [[]] * 5
        # Whoever looks at the queue sees them all.
        [node] = (await mq.stats("jobs")).nodes
        assert [len(queue.consumers) for queue in node.queues] == [5]


async def test_other_nodes_are_not_asked(
    start_node: StartNode, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [await start_node(), await start_node()]
    mq = await connect(nodes[1])
    await mq.create_queue("jobs", durable=False)
    asked: list[object] = []
    async with mq.subscribe("jobs", prefetch=1) as subscription:
        await asyncio.gather(*(mq.put("jobs", b"x") for _ in range(3)))
        for node in nodes:
            monkeypatch.setattr(node.node_clients, "numbers", asked.append)
        assert await subscription.waiting() == 2
    assert not asked
