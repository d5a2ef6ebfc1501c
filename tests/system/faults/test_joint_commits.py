"""A node dies, or loses its connections to PostgreSQL, around commits of several queues."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from free_ports import free_ports
from waiting import LIMIT_S, eventually_async

import tidegate
from tidegate.core.runtime import CRASH_VARIABLE, JOINT_POINTS
from tidegate_lab.faults.deployment import joined_node, terminate_backends

JOBS = 60
PUBLICATIONS = 100
# While so many publications are made, the connections are ended once.
STRIKE_EVERY = 5


async def prepare(url: str, name: str) -> None:
    async with tidegate.connect(url) as mq:
        for suffix in ("jobs", "results", "log"):
            await mq.create_queue(f"{name}-{suffix}")
        await mq.put_many(f"{name}-jobs", [b"%d" % n for n in range(JOBS)])
        await mq.create_topic(name)
        await mq.subscribe_to(name, f"{name}-all")
        await mq.subscribe_to(name, f"{name}-odd", filter={"odd": "1"})


async def work(url: str, name: str) -> int:
    """Every job to its result and the log, until each has one; how many were done by us."""
    done = 0
    async with tidegate.connect(url, reconnect_s=LIMIT_S) as mq:
        while True:
            try:
                job = await mq.get(f"{name}-jobs", lease=LIMIT_S, wait=0.2)
                async with mq.transaction() as tx:
                    tx.ack(job)
                    tx.put(f"{name}-results", job.payload)
                    tx.put(f"{name}-log", job.payload)
                done += 1
            except tidegate.LeaseLost:
                continue  # it comes again
            except (tidegate.NoMessagesInQueue, tidegate.NoMessagesRetrieved):
                # One may be on its way back: it was held over a connection that is lost.
                if len(await mq.browse(f"{name}-results", limit=1000)) >= JOBS:
                    return done


async def publish(url: str, name: str, strike: Callable[[], int] = lambda: 0) -> list[int]:
    """Publications, of which every one is confirmed; what each strike among them hit."""
    hits: list[int] = []
    async with tidegate.connect(url, reconnect_s=LIMIT_S) as mq:
        for n in range(PUBLICATIONS):
            if n % STRIKE_EVERY == 0:
                striking = asyncio.create_task(asyncio.to_thread(strike))
            await mq.publish(name, b"%d" % n, headers={"odd": str(n % 2)})
            # The last one before the next strike is confirmed over new connections.
            if n % STRIKE_EVERY == STRIKE_EVERY - 2:
                hits.append(await striking)
    return hits


async def check(url: str, name: str) -> None:
    """Every job is done once; every publication is where it belongs, once, in its order."""
    async with tidegate.connect(url) as mq:

        async def payloads(suffix: str) -> list[bytes]:
            return [m.payload for m in await mq.browse(f"{name}-{suffix}", limit=1000)]

        results, log = await payloads("results"), await payloads("log")
        assert await payloads("jobs") == []
        assert Counter(results) == Counter(log) == Counter(b"%d" % n for n in range(JOBS))
        assert await payloads("all") == [b"%d" % n for n in range(PUBLICATIONS)]
        assert await payloads("odd") == [b"%d" % n for n in range(1, PUBLICATIONS, 2)]


async def answers(url: str) -> bool:
    """A node hears of a lost connection when it uses it."""
    try:
        async with tidegate.connect(url) as mq:
            await mq.queues()
    except tidegate.Unavailable:
        return False
    return True


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", JOINT_POINTS)
@pytest.mark.parametrize("nth", [3, 40])
def test_a_crash_at_the_commit_leaves_all_or_nothing(
    store: tuple[str, Path], point: str, nth: int
) -> None:
    url, folder = store
    name = f"{point}-{nth}"
    port = free_ports()

    async def story(address: str) -> None:
        await prepare(address, name)
        working = asyncio.gather(work(address, name), publish(address, name))
        # When the node dies at its nth joint commit
        assert await asyncio.to_thread(first.process.wait, LIMIT_S) == -signal.SIGKILL
        # And another one takes its place
        with joined_node(url, folder, port=port) as second:
            await working
            # Then everything is there, and nothing twice
            await check(second.address, name)

    crashing = {CRASH_VARIABLE: f"{point}:{nth}"}
    with joined_node(url, folder, port=port, environment=crashing) as first:
        asyncio.run(story(first.address))


@pytest.mark.timeout(300)
def test_lost_backends_leave_all_or_nothing(store: tuple[str, Path]) -> None:
    url, folder = store
    name = "backends"

    async def story(address: str) -> None:
        await prepare(address, name)
        # When its connections are ended again and again
        strike = partial(terminate_backends, url)
        done, hits = await asyncio.gather(work(address, name), publish(address, name, strike))
        # Then each strike hit some, and everything is there, and nothing twice
        assert len(hits) == PUBLICATIONS // STRIKE_EVERY
        assert min(hits) > 0
        assert done == JOBS
        await eventually_async(lambda: answers(address), "the node uses new connections")
        await check(address, name)

    with joined_node(url, folder) as node:
        asyncio.run(story(node.address))
