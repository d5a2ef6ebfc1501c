"""Stores, nodes and clients that clean up after themselves, for tests and benchmarks."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from backing import (
    STORES,
    Backing,
    Connect,
    ExternalPostgres,
    MemoryBacking,
    PostgresBacking,
    SeveralBacking,
    StartNode,
)
from made_database import UNSYNCED, copy_of_database, quick_folder
from rabbitmq import VirtualHost, broker_or_skip

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Store
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate_lab.peers.servers import RabbitmqServer

DEFAULT_LIMITS = NodeLimits()
# Of nodes whose test does not say: no node is declared dead while the machine is busy elsewhere.
LEASE_S = 60.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    # Nodes run on uvloop; so do their tests.
    return {"uvloop": uvloop.new_event_loop}


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


@pytest.fixture
def other_server() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of the test's own, which may be stopped and started."""
    folder = quick_folder("other")
    server = EmbeddedPostgres(copy_of_database(folder / "data"), settings=UNSYNCED)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def rabbitmq_broker() -> Iterator[RabbitmqServer]:
    """One installed RabbitMQ for all tests: who kills takes the other one."""
    with broker_or_skip() as server:
        yield server


@pytest.fixture(scope="session")
def one_mortal_broker() -> Iterator[RabbitmqServer]:
    with broker_or_skip() as server:
        yield server


@pytest.fixture
def mortal_broker(one_mortal_broker: RabbitmqServer) -> RabbitmqServer:
    """A RabbitMQ that may be killed, running when the test begins."""
    if not one_mortal_broker.is_running:
        one_mortal_broker.start_again()
    return one_mortal_broker


@pytest.fixture
def rabbitmq(rabbitmq_broker: RabbitmqServer) -> Iterator[VirtualHost]:
    """A virtual host of the test's own; mark the test with `peers`."""
    host = VirtualHost(rabbitmq_broker)
    yield host
    host.delete()


@pytest.fixture(params=STORES)
def backing(request: pytest.FixtureRequest) -> Iterator[Backing]:
    """Empty contents of a store of each kind."""
    contents = _backing(request)
    yield contents
    contents.give_back()


def _backing(request: pytest.FixtureRequest) -> Backing:
    if request.param == "memory":
        return MemoryBacking()
    if request.param == "several":
        return SeveralBacking(request.param, request.getfixturevalue("embedded_url"))
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

    async def start(*, limits: NodeLimits = DEFAULT_LIMITS, **settings: Any) -> Node:
        if limits.lease_s == DEFAULT_LIMITS.lease_s:
            limits = msgspec.structs.replace(limits, lease_s=LEASE_S)
        settings["limits"] = limits
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
