"""The delaying cable on real sockets: bytes come later, in order, and all of them.

How much later, to the millisecond, is shown in virtual time (`test_proxy_delay.py`); how exact it
is on a real clock, and what it costs, is measured in `benchmarks/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from tidegate_lab.faults.proxy import TcpProxy, proxy_at


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def echo_url() -> AsyncIterator[str]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    yield f"amqp://guest:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/%2f?heartbeat=0"
    server.close()


async def _round_trip_s(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    began_s = time.perf_counter()
    writer.write(b"ping")
    await reader.readexactly(4)
    return time.perf_counter() - began_s


async def _shortest_round_trip_s(port: int) -> float:
    """A busy machine adds to a round trip, and never takes away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = [await _round_trip_s(reader, writer) for _ in range(10)]
    writer.close()
    return min(taken)


async def test_a_round_trip_takes_twice_the_delay_at_least(echo_url: str) -> None:
    async with TcpProxy(echo_url, delay_s=0.02) as proxy:
        for delay_s in (0.02, 0.04, 0.005):
            proxy.set_delay(delay_s)
            # Timers count in milliseconds.
            assert await _shortest_round_trip_s(proxy.port) >= 2 * delay_s - 0.0015


async def test_bytes_keep_their_order_while_the_delay_changes(echo_url: str) -> None:
    sent = b"".join(number.to_bytes(4, "big") for number in range(2_000_000))
    async with TcpProxy(echo_url, delay_s=0.05) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)

        async def send() -> None:
            for start in range(0, len(sent), 100_000):
                writer.write(sent[start : start + 100_000])
                await writer.drain()
                # Shorter and longer again: later bytes may not overtake earlier ones.
                proxy.set_delay(0.0 if start % 200_000 else 0.05)
            writer.write_eof()

        sending = asyncio.create_task(send())
        received = await reader.read(-1)
        await sending
        assert received == sent
        writer.close()


async def test_the_url_stays_the_targets_but_for_host_and_port(echo_url: str) -> None:
    async with TcpProxy(echo_url) as proxy:
        assert proxy.url == f"amqp://guest:secret@127.0.0.1:{proxy.port}/%2f?heartbeat=0"
    with pytest.raises(ValueError, match="no host and port"):
        TcpProxy("amqp://localhost")
    with pytest.raises(ValueError, match="from 0 to 60 s"):
        TcpProxy(echo_url, delay_s=-1.0)


async def test_fifty_connections_are_delayed_side_by_side(echo_url: str) -> None:
    with proxy_at(echo_url, delay_s=0.006) as proxy:

        async def chat() -> list[float]:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            taken = [await _round_trip_s(reader, writer) for _ in range(20)]
            writer.close()
            return taken

        taken = [one for chat in await asyncio.gather(*(chat() for _ in range(50))) for one in chat]
        assert len(taken) == 1000
        assert min(taken) >= 0.0105


async def test_a_proxy_of_its_own_process_changes_its_delay_and_cuts(echo_url: str) -> None:
    with proxy_at(echo_url, delay_s=0.01) as proxy:
        assert await _shortest_round_trip_s(proxy.port) >= 0.0185
        proxy.set_delay(0.02)
        assert await _shortest_round_trip_s(proxy.port) >= 0.0385
        reader, _writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        _writer.write(b"ping")
        await reader.readexactly(4)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
