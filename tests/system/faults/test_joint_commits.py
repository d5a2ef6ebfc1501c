"""A node dies, or loses its connections to PostgreSQL, around commits of several queues."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from tidegate.core.crash import JOINT_POINTS, VARIABLE
from tidegate.lab.faults.deployment import joined_node
from tidegate.lab.faults.injector import terminate_backends
from tidegate.lab.peers.server import free_loopback_ports, temporary_folder
from tidegate.storage.embedded import EmbeddedPostgres

JOBS = 60


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, Path]]:
    with temporary_folder("joint") as folder, EmbeddedPostgres(folder / "data") as postgres:
        yield postgres.url, folder


async def prepare(url: str, name: str) -> None:
    async with tidegate.connect(url) as mq:
        for suffix in ("jobs", "results", "log"):
            await mq.create_queue(f"{name}-{suffix}")
        await mq.put_many(f"{name}-jobs", [b"%d" % n for n in range(JOBS)])
        await mq.create_topic(name)
        await mq.subscribe_to(name, f"{name}-all")
        await mq.subscribe_to(name, f"{name}-odd", filter={"odd": "1"})


async def work(url: str, name: str) -> int:
    """Every job to its result and the log, until none is left; how many were done by us."""
    done = 0
    async with tidegate.connect(url, reconnect_s=40) as mq:
        while True:
            try:
                job = await mq.get(f"{name}-jobs", lease=60, wait=3)
                async with mq.transaction() as tx:
                    tx.ack(job)
                    tx.put(f"{name}-results", job.payload)
                    tx.put(f"{name}-log", job.payload)
                done += 1
            except tidegate.LeaseLost:
                continue  # it comes again
            except (tidegate.NoMessagesInQueue, tidegate.NoMessagesRetrieved):
                return done


async def publish(url: str, name: str) -> None:
    """A hundred publications, of which every one is confirmed."""
    async with tidegate.connect(url, reconnect_s=40) as mq:
        for n in range(100):
            await mq.publish(name, b"%d" % n, headers={"odd": str(n % 2)})


async def work_and_publish(url: str, name: str) -> int:
    done, _ = await asyncio.gather(work(url, name), publish(url, name))
    return done


async def check(url: str, name: str) -> None:
    """Every job is done once; every publication is where it belongs, once, in its order."""
    async with tidegate.connect(url) as mq:

        async def payloads(suffix: str) -> list[bytes]:
            return [m.payload for m in await mq.browse(f"{name}-{suffix}", limit=1000)]

        results, log = await payloads("results"), await payloads("log")
        assert await payloads("jobs") == []
        assert Counter(results) == Counter(log) == Counter(b"%d" % n for n in range(JOBS))
        assert await payloads("all") == [b"%d" % n for n in range(100)]
        assert await payloads("odd") == [b"%d" % n for n in range(1, 100, 2)]


async def until_it_answers(url: str) -> None:
    """A node hears of a lost connection when it uses it."""
    while True:
        try:
            async with tidegate.connect(url) as mq:
                await mq.queues()
                return
        except tidegate.Unavailable:
            continue


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", JOINT_POINTS)
@pytest.mark.parametrize("nth", [3, 40])
def test_a_crash_at_the_commit_leaves_all_or_nothing(
    store: tuple[str, Path], point: str, nth: int
) -> None:
    url, folder = store
    name = f"{point}-{nth}"
    (port,) = free_loopback_ports(1)

    async def story(address: str) -> None:
        await prepare(address, name)
        working = asyncio.create_task(work_and_publish(address, name))
        # When the node dies at its nth joint commit
        assert await asyncio.to_thread(first.process.wait, 60) == -signal.SIGKILL
        # And another one takes its place
        with joined_node(url, folder, port=port) as second:
            await working
            # Then everything is there, and nothing twice
            await check(second.address, name)

    crashing = {VARIABLE: f"{point}:{nth}"}
    with joined_node(url, folder, port=port, environment=crashing) as first:
        asyncio.run(story(first.address))


@pytest.mark.timeout(120)
def test_lost_backends_leave_all_or_nothing(store: tuple[str, Path]) -> None:
    url, folder = store
    name = "backends"

    async def story(address: str) -> None:
        await prepare(address, name)
        working = asyncio.create_task(work_and_publish(address, name))
        ended = 0
        while not working.done():
            await asyncio.sleep(0.05)
            ended += await asyncio.to_thread(terminate_backends, url)
        assert ended > 20
        assert await working == JOBS
        await until_it_answers(address)
        await check(address, name)

    with joined_node(url, folder) as node:
        asyncio.run(story(node.address))
