"""Readiness follows the store: a node that cannot reach it says so, and again when it can."""

from __future__ import annotations

import asyncio
import shutil

from http_get import Got, get
from made_database import UNSYNCED, copy_of_database, quick_folder
from waiting import eventually_async

from tidegate.broker.http import NodePages
from tidegate.broker.node import Node
from tidegate.core.runtime import NodeLimits
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres.store import PostgresStore


async def readiness(node: Node, status: int) -> Got:
    async def look() -> Got | None:
        page = await get(node.metrics_address, "/readyz")
        return page if page.status == status else None

    page = await eventually_async(look, f"readiness {status}")
    assert page is not None
    return page


async def test_a_node_without_its_store_is_not_ready_until_it_is_back() -> None:
    folder = quick_folder("ready")
    server = EmbeddedPostgres(copy_of_database(folder / "data"), settings=UNSYNCED)
    node = Node(PostgresStore(server.start()), limits=NodeLimits(lease_s=1.0))
    await node.start()
    door = NodePages(node.stats, node.membership)
    await door.start()
    try:
        await readiness(node, 200)

        await asyncio.to_thread(server.stop)
        page = await readiness(node, 503)
        assert b"store" in page.body
        assert (await get(node.metrics_address, "/healthz")).status == 200
        assert (await get(node.metrics_address, "/metrics")).status == 200

        await asyncio.to_thread(server.start)
        await readiness(node, 200)
    finally:
        await node.stop()
        await door.stop()
        await asyncio.to_thread(server.stop)
        shutil.rmtree(folder, ignore_errors=True)
