"""Servers that die or hang under load: who asked what may be repeated does not notice."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest
from bookshop import Process, bookshops
from http_client import Connection, ask
from plain_server import Serve, plain_server
from waiting import eventually_async

from tidegate.gateway.gateway import Gateway, GatewayLimits, GatewayState
from tidegate.gateway.servers import HealthCheck, ServerAddress
from tidegate.laws.http.balancing import EjectionSettings, ServerState


@pytest.fixture
async def processes() -> AsyncIterator[list[Process]]:
    started = [Process("a"), Process("b")]
    await asyncio.gather(*(one.start() for one in started))
    yield started
    for one in started:
        await one.kill()


async def test_a_server_killed_under_load_fails_no_request_that_may_be_repeated(
    processes: list[Process],
) -> None:
    statuses: Counter[int] = Counter()
    killed = asyncio.Event()

    async def clients(port: int) -> None:
        async with await Connection.to(port) as client:
            left = 80
            while left:
                statuses[(await client.ask("/")).status] += 1
                # Half before, half after.
                if left > 40 or killed.is_set():
                    left -= 1

    settings = EjectionSettings(base_s=0.2, return_s=0.3)
    async with Gateway([one.address for one in processes], ejection=settings) as gateway:
        load = [asyncio.create_task(clients(gateway.port)) for _ in range(10)]

        async def warmed_up() -> bool:
            return all(one.meters.answered.total > 50 for one in gateway.servers)

        await eventually_async(warmed_up, "load on both")
        dead, alive = gateway.servers
        await processes[0].kill()
        await eventually_async(lambda: dead.ejection.standing is ServerState.EJECTED)
        killed.set()
        await asyncio.gather(*load)
        assert statuses.keys() == {200}
        assert alive.ejection.standing is ServerState.HEALTHY

        # It comes back where it was, and gets its part again.
        answered = dead.meters.answered.total
        await processes[0].start(processes[0].address.port)

        async def served_again() -> bool:
            assert (await ask(gateway.port)).status == 200
            return dead.meters.answered.total > answered

        await eventually_async(served_again, "the restarted server is used")


async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


async def test_a_body_that_is_sent_again_is_sent_whole_up_to_what_is_kept_of_it() -> None:
    # Nobody is ejected here: each request meets the server that breaks off.
    settings = EjectionSettings(failures_to_eject=1000)
    async with (
        plain_server(break_off) as breaking,
        bookshops("a") as (shop,),
        Gateway([breaking, shop.address], "round-robin", ejection=settings) as gateway,
    ):
        for _ in range(4):
            assert (await ask(gateway.port, "/length", "PUT", b"x" * 60_000)).body == b"60000"
        kept = {
            (await ask(gateway.port, "/length", "PUT", b"x" * 200_000)).status for _ in range(4)
        }
    assert kept == {200, 502}


async def test_posts_under_a_kill_arrive_at_most_once(processes: list[Process]) -> None:
    """Of each POST the servers' counts, asked of who survived, never exceed what was sent."""
    outcomes: Counter[int] = Counter()
    async with (
        bookshops("kept") as (shop,),
        Gateway([processes[0].address, shop.address], "round-robin") as gateway,
    ):

        async def client(number: int) -> None:
            async with await Connection.to(gateway.port) as connection:
                for turn in range(60):
                    path = f"/post/{number}/{turn}"
                    try:
                        answer = await connection.ask(path, "POST", b"x" * 100)
                    except ConnectionError:
                        return
                    outcomes[answer.status] += 1
                    if answer.headers.get("connection") == "close":
                        return
                    if number == 0 and turn == 20:
                        await processes[0].kill()

        await asyncio.gather(*(client(number) for number in range(8)))
    assert outcomes[200] > 100
    assert outcomes.keys() <= {200, 502}
    twice = [
        path for path, count in Counter(p for _, p, _ in shop.app.requests).items() if count > 1
    ]
    assert twice == []


async def test_a_post_that_never_reached_a_server_goes_to_another() -> None:
    async with bookshops("a") as (shop,):
        nobody = ServerAddress("nobody", "127.0.0.1", 1)
        async with Gateway([nobody, shop.address], "round-robin") as gateway:
            answers = [await ask(gateway.port, "/length", "POST", b"x" * 9) for _ in range(4)]
            assert [one.body for one in answers] == [b"9"] * 4
            assert gateway.servers[0].ejection.standing is ServerState.EJECTED
        assert len(shop.app.requests) == 4


