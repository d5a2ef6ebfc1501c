"""The engines that the conformance suite runs on, each with a fresh place for every test."""

from __future__ import annotations

import itertools
import os
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from engine_under_test import Capability, Engine
from missing_peer import skip_or_fail
from places import EXAMPLES
from rabbitmq import VirtualHost

import tidegate
from tidegate.broker.node import Node
from tidegate.core.runtime import NodeLimits
from tidegate.storage.memory import MemoryStore
from tidegate_lab.peers.servers import RedisServer, ServerMissing, redis_server

ENGINES = [
    "tidegate",
    "rabbitmq-classic",
    "rabbitmq-quorum",
    # Of a package that is not ours: what docs/how-to/add-an-adapter.md comes to.
    "redis",
]
REDIS_ENGINE = EXAMPLES / "redis_engine"
# In turn: a process that a test has left behind reads another one than the next test.
DATABASES = itertools.cycle(range(16))
EVERYTHING = frozenset(Capability)
CAPABILITIES = {
    "classic": {
        Capability.PRIORITY_OVERTAKES,
        Capability.PREFETCH_COUNTS_WHAT_IS_HELD,
    },
    "quorum": {Capability.COUNTS_DEAD_CONSUMERS},
    "redis": EVERYTHING - {Capability.ADDRESSES_AND_GROUPS},
}


@pytest.fixture(scope="session")
def redis_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package of the example, as pip would install it: importable, and announced."""
    project = tomllib.loads((REDIS_ENGINE / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site-packages")
    announced = site / f"tidegate_redis-{project['version']}.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {where}" for name, where in entries.items()))
    ]
    (announced / "entry_points.txt").write_text("\n".join(lines))
    places = [str(site), str(REDIS_ENGINE)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [*sys.path, *places])
        # Workers in processes of their own find it, too.
        patched.setenv("PYTHONPATH", os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(scope="session")
def one_redis() -> Iterator[RedisServer]:
    try:
        with redis_server() as server:
            yield server
    except ServerMissing as missing:
        skip_or_fail(str(missing))


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Each engine in turn."""
    if request.param == "tidegate":
        node = Node(MemoryStore(), limits=NodeLimits(settle_linger_s=0.001))
        await node.start()
        yield Engine("tidegate", node.address, EVERYTHING)
        await node.stop()
        return
    if request.param == "redis":
        request.getfixturevalue("redis_engine")
        server: RedisServer = request.getfixturevalue("one_redis")
        from redis.asyncio import Redis

        # Emptied before the test: what the one before has left does not depend on how it ended.
        url = f"redis://127.0.0.1:{server.port}/{next(DATABASES)}"
        async with Redis.from_url(url) as emptied:
            await emptied.flushdb()
        yield Engine("redis", url, frozenset(CAPABILITIES["redis"]))
        return
    kind = request.param.removeprefix("rabbitmq-")
    host: VirtualHost = request.getfixturevalue("rabbitmq")
    # A plain classic queue has no priorities: others could not declare one that has them.
    url = f"{host.url}?queue_type={kind}" + ("&max_priority=10" if kind == "classic" else "")
    yield Engine(request.param, url, frozenset(CAPABILITIES[kind]))


@pytest.fixture
async def mq(engine: Engine) -> AsyncIterator[Any]:
    async with engine.connect() as mq:
        yield mq


@pytest.fixture
def app(engine: Engine) -> tidegate.App:
    return engine.app()
