"""The spike behind decision 0009: what a console that is looked at costs a node.

    .venv/bin/python docs/decisions/spike_0009.py [QUEUES [SECONDS]]

A node in a process of its own on a PostgreSQL of its own, with 500 logical queues of two replicas
each (1 500 parts), all of which deliver: histograms of waits with some 60 buckets that grow every
second. It has no loops, which would cost more than what is measured. Beside it a console with one
page that is open on the overview, then on a service. Printed are processor times in per cent of a
core, without a console and with it, and what a page is sent a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

import httpx
import msgspec
import uvloop

from tidegate.client.client import Client
from tidegate.client.credentials import Credentials
from tidegate.console.application import ConsoleOptions, console_application
from tidegate.console.doorkeeper import allowed_hosts
from tidegate.console.server import listening, serving
from tidegate.core.replication import ReplicaState
from tidegate.core.scaling import Range, Scaling, ScalingPolicy
from tidegate.node.server import Node
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres import PostgresStore

_REPLICAS = 2
_WARM_UP_S = 8.0
_LOOKS = 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def _node(url: str, queues: int) -> None:
    """Until stdin ends."""
    store = PostgresStore(url)
    node = Node(store, host="127.0.0.1", port=0)
    await node.start()
    epoch = await store.lead(node.member_id)
    assert epoch is not None
    scaling = Scaling(replicas=Range(_REPLICAS, _REPLICAS), policy=ScalingPolicy.FIXED)
    for number in range(queues):
        queue = await store.create_queue(f"queue-{number:03}", True)
        assert queue is not None
        await node.ownership.route(queue.queue_id)
        await store.set_scaling(queue.queue_id, scaling)
        for _ in range(_REPLICAS):
            place = await store.add_replica(queue.queue_id, epoch)
            assert place is not None
            await node.ownership.bring_here(place.queue_id)
            await store.set_replica_state(queue.queue_id, place.number, ReplicaState.SERVING, epoch)
        await store.set_shares(queue.queue_id, {1: 0.5, 2: 0.5}, epoch)
    await node.aliases.look(again=True)
    delivering = asyncio.create_task(_deliver(node))
    await asyncio.sleep(_WARM_UP_S)
    chance = random.Random(2)
    for what, durations in (("brief", False), ("with durations", True)):
        times, size = [], 0
        for _ in range(_LOOKS):
            _delivered(node, chance)
            begun = time.process_time()
            numbers = await node.numbers(None, False, None, with_durations=durations)
            size = len(msgspec.json.encode(numbers))
            times.append(time.process_time() - begun)
        print(f"stats {what}: {1e3 * median(times):.1f} ms of a node, {size / 1024:.0f} KiB")
    print(node.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    delivering.cancel()
    await node.stop()


async def _deliver(node: Node) -> None:
    """All queues, once a second."""
    chance = random.Random(1)
    while True:
        _delivered(node, chance)
        await asyncio.sleep(1.0)


def _delivered(node: Node, chance: random.Random) -> None:
    """What deliveries leave in the meters, without the deliveries."""
    for replica in node.replicas.values():
        meters = replica.holding.meters
        for meter in (meters.wait, meters.service):
            meter.add(10.0 ** chance.uniform(-4.0, 0.0))
        for rate in (meters.put, meters.delivered, meters.acked):
            rate.add(1)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextlib.asynccontextmanager
async def _console(address: str, store: PostgresStore) -> AsyncIterator[str]:
    def connect(credentials: Credentials | None) -> Client:
        return Client(address, mode="admin", reconnect_s=5.0, credentials=credentials)

    listener = listening("127.0.0.1", 0)
    port = listener.getsockname()[1]
    hosts = allowed_hosts("127.0.0.1", port, [], tls=False)
    options = ConsoleOptions(connect=connect, hosts=hosts, port=port, store=store)
    async with serving(console_application(options), listener):
        yield f"http://127.0.0.1:{port}"


async def _page(address: str, path: str, got: list[int]) -> None:
    async with httpx.AsyncClient(timeout=None) as http, http.stream("GET", address + path) as live:
        async for line in live.aiter_lines():
            got[0] += len(line)
            got[1] += line.startswith("event: overview")


async def _measure(pid: int, what: str, seconds: float, got: list[int]) -> None:
    await asyncio.sleep(5.0)
    node_s, own_s, begun, before = _cpu_s(pid), time.process_time(), time.monotonic(), list(got)
    await asyncio.sleep(seconds)
    lasted_s = time.monotonic() - begun
    node, own = (_cpu_s(pid) - node_s) / lasted_s, (time.process_time() - own_s) / lasted_s
    sent, events = (got[0] - before[0]) / lasted_s, (got[1] - before[1]) / lasted_s
    print(
        f"{what:28} node {100 * node:5.1f} %   console and page {100 * own:5.1f} %   "
        f"page is sent {sent / 1024:6.1f} KiB/s in {events:.2f} events/s",
        flush=True,
    )


async def _look(url: str, pid: int, address: str, seconds: float) -> None:
    got = [0, 0]
    await _measure(pid, "without a console", seconds, got)
    store = PostgresStore(url)
    await store.open()
    async with _console(address, store) as console:
        for what, path in (
            ("a page on the overview", "/api/live"),
            ("a page on a service", "/api/live?service=queue/queue-000"),
        ):
            page = asyncio.create_task(_page(console, path, got))
            await _measure(pid, what, seconds, got)
            page.cancel()
    await store.close()
    await _measure(pid, "without a console, again", seconds, got)


def main() -> None:
    if sys.argv[1:2] == ["node"]:
        uvloop.run(_node(sys.argv[2], int(sys.argv[3])))
        return
    queues = int(sys.argv[1]) if sys.argv[1:] else 500
    seconds = float(sys.argv[2]) if sys.argv[2:] else 20.0
    folder = Path(tempfile.mkdtemp(prefix="tidegate-spike-"))
    server = EmbeddedPostgres(folder, settings={"fsync": "off"})
    try:
        url = server.start()
        node = subprocess.Popen(
            [sys.executable, __file__, "node", url, str(queues)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert node.stdout is not None
        print(f"{queues} queues of {_REPLICAS} replicas", flush=True)
        while not (address := node.stdout.readline().strip()).startswith("tidegate://"):
            print(address, flush=True)
        uvloop.run(_look(url, node.pid, address, seconds))
        node.communicate()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
