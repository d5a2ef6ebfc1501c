"""Who is refused for lack of room is answered at once, and listened to again after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from bookshop import Running, bookshops
from http_client import Connection, ask
from waiting import eventually_async

from tidegate.gateway.gateway import Gateway, GatewayLimits
from tidegate.gateway.http1 import StickySessions
from tidegate.gateway.servers import ServerAddress

REQUEST = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n"
PAUSE_S = 0.4


@asynccontextmanager
async def full_gateway(limits: GatewayLimits) -> AsyncIterator[tuple[Gateway, Running]]:
    """A gateway with one request in hand, which is as many as it takes."""
    async with bookshops("a") as (shop,), Gateway([shop.address], limits=limits) as gateway:
        held = asyncio.create_task(ask(gateway.port, "/hang"))
        await shop.app.arrived.wait()
        yield gateway, shop
        shop.app.go_on.set()
        assert (await held).status == 200


class Pause:
    """What a loop gives back for a timer."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HeldPauses:
    """Stands in for the loop of a gateway: its pauses end when the test says so."""

    def __init__(self, gateway: Gateway) -> None:
        assert gateway._front is not None
        self._loop = gateway._front.loop
        self._held: list[Pause] = []
        self.lengths_s: list[float] = []
        gateway._front.loop = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, delay_s: float, end: Callable[[], None]) -> Pause:
        self.lengths_s.append(delay_s)
        self._held.append(Pause(end))
        return self._held[-1]

    def end(self) -> None:
        held, self._held = self._held, []
        for pause in held:
            if not pause.is_cancelled:
                pause.end()


async def test_a_client_that_asks_again_at_once_is_heard_again_after_a_pause() -> None:
    limits = GatewayLimits(refused_pause_s=PAUSE_S)
    async with (
        bookshops("a", "b") as (a, b),
        Gateway(limits=limits, sessions=StickySessions(b"k" * 16)) as gateway,
        await Connection.to(gateway.port) as stubborn,
        await Connection.to(gateway.port) as other,
    ):
        pauses = HeldPauses(gateway)
        # A session that is at a, which is full; everybody else is at b.
        only = ServerAddress("a", "127.0.0.1", a.port, concurrency=1)
        gateway.set_servers([only])
        first = await stubborn.ask("/")
        cookie = {"Cookie": first.headers["set-cookie"].partition(";")[0]}
        held = asyncio.create_task(ask(gateway.port, "/hang"))
        await a.app.arrived.wait()
        gateway.set_servers([only, b.address])

        assert (await stubborn.ask("/", headers=cookie)).status == 503
        for refusals in (1, 2):
            again = asyncio.create_task(stubborn.ask("/", headers=cookie))
            # Nobody else waits for it.
            for _ in range(20):
                assert (await other.ask("/")).body == b"b"
            assert not again.done()
            assert gateway.refusals == {503: refusals}
            pauses.end()
            assert (await again).status == 503
        assert pauses.lengths_s == [PAUSE_S] * 3
        # It is heard again, and its session is where it was.
        a.app.go_on.set()
        assert (await held).status == 200
        pauses.end()
        assert (await stubborn.ask("/", headers=cookie)).body == b"a"


async def test_requests_that_were_sent_ahead_wait_for_their_turn() -> None:
    async with (
        full_gateway(GatewayLimits(in_flight_max=1, refused_pause_s=PAUSE_S)) as (gateway, shop),
        await Connection.to(gateway.port) as client,
    ):
        pauses = HeldPauses(gateway)
        client.writer.write(REQUEST * 6)

        async def status() -> bytes:
            line, _, fields = (await client.reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            (length,) = (
                int(one.partition(b":")[2])
                for one in fields.lower().split(b"\r\n")
                if one.startswith(b"content-length:")
            )
            await client.reader.readexactly(length)
            return line.split()[1]

        assert await status() == b"503"
        # The others are not looked at before the pause is over.
        async with await Connection.to(gateway.port) as another:
            assert (await another.ask("/")).status == 503
        assert gateway.refusals == {503: 2}
        pauses.end()
        assert await status() == b"503"
        assert pauses.lengths_s == [PAUSE_S] * 3

        shop.app.go_on.set()
        await eventually_async(lambda: gateway.in_flight == 0, "there is room")
        pauses.end()
        # The others go one behind the other, without a pause.
        assert [await status() for _ in range(4)] == [b"200"] * 4
        assert len(pauses.lengths_s) == 3


async def test_a_gateway_that_stops_waits_for_nobody_that_it_does_not_listen_to() -> None:
    async with (
        full_gateway(GatewayLimits(in_flight_max=1, refused_pause_s=600.0)) as (gateway, shop),
        await Connection.to(gateway.port) as client,
    ):
        assert (await client.ask("/")).status == 503
        client.writer.write(REQUEST)
        stopping = asyncio.create_task(gateway.stop(30))
        assert await client.reader.read() == b""
        shop.app.go_on.set()
        client.writer.close()
        assert await stopping == 0


async def test_refused_client_that_leaves_is_forgotten() -> None:
    limits = GatewayLimits(in_flight_max=1, refused_pause_s=PAUSE_S)
    async with full_gateway(limits) as (gateway, _):
        async with await Connection.to(gateway.port) as client:
            assert (await client.ask("/")).status == 503
            client.writer.write(REQUEST * 2)

        async def is_gone() -> bool:
            return gateway.connections == 1

        await eventually_async(is_gone, "only the one that hangs is left")


async def test_the_time_to_ask_again_begins_when_somebody_listens() -> None:
    limits = GatewayLimits(in_flight_max=1, refused_pause_s=600.0)
    async with (
        full_gateway(limits) as (gateway, shop),
        await Connection.to(gateway.port) as client,
    ):
        pauses, front = HeldPauses(gateway), gateway._front
        assert front is not None
        assert (await client.ask("/")).status == 503
        shop.app.go_on.set()
        await eventually_async(lambda: gateway.in_flight == 0, "there is room")
        # In the pause the sweep comes by after the idle timeout, and must not take it for silence.
        front.sweep(monotonic() + limits.idle_timeout_s + 1.0)
        pauses.end()
        assert (await client.ask("/")).status == 200
