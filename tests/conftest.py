"""Fixtures: three stores under one suite, nodes and clients that clean up after themselves.

`backing` is parametrised; what needs PostgreSQL is slow, what needs an installed one is a peer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

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
from parts import Part
from rabbitmq import VirtualHost, broker_or_skip
from scheduling import OurScheduling, sort_longest_first
from second_look import Failures
from stages import STAGES, Stage
from thoroughness import USUAL
from tidegate.client.client import Client
from tidegate.core.ports import Store
from tidegate.lab.peers.rabbitmq_server import RabbitmqServer
from tidegate.node.server import Node
from tidegate.storage.embedded import EmbeddedPostgres

# `pytest --hypothesis-profile thorough` looks longer and elsewhere each time, `make check` less
# long; tests that name a number mean it, but for those that ask `thoroughness`. A run that judges
# a change sees the same examples as the one before, and does not mind being slowed by neighbours.
JUDGING: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("hasty", max_examples=4, **JUDGING)
settings.register_profile("quick", max_examples=USUAL, **JUDGING)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile("quick")

# Whoever sets it does not start Python a thousand times: each would compile everything anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell has what it starts in the background ignore Ctrl-C, and all that we start inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TEST_S_MAX = 60.0
STAGE = pytest.StashKey[Stage | None]()
PART = pytest.StashKey[Part | None]()


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stage", choices=STAGES, help="only a part of the tests: see tests/stages.py"
    )
    parser.addoption("--part", help="of a stage's files one of so many parts, as 1/3")


def pytest_configure(config: pytest.Config) -> None:
    stage = config.getoption("stage")
    config.stash[STAGE] = None if stage is None else Stage(stage)
    if stage is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures())
    config.stash[PART] = None
    if stage is not None and (written := config.getoption("part")) is not None:
        files = filter(Stage(stage).may_be_in, Path(__file__).parent.rglob("test_*.py"))
        config.stash[PART] = Part(written, files)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    stage, part = config.stash[STAGE], config.stash[PART]
    is_read = (stage is None or stage.may_be_in(collection_path)) and (
        part is None or part.may_hold(collection_path)
    )
    # Not False, which would overrule everybody else's wish to leave it out.
    return None if is_read else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (stage := config.stash[STAGE]) is not None:
        chosen = {item: stage.includes(item) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not chosen[item]])
        items[:] = [item for item in items if chosen[item]]
    sort_longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    began_s = time.process_time()
    yield
    stage = item.config.stash[STAGE]
    if stage is not None and (complaint := stage.complaint(time.process_time() - began_s)):
        item.warn(pytest.PytestWarning(complaint))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OurScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    # The order is ours.
    config.option.loadscopereorder = False
    return OurScheduling(config, log)


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
