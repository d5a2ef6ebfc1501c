"""The delaying cable in virtual time: how much later bytes come, to the millisecond."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tidegate.testing.virtual_time import run
from tidegate_lab.faults.proxy import TIMER_ERROR_S, TcpProxy

# Each of two passages may come so much early.
EXACT_S = 2.01 * TIMER_ERROR_S


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Listener(asyncio.Protocol):
    """Keeps what comes, and tells when so much of it is there."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self._wanted = 0
        self._enough = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        if len(self.heard) >= self._wanted:
            self._enough.set()

    async def until(self, count: int) -> None:
        self._wanted = count
        self._enough.clear()
        if len(self.heard) < count:
            await self._enough.wait()


def over_a_proxy(story: Callable[[TcpProxy, Listener], Awaitable[None]]) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "echo.tidegate.test", 0)
        target = f"echo.tidegate.test:{server.sockets[0].getsockname()[1]}"
        async with TcpProxy(target, delay_s=0.02, host="proxy.tidegate.test") as proxy:
            _, client = await loop.create_connection(Listener, "proxy.tidegate.test", proxy.port)
            await story(proxy, client)

    run(play())


def test_a_round_trip_takes_twice_the_delay_and_the_delay_is_changed_live() -> None:
    async def story(proxy: TcpProxy, client: Listener) -> None:
        loop = asyncio.get_running_loop()
        for number, delay_s in enumerate((0.02, 0.04, 0.005, 0.0, 30.0), start=1):
            proxy.set_delay(delay_s)
            began_s = loop.time()
            client.transport.write(b"ping")
            await client.until(4 * number)
            assert loop.time() - began_s == pytest.approx(2 * delay_s, abs=EXACT_S)

    over_a_proxy(story)


def test_the_delay_is_no_limit_of_how_many_bytes_pass() -> None:
    async def story(proxy: TcpProxy, client: Listener) -> None:
        loop = asyncio.get_running_loop()
        sent = b"".join(number.to_bytes(4, "big") for number in range(100_000))
        began_s = loop.time()
        # When many pieces go, and the delay is shortened and lengthened between them
        for start in range(0, len(sent), 10_000):
            proxy.set_delay(0.0 if start % 20_000 else 0.05)
            client.transport.write(sent[start : start + 10_000])
            await asyncio.sleep(0)
        proxy.set_delay(0.05)
        await client.until(len(sent))
        # Then all come, in order, and as late as one byte: windows of 64 KiB would take 0.6 s
        assert bytes(client.heard) == sent
        assert loop.time() - began_s == pytest.approx(2 * 0.05, abs=EXACT_S)

    over_a_proxy(story)
