"""Fixtures: three stores under one suite, nodes and clients that clean up after themselves.

`backing` is parametrised; what needs PostgreSQL is slow, what needs an installed one is a peer.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from backing import (
    STORES,
    Backing,
    Connect,
    ExternalPostgres,
    MemoryBacking,
    PostgresBacking,
    StartNode,
)
from tidegate.client.client import Client
from tidegate.core.ports import Store
from tidegate.node.server import Node
from tidegate.storage.embedded import EmbeddedPostgres

# `pytest --hypothesis-profile thorough` looks longer; tests that name a number mean it.
settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile("quick")

TEST_S_MAX = 60.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    # Nodes run on uvloop; so do their tests.
    return {"uvloop": _new_loop}


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop that ends what hangs: pytest's own timeout cannot break into uvloop."""
    loop = uvloop.new_event_loop()

    def give_up() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel("the test took too long")

    loop.call_later(TEST_S_MAX, give_up)
    return loop


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """One embedded PostgreSQL for all tests."""
    # Not pytest's folder: as root PostgreSQL has an account of its own, which must get there.
    folder = Path(tempfile.mkdtemp(prefix="tidegate-embedded-"))
    server = EmbeddedPostgres(folder, settings={"fsync": "off", "shared_buffers": "64MB"})
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def external_url() -> Iterator[str]:
    """One installed PostgreSQL for all tests."""
    server = ExternalPostgres()
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture(params=STORES)
def backing(request: pytest.FixtureRequest) -> Backing:
    """Empty contents of a store of each kind."""
    if request.param == "memory":
        return MemoryBacking()
    return PostgresBacking(request.param, request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def store(backing: Backing) -> AsyncIterator[Store]:
    """An opened store without a node."""
    store = backing.store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def start_node(backing: Backing) -> AsyncIterator[StartNode]:
    """Start a node; all share what `backing` holds."""
    started: list[Node] = []

    async def start(**settings: Any) -> Node:
        node = Node(backing.store(), name=f"node-{len(started) + 1}", **settings)
        await node.start()
        started.append(node)
        return node

    yield start
    for node in started:
        if not node.stopping:
            await node.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connect a client to a node."""
    opened: list[Client] = []

    async def open_client(node: Node, **settings: Any) -> Client:
        client = await Client(node.address, **settings).open()
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        await client.close()


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node()


@pytest.fixture
async def mq(node: Node, connect: Connect) -> Client:
    return await connect(node)
