"""How long faults are felt, and what the lab's delaying proxy costs: figures, no limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import time
from collections.abc import AsyncIterator

import psutil
import pytest
from figures import Figure

import tidegate
from tidegate.broker.node import Node
from tidegate.client import connection
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.lake import Lake
from tidegate_lab.faults.deployment import joined_node, kill_process
from tidegate_lab.faults.proxy import TcpProxy, proxy_at
from tidegate_lab.peers.servers import temporary_folder

INTERVAL_S, FLUSH_S = 0.2, 1.0


async def seconds_until_confirmed_again(url: str, queue: str, owner_pid: int) -> float:
    async with tidegate.connect(url) as mq:
        await mq.put(queue, b"before")
        kill_process(owner_pid)
        killed_s = time.monotonic()
        await mq.put(queue, b"after")
        return time.monotonic() - killed_s


async def make_queue(url: str, queue: str) -> None:
    async with tidegate.connect(url) as mq:
        await mq.create_queue(queue)


def test_a_killed_owner_is_replaced(figure: Figure) -> None:
    with (
        temporary_folder("takeover") as folder,
        EmbeddedPostgres(folder / "data") as postgres,
        joined_node(postgres.url, folder) as owner,
        joined_node(postgres.url, folder) as other,
    ):
        asyncio.run(make_queue(owner.address, "orders"))
        taken_s = asyncio.run(seconds_until_confirmed_again(other.address, "orders", owner.pid))
    figure("takeover: from the owner's kill to the next confirm", taken_s, "s", "< 4 (lease 3 s)")


async def test_a_half_open_link_is_left(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_HEARTBEAT_S", 0.2)
    node = Node(MemoryStore())
    await node.start()
    async with TcpProxy(node.address) as proxy, tidegate.connect(proxy.url) as mq:
        await mq.create_queue("orders")
        first = mq.transport
        assert first is not None
        proxy.set_mode("frozen")
        frozen_s = time.monotonic()
        while first.alive:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)
        noticed_s = time.monotonic() - frozen_s
        proxy.set_mode("passes")
        await mq.put("orders", b"after")
    await node.stop()
    figure("half-open link: until the client leaves it", noticed_s, "s", "< 1 (heartbeat 0.2 s)")


def test_a_kill_costs_the_last_seconds_of_history(figure: Figure) -> None:
    with temporary_folder("recording") as folder, EmbeddedPostgres(folder / "data") as postgres:
        recording = {
            "TIDEGATE_TELEMETRY__LAKE": str(folder / "lake"),
            "TIDEGATE_TELEMETRY__INTERVAL": f"{INTERVAL_S}s",
            "TIDEGATE_TELEMETRY__FLUSH": f"{FLUSH_S}s",
        }
        with joined_node(postgres.url, folder, environment=recording) as node:
            asyncio.run(make_queue(node.address, "orders"))
            lake = Lake(str(folder / "lake"))
            while not (last_s := newest_s(lake)):
                time.sleep(0.05)
            kill_process(node.pid)
            killed_s = time.time()
            node.process.wait()
        last_s = newest_s(lake)
    figure("history that a kill costs", killed_s - last_s, "s", f"< {FLUSH_S + INTERVAL_S:g}")


def newest_s(lake: Lake) -> float:
    """The time of the newest row; 0: there is none."""
    if "queue_samples" not in lake.kinds():
        return 0.0
    rows = [row for file in lake.files("queue_samples") for row in lake.read(file).to_pylist()]
    return max((row["at"].timestamp() for row in rows), default=0.0)


# The delaying proxy


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def echo_url() -> AsyncIterator[str]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    yield f"tidegate://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_round_trip_takes_twice_the_delay(echo_url: str, figure: Figure) -> None:
    async with TcpProxy(echo_url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        worst_s = 0.0
        for delay_s in (0.02, 0.04, 0.005, 0.0):
            proxy.set_delay(delay_s)
            taken: list[float] = []
            for _ in range(15):
                began_s = time.perf_counter()
                writer.write(b"ping")
                await reader.readexactly(4)
                taken.append(time.perf_counter() - began_s)
            worst_s = max(worst_s, statistics.median(taken) - 2 * delay_s)
        writer.close()
    figure("proxy: round trip beyond twice the delay", 1000 * worst_s, "ms", "< 15")


async def test_a_delay_is_no_limit_of_bandwidth(echo_url: str, figure: Figure) -> None:
    sent = bytes(8_000_000)
    async with TcpProxy(echo_url, delay_s=0.05) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        began_s = time.perf_counter()
        writer.write(sent)
        writer.write_eof()
        assert len(await reader.read(-1)) == len(sent)
        taken_s = time.perf_counter() - began_s
        writer.close()
    figure("proxy: 8 MB there and back, 50 ms each way", taken_s, "s", "< 1 (by windows: 12)")


async def test_small_messages_cost_the_proxy_little(echo_url: str, figure: Figure) -> None:
    with proxy_at(echo_url, delay_s=0.006) as proxy:
        process = psutil.Process(proxy.pid)
        before_s = sum(process.cpu_times()[:2])

        async def chat() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(100):
                writer.write(b"p" * 256)
                await asyncio.sleep(0.01)
                await reader.readexactly(256)
            writer.close()

        await asyncio.gather(*(chat() for _ in range(50)))
        used_s = (sum(process.cpu_times()[:2]) - before_s) / 10_000
    figure("proxy: processor time of one passage, 50 connections", 1e6 * used_s, "µs", "< 150")
