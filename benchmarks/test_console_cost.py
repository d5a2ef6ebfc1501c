"""What a console that somebody looks at costs a node with 500 queues.

Real processes: `tidegate up` with its PostgreSQL, and `tidegate console` with one page's stream
open. A few queues in turn get a message each, with the console and without it: where nothing
happens, little has to be told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from figures import Figure
from running_house import Process
from serving_console import events

import tidegate
from tidegate.client.client import Client

QUEUES = 500
# Of them so many get a message each second.
BUSY = 50
SECONDS = 8.0
# The first looks fetch everything, the next only what is new.
SETTLING_S = 4.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: as root PostgreSQL has an account of its own, which must get there."""
    made = Path(tempfile.mkdtemp(prefix="tidegate-console-cost-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def up(folder: Path) -> Iterator[Process]:
    """A node with its queues, before the time of the test begins."""
    running = Process(folder, "up", "--data", str(folder / "data"), "--port", "0", "--no-console")
    try:
        with tidegate.connect(running.address) as mq:
            for number in range(QUEUES):
                mq.create_queue(f"queue-{number:03}", durable=False)
        yield running
    finally:
        running.end()


def used_s(process: psutil.Process) -> dict[str, float]:
    """Processor time by what it was for: the store is the node's child."""
    used = {"node": 0.0, "store": 0.0}
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            used["store" if one.name().startswith("postgres") else "node"] += (
                times.user + times.system
            )
    return used


async def cores(process: psutil.Process) -> dict[str, float]:
    """What it used of a core in this time."""
    before, begun = used_s(process), time.monotonic()
    await asyncio.sleep(SECONDS)
    lasted_s = time.monotonic() - begun
    return {name: (used - before[name]) / lasted_s for name, used in used_s(process).items()}


@contextlib.asynccontextmanager
async def some_work(mq: Client) -> AsyncIterator[None]:
    chance = random.Random(8)

    async def work() -> None:
        while True:
            for number in chance.sample(range(QUEUES), BUSY):
                await mq.put(f"queue-{number:03}", b"x" * 100)
                await asyncio.sleep(1.0 / BUSY)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


@contextlib.asynccontextmanager
async def somebody_looks(address: str) -> AsyncIterator[list[str]]:
    """At the overview; the names of the events that came."""
    seen: list[str] = []

    async def look() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=20.0) as http:
            async for name, _ in events(http, "/api/live"):
                seen.append(name)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


@pytest.mark.timeout(180)
async def test_a_console_before_a_node_with_500_queues(
    folder: Path, up: Process, figure: Figure
) -> None:
    node = psutil.Process(up.process.pid)
    async with Client(up.address) as mq, some_work(mq):
        await asyncio.sleep(SETTLING_S)
        before = await cores(node)
        options = ("--url", up.address, "--data", str(folder / "data"), "--port", "0")
        console = Process(folder, "console", *options)
        try:
            # Its start is waited for in a thread: the work goes on meanwhile.
            address = await asyncio.to_thread(lambda: console.address)
            async with somebody_looks(address) as seen:
                await asyncio.sleep(SETTLING_S)
                already = seen.count("overview")
                watched = await cores(node)
                looks = seen.count("overview") - already
        finally:
            await asyncio.to_thread(console.end)
        after = await cores(node)
    calm = (before["node"] + after["node"]) / 2
    calm_store = (before["store"] + after["store"]) / 2
    more, more_store = watched["node"] - calm, watched["store"] - calm_store
    figure("a console's looks at a node with 500 queues", looks / SECONDS, "/s", "at least 0.5")
    figure("what they cost the node, of a core", 100 * more, "%", "below 2")
    figure("what they cost its store, of a core", 100 * more_store, "%", "–")
