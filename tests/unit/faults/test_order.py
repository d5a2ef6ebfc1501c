"""A queue that changes its owner between two batches must not take the second one first."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.broker.node import Node
from tidegate.broker.replica import Replica
from tidegate.client.client import Client
from tidegate.core.errors import Unavailable


async def test_a_batch_never_overtakes_one_that_was_refused_for_a_moment(
    node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await mq.create_queue("orders")
    # Given a queue whose owner is not known when the first batch comes, and known a turn later
    node.replicas.pop(queue.queue_id)
    really_route = node.ownership.route
    asked = 0

    async def route(queue_id: int) -> Replica | str:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.sleep(0)
            raise Unavailable("the queue is being taken over: try again")
        return await really_route(queue_id)

    monkeypatch.setattr(node.ownership, "route", route)

    # When two batches are on their way
    first = mq.put("orders", b"first")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = mq.put("orders", b"second")
    ids = [await first, await second]

    # Then they are stored in their order
    assert asked > 1
    assert ids == sorted(ids)
    assert [(await mq.get("orders", wait=10.0)).payload for _ in ids] == [b"first", b"second"]
