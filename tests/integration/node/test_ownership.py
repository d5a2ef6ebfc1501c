"""A queue comes to the node that asks for it."""

from __future__ import annotations

import asyncio

import pytest
from backing import Connect, StartNode

from tidegate.broker.replica import Replica
from tidegate.core.store import Location


async def test_a_queue_that_has_come_is_not_believed_where_it_was(
    start_node: StartNode, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that began before it was let go of is still under way when it has been."""
    here, there = await start_node(), await start_node()
    mq = await connect(here)
    queue_id = (await mq.create_queue("orders")).queue_id
    locate, ask_for = there.store.locate, there.node_clients.ask_for
    found, let_go = asyncio.Event(), asyncio.Event()
    searches: list[asyncio.Task[Replica | str]] = []

    async def late_locate(queue_id: int) -> Location | None:
        location = await locate(queue_id)
        if searches and not let_go.is_set():
            found.set()
            await let_go.wait()
        return location

    async def ask_for_beside_a_search(address: str, queue_id: int, member_id: int) -> None:
        searches.append(asyncio.create_task(there.ownership.route(queue_id)))
        await found.wait()
        await ask_for(address, queue_id, member_id)
        let_go.set()

    monkeypatch.setattr(there.store, "locate", late_locate)
    monkeypatch.setattr(there.node_clients, "ask_for", ask_for_beside_a_search)

    replica = await there.ownership.bring_here(queue_id)

    assert there.replicas[queue_id] is replica
    assert await searches[0] == here.address
