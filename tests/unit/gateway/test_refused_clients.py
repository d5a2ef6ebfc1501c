"""Who is refused for lack of room is answered at once, and listened to again after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from time import monotonic

from bookshop import Running, bookshops
from http_client import Answer, Connection, ask
from waiting import eventually_async

from tidegate.gateway import Gateway, GatewayLimits, ServerAddress, StickySessions

REQUEST = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n"
PAUSE_S = 0.4
# Timers of a loop are up to a millisecond early.
PAUSE_S_MIN = PAUSE_S - 0.002


@asynccontextmanager
async def full_gateway(limits: GatewayLimits) -> AsyncIterator[tuple[Gateway, Running]]:
    """A gateway with one request in hand, which is as many as it takes."""
    async with bookshops("a") as (shop,), Gateway([shop.address], limits=limits) as gateway:
        held = asyncio.create_task(ask(gateway.port, "/hang"))
        await asyncio.wait_for(shop.app.arrived.wait(), 20)
        yield gateway, shop
        shop.app.go_on.set()
        assert (await held).status == 200


async def took_s(client: Connection) -> float:
    begun = monotonic()
    assert (await client.ask("/")).body == b"b"
    return monotonic() - begun


async def test_a_client_that_asks_again_at_once_is_refused_a_few_times_a_second() -> None:
    limits = GatewayLimits(refused_pause_s=PAUSE_S)
    async with (
        bookshops("a", "b") as (a, b),
        Gateway(limits=limits, sessions=StickySessions(b"k" * 16)) as gateway,
        await Connection.to(gateway.port) as stubborn,
        await Connection.to(gateway.port) as other,
    ):
        # A session that is at a, which is full; everybody else is at b.
        only = ServerAddress("a", "127.0.0.1", a.port, concurrency=1)
        gateway.set_servers([only])
        first = await stubborn.ask("/")
        cookie = {"Cookie": first.headers["set-cookie"].partition(";")[0]}
        held = asyncio.create_task(ask(gateway.port, "/hang"))
        await asyncio.wait_for(a.app.arrived.wait(), 20)
        gateway.set_servers([only, b.address])
        refused: list[Answer] = []

        async def storms() -> None:
            while len(refused) < 3:
                refused.append(await stubborn.ask("/", headers=cookie))

        begun = monotonic()
        storm = asyncio.create_task(storms())
        times_s = []
        while not storm.done():
            times_s.append(await took_s(other))
        await storm
        assert monotonic() - begun >= 2 * PAUSE_S_MIN
        assert {one.status for one in refused} == {503}
        assert gateway.refusals == {503: 3}
        # Nobody else waits for it, nor is the gateway busy with refusing.
        assert median(times_s) < PAUSE_S / 10
        # It is heard again, and its session is where it was.
        a.app.go_on.set()
        assert (await held).status == 200
        assert (await stubborn.ask("/", headers=cookie)).body == b"a"


async def test_requests_that_were_sent_ahead_wait_for_their_turn() -> None:
    async with (
        full_gateway(GatewayLimits(in_flight_max=1, refused_pause_s=PAUSE_S)) as (gateway, shop),
        await Connection.to(gateway.port) as client,
    ):
        begun = monotonic()
        client.writer.write(REQUEST * 6)

        async def status() -> bytes:
            async with asyncio.timeout(20):
                line, _, fields = (await client.reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
                (length,) = (
                    int(one.partition(b":")[2])
                    for one in fields.lower().split(b"\r\n")
                    if one.startswith(b"content-length:")
                )
                await client.reader.readexactly(length)
            return line.split()[1]

        assert [await status(), await status()] == [b"503", b"503"]
        assert monotonic() - begun >= PAUSE_S_MIN
        shop.app.go_on.set()
        rest = [await status() for _ in range(4)]
        # As soon as there is room the others go one behind the other, without a pause.
        assert rest[1:] == [b"200"] * 3


async def test_a_gateway_that_stops_waits_for_nobody_that_it_does_not_listen_to() -> None:
    async with (
        full_gateway(GatewayLimits(in_flight_max=1, refused_pause_s=600.0)) as (gateway, shop),
        await Connection.to(gateway.port) as client,
    ):
        assert (await client.ask("/")).status == 503
        client.writer.write(REQUEST)
        stopping = asyncio.create_task(gateway.stop(30))
        async with asyncio.timeout(20):
            assert await client.reader.read() == b""
        shop.app.go_on.set()
        client.writer.close()
        assert await asyncio.wait_for(stopping, 20) == 0


async def test_who_leaves_while_it_is_not_listened_to_leaves_nothing_behind() -> None:
    limits = GatewayLimits(in_flight_max=1, refused_pause_s=PAUSE_S)
    async with full_gateway(limits) as (gateway, _):
        async with await Connection.to(gateway.port) as client:
            assert (await client.ask("/")).status == 503
            client.writer.write(REQUEST * 2)

        async def is_gone() -> bool:
            return gateway.connections == 1

        await eventually_async(is_gone, "only the one that hangs is left", limit_s=20.0)


async def test_the_time_to_ask_again_begins_when_somebody_listens() -> None:
    # In the pause the sweep comes by after the idle timeout, and must not take it for silence.
    limits = GatewayLimits(in_flight_max=1, refused_pause_s=1.0, idle_timeout_s=0.3)
    async with (
        full_gateway(limits) as (gateway, shop),
        await Connection.to(gateway.port) as client,
    ):
        assert (await client.ask("/")).status == 503
        shop.app.go_on.set()
        assert (await client.ask("/")).status == 200
