"""A node with its loops on an event loop beside the test, on a PostgreSQL that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backing import PostgresBacking

from tidegate.broker.node import Node
from tidegate.cli.settings import load_settings
from tidegate.cli.wiring import running_loops
from tidegate.client.blocking import LoopThread


@dataclass(frozen=True)
class ServedNode:
    """Where a node listens, and its store."""

    url: str
    store_url: str


@contextlib.contextmanager
def served_node(embedded_url: str) -> Iterator[ServedNode]:
    """One that steers as the node of `tidegate up` does; commands reach it as any other."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    backing = PostgresBacking("embedded", embedded_url)
    settings = load_settings(None, {"TIDEGATE_STORE__DATA": str(folder / "data")})
    node = Node(backing.store(), name="served")
    over = asyncio.Event()
    thread = LoopThread()
    is_steered = asyncio.Event()

    async def steer() -> None:
        async with running_loops(node, settings, [backing.url]):
            is_steered.set()
            await over.wait()

    async def start() -> asyncio.Task[None]:
        await node.start()
        steering = asyncio.create_task(steer())
        await is_steered.wait()
        return steering

    async def stop() -> None:
        over.set()
        await steering
        await node.stop()

    steering = thread.wait(start())
    try:
        yield ServedNode(node.address, backing.url)
    finally:
        thread.wait(stop())
        thread.stop()
        backing.give_back()
        shutil.rmtree(folder, ignore_errors=True)