async def test_an_ejected_server_gets_nothing_and_returns_when_its_checks_pass() -> None:
    async with bookshops("a", "b") as shops:
        check = HealthCheck("/well", interval_s=0.05)
        settings = EjectionSettings(base_s=0.05, return_s=0.1)
        gateway = Gateway(
            [one.address for one in shops], "round-robin", health=check, ejection=settings
        )
        async with gateway:
            sick = gateway.servers[0]
            shops[0].app.well = False

            async def ejected() -> bool:
                return sick.ejection.standing is ServerState.EJECTED

            await eventually_async(ejected, "the checks fail")
            assert "503" in sick.ejection.why
            assert {(await ask(gateway.port)).body for _ in range(20)} == {b"b"}
            shops[0].app.well = True

            async def healthy() -> bool:
                return sick.ejection.standing is ServerState.HEALTHY

            await eventually_async(healthy, "the checks pass")
            assert {(await ask(gateway.port)).body for _ in range(20)} == {b"a", b"b"}


async def test_a_server_that_hangs_is_ejected_and_the_others_serve() -> None:
    async with bookshops("a", "b") as shops:
        settings = EjectionSettings(failures_to_eject=2, base_s=600.0, most_s=600.0)
        addresses = [one.address for one in shops]
        async with Gateway(addresses, "round-robin", ejection=settings) as gateway:
            shops[1].app.go_on.set()
            asked = [asyncio.create_task(ask(gateway.port, "/hang")) for _ in range(8)]
            hangs = gateway.servers[0]

            def half_are_answered() -> bool:
                return gateway.answered == hangs.meters.sent.total == hangs.outstanding == 4

            await eventually_async(half_are_answered)
            assert gateway._front is not None
            gateway._front.sweep(time.monotonic() + GatewayLimits().answer_timeout_s + 1.0)
            assert Counter([(await one).status for one in asked]) == {200: 4, 504: 4}
            assert gateway.servers[0].ejection.standing is ServerState.EJECTED
            assert {(await ask(gateway.port)).body for _ in range(10)} == {b"b"}


async def test_an_answer_that_breaks_off_is_never_taken_for_whole() -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        writer.transport.abort()

    async with plain_server(broken) as address, Gateway([address]) as gateway:
        with pytest.raises(Exception, match=r"peer|hung up|closed|reset"):
            await ask(gateway.port)


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
async def test_an_answer_that_is_none_becomes_a_502(answer: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

        await asyncio.Event().wait()

    async with plain_server(odd) as address, Gateway([address]) as gateway:
        assert (await ask(gateway.port)).status == 502


async def test_shortage_of_the_gateway_ejects_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = 0
    enough = asyncio.Event()

    async def no_descriptors(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    async def unchecked(*_: object) -> NoReturn:
        nonlocal checks
        checks += 1
        if checks == 5:
            enough.set()
        await no_descriptors()

    async with bookshops("a") as (shop,):
        check = HealthCheck("/well", interval_s=0.01)
        async with (
            Gateway([shop.address], health=check) as gateway,
            await Connection.to(gateway.port) as first,
            await Connection.to(gateway.port) as second,
        ):
            (server,) = gateway.servers
            assert (await first.ask()).status == 200
            monkeypatch.setattr(GatewayState, "connect", no_descriptors)
            monkeypatch.setattr("tidegate.gateway.servers._check_once", unchecked)
            # It has the one connection that there is; another cannot be opened.
            hanging = asyncio.create_task(first.ask("/hang"))
            await asyncio.wait_for(shop.app.arrived.wait(), 60)
            refused = await second.ask()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert b"Too many open files" in refused.body
            await asyncio.wait_for(enough.wait(), 60)
            assert server.ejection.standing is ServerState.HEALTHY
            assert (server.outstanding, server.meters.failed.total) == (1, 0)
            shop.app.go_on.set()
            assert (await hanging).status == 200
            # What it had it goes on with.
            assert (await second.ask()).status == 200


async def test_a_server_that_has_moved_is_not_asked_where_it_was() -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    def called(name: bytes) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"/slow" in head:
                    arrived.set()
                    await go_on.wait()
                if b"/slow/lost" in head:
                    writer.transport.abort()
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + name)

        return serve

    settings = EjectionSettings(failures_to_eject=1)
    async with (
        plain_server(called(b"A"), "moves") as before,
        plain_server(called(b"B"), "moves") as after,
    ):
        # Beside another, so that it could be ejected.
        other = ServerAddress("other", "127.0.0.1", 1, weight=0.0)
        async with Gateway([before, other], ejection=settings) as gateway:
            slow = asyncio.create_task(ask(gateway.port, "/slow", "POST", b"x"))
            await asyncio.wait_for(arrived.wait(), 60)
            arrived.clear()
            lost = asyncio.create_task(ask(gateway.port, "/slow/lost", "POST", b"x"))
            await asyncio.wait_for(arrived.wait(), 60)
            gateway.set_servers([other])
            gateway.set_servers([after, other])
            assert (await ask(gateway.port)).body == b"B"
            go_on.set()
            assert (await slow).body == b"A"
            assert (await lost).status == 502
            assert [(await ask(gateway.port)).body for _ in range(3)] == [b"B"] * 3
            # What broke off there says nothing about it here.
            assert gateway.servers[0].ejection.standing is ServerState.HEALTHY
