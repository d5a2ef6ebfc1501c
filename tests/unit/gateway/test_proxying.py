"""Requests reach servers and answers come back, whole and in order, on kept connections."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest
import websockets
from bookshop import PART, bookshops
from http_client import Connection, ask, raw
from plain_server import plain_server
from waiting import eventually_async

from tidegate.gateway import exchange
from tidegate.gateway.gateway import Gateway, GatewayLimits, GatewayState
from tidegate.gateway.servers import ServerAddress


async def test_requests_of_one_connection_go_round_the_servers() -> None:
    async with (
        bookshops("a", "b") as shops,
        Gateway([one.address for one in shops], "round-robin") as gateway,
    ):
        async with await Connection.to(gateway.port) as client:
            answers = [await client.ask("/") for _ in range(10)]
        assert Counter(one.body for one in answers) == {b"a": 5, b"b": 5}
        assert {one.status for one in answers} == {200}
        # One connection to each was enough.
        assert [len(one.idle) for one in gateway.servers] == [1, 1]
        assert [one.meters.answered.total for one in gateway.servers] == [5, 5]
        assert all(one.meters.response_time.percentile_s(0.5) > 0 for one in gateway.servers)


async def test_methods_and_statuses_without_a_body_leave_the_connection_usable() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        async with await Connection.to(gateway.port) as client:
            head = await client.ask("/", "HEAD")
            assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "1")
            assert (await client.ask("/nothing")).status == 204
            assert (await client.ask("/", "OPTIONS")).body == b"a"
            assert (await client.ask("/length", "PUT", b"x" * 7)).body == b"7"
            assert (await client.ask("/status/500")).status == 500
            assert (await client.ask("/")).body == b"a"
        (server,) = gateway.servers
        assert server.meters.server_errors.total == 1


async def test_the_server_is_told_who_asked_and_clients_cannot_lie_about_it() -> None:
    async with bookshops("a") as (shop,):
        lies = {
            "X-Forwarded-For": "10.1.1.1",
            "X_Forwarded_For": "10.1.1.2",
            "X-Forwarded-Host": "evil",
            "X-Real-IP": "10.1.1.3",
            "Forwarded": "for=10.1.1.4",
            "Connection": "X-Secret, keep-alive",
            "X-Secret": "for the next hop only",
            "Keep-Alive": "timeout=5",
            "TE": "trailers",
        }
        async with (
            Gateway([shop.address]) as gateway,
            await Connection.to(gateway.port) as client,
        ):
            answer = await client.ask("/", headers=lies)
        told = shop.app.headers[-1]
        assert told["x-forwarded-for"] == "127.0.0.1"
        assert told["x-forwarded-host"] == "shop"
        assert told["x-forwarded-proto"] == "http"
        assert told["via"] == "1.1 tidegate"
        assert not told.keys() & {
            "x_forwarded_for",
            "x-real-ip",
            "forwarded",
            "x-secret",
            "keep-alive",
            "te",
            "connection",
        }
        assert answer.headers["via"] == "1.1 tidegate"
        assert "date" in answer.headers

        async with (
            Gateway([shop.address], trusted_peers=["127.0.0.0/8"]) as gateway,
            await Connection.to(gateway.port) as client,
        ):
            await client.ask("/", headers=lies)
        told = shop.app.headers[-1]
        assert told["x-forwarded-for"] == "10.1.1.1, 127.0.0.1"
        assert told["x-forwarded-host"] == "evil"
        assert told["forwarded"] == "for=10.1.1.4, for=127.0.0.1;proto=http"
        assert "x_forwarded_for" not in told


async def test_gateways_in_a_ring_notice_it() -> None:
    first = Gateway()
    second = Gateway()
    async with first, second:
        first.set_servers([ServerAddress("second", "127.0.0.1", second.port)])
        second.set_servers([ServerAddress("first", "127.0.0.1", first.port)])
        assert (await ask(first.port)).status == 508


async def test_http_1_0_gets_an_answer_that_ends_with_the_connection() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        answer = await raw(gateway.port, b"GET /large/3 HTTP/1.0\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        assert body == PART * 3


async def test_a_client_that_expects_100_continue_is_told_to() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            b"POST /length HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n"
            b"Expect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"hello")
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n5")
        writer.close()


def front_of(gateway: Gateway) -> GatewayState:
    assert gateway._front is not None
    return gateway._front


EXPECTING = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
PATIENT = GatewayLimits(body_grace_s=20.0, answer_timeout_s=60.0)


async def test_client_without_100_continue_gets_no_408() -> None:
    asked = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()

    async with plain_server(says_nothing) as address, Gateway([address], limits=PATIENT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(EXPECTING)
        async with asyncio.timeout(60):
            await asked.wait()
            assert gateway._front is not None
            gateway._front.sweep(time.monotonic() + 30.0)
            assert gateway.in_flight == 1
            gateway._front.sweep(time.monotonic() + 61.0)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 504 ")
        assert gateway.servers[0].meters.failed.total == 1
        writer.close()


async def test_body_time_begins_at_100_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hesitates(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await go_on.wait()
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.read()

    async with plain_server(hesitates) as address, Gateway([address], limits=PATIENT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(EXPECTING)
        async with asyncio.timeout(60):
            await asked.wait()
            monkeypatch.setattr(exchange, "monotonic", lambda: time.monotonic() + 50.0)
            go_on.set()
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            assert gateway._front is not None
            gateway._front.sweep(time.monotonic() + 50.0 + 5.0)
            assert gateway.in_flight == 1
            gateway._front.sweep(time.monotonic() + 50.0 + 21.0)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 408 ")
        assert gateway.servers[0].meters.failed.total == 0
        writer.close()


async def test_large_bodies_pass_within_bounded_memory_while_the_reader_dawdles() -> None:
    """256 MiB each way; whoever is slow is waited for, and nothing piles up here."""
    size_bytes = 256 * 1024 * 1024
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            b"POST /length HTTP/1.1\r\nHost: shop\r\nContent-Length: %d\r\n\r\n" % size_bytes
        )
        block = bytes(1024 * 1024)
        for _ in range(256):
            writer.write(block)
            await writer.drain()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(9) == str(size_bytes).encode()

        parts = size_bytes // len(PART)
        writer.write(
            f"GET /large/{parts} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        # The gateway takes no more from the server before the first byte of the body is read.
        (client,) = front_of(gateway).clients
        await eventually_async(lambda: client.writing_paused, "all pipes are full")
        received = 0
        while data := await reader.read(1024 * 1024):
            received += len(data)
        assert received > size_bytes
        writer.close()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        assert grown_kib < 32 * 1024
    assert shop.app.requests[0] == ("POST", "/length", size_bytes)


async def test_a_websocket_is_passed_through() -> None:
    async with bookshops("a") as (shop,):
        async with Gateway([shop.address]) as gateway:
            url = f"ws://127.0.0.1:{gateway.port}/socket"
            async with websockets.connect(url) as socket:
                for message in ("hello", b"\0\1", "x" * 200_000):
                    await socket.send(message)
                    assert await socket.recv() == message
                assert [one.outstanding for one in gateway.servers] == [1]
            async with websockets.connect(url) as socket:
                await socket.send("again")
                assert await socket.recv() == "again"
        assert shop.app.requests == [("WEBSOCKET", "a", 0)] * 2


async def test_a_websocket_that_is_declined_leaves_the_connection_as_it_was() -> None:
    """What was sent too early is a request if the server did not switch, and is served once."""

    async def declines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(declines, "127.0.0.1", 0)
    address = ServerAddress("declines", "127.0.0.1", server.sockets[0].getsockname()[1])
    async with Gateway([address]) as gateway:
        answer = await raw(
            gateway.port,
            b"GET /socket HTTP/1.1\r\nHost: shop\r\n"
            b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
            b"GET /next HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n",
        )
        assert answer.count(b"HTTP/1.1 403 ") == 2
        assert gateway.servers[0].meters.answered.total == 2
    server.close()


async def test_gateway_stops_reading_from_a_client_that_never_reads() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        asks = b"GET /large/64 HTTP/1.1\r\nHost: shop\r\n\r\n" * 100
        writer.write(asks)

        # A hundred MiB were asked for; the servers are asked for no more than pipes can hold.
        await eventually_async(lambda: bool(front_of(gateway).clients), "the gateway knows of it")
        (client,) = front_of(gateway).clients
        await eventually_async(lambda: client.writing_paused, "nothing more is asked")
        # The gateway has time for others, and for this client if it wanted to.
        others = 50
        for _ in range(others):
            assert (await ask(gateway.port)).status == 200
        assert client.writing_paused
        assert len(shop.app.requests) - others < 20
        received = 0
        while received < 100 * 64 * len(PART):
            data = await reader.read(1024 * 1024)
            assert data
            received += len(data)
        writer.close()


async def test_fields_that_never_end_are_refused_in_the_head_and_behind_the_body() -> None:
    async with bookshops("a") as (shop,):
        limits = GatewayLimits(header_bytes_max=4096)
        async with Gateway([shop.address], limits=limits) as gateway:
            for start in (
                b"GET / HTTP/1.1\r\nHost: shop\r\nX: ",
                b"POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                writer.write(start)
                for _ in range(5):
                    writer.write(b"y" * 2000)
                    await writer.drain()
                    await asyncio.sleep(0)
                writer.write(b"y" * 2000)
                async with asyncio.timeout(60):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
                writer.close()
    assert shop.app.requests == []


async def test_slow_and_idle_clients_do_not_keep_others_from_being_served() -> None:
    """Slowloris and idle connections by the hundred, and one client that just works."""
    async with (
        bookshops("a") as (shop,),
        Gateway([shop.address]) as gateway,
        AsyncExitStack() as crowd,
    ):
        front = front_of(gateway)
        for number in range(300):
            client = await crowd.enter_async_context(await Connection.to(gateway.port))
            if number % 2:
                client.writer.write(b"GET / HTTP/1.1\r\nHost: sh")
        async with await Connection.to(gateway.port) as honest:
            for _ in range(20):
                assert (await honest.ask("/")).status == 200

            def all_are_here() -> bool:
                return [one.idle for one in front.clients].count(False) == 150

            await eventually_async(all_are_here, "half of them have begun a head")
            assert gateway.connections == 301
            # They have had their time, the honest one has not.
            front.sweep(time.monotonic() + GatewayLimits().head_timeout_s + 1.0)

            async def crowd_is_gone() -> bool:
                assert (await honest.ask("/")).status == 200
                return gateway.connections == 1

            await eventually_async(crowd_is_gone, "they are hung up on")
        assert gateway.refusals == {408: 150}


async def test_a_client_that_leaves_takes_its_request_with_it() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        async with await Connection.to(gateway.port) as client:
            waiting = asyncio.create_task(client.ask("/hang", "POST", b"x"))
            await asyncio.wait_for(shop.app.arrived.wait(), 60)
            (server,) = gateway.servers
            assert server.outstanding == 1
            waiting.cancel()
            client.writer.transport.abort()
            await asyncio.wait_for(server.wait_idle(), 60)
        assert gateway.in_flight == 0


async def test_beyond_its_limits_a_gateway_sheds_and_says_when_to_come_again() -> None:
    async with bookshops("a") as (shop,):
        limits = GatewayLimits(in_flight_max=1, connections_max=3, retry_after_s=7)
        async with (
            Gateway([shop.address], limits=limits) as gateway,
            await Connection.to(gateway.port) as client,
        ):
            first = asyncio.create_task(ask(gateway.port, "/hang"))
            await asyncio.wait_for(shop.app.arrived.wait(), 60)
            shed = await client.ask("/")
            assert (shed.status, shed.headers["retry-after"]) == (503, "7")
            # The same connection is served when there is room again.
            shop.app.go_on.set()
            assert (await first).status == 200
            assert (await client.ask("/")).status == 200
            async with await Connection.to(gateway.port), await Connection.to(gateway.port):
                refused = await raw(gateway.port, b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n")
                assert refused.startswith(b"HTTP/1.1 503 ")
            # Whoever was turned away is in the counts, and they add up.
            assert (gateway.accepted, gateway.answered, gateway.refusals) == (4, 2, {503: 2})


async def test_gateway_refuses_too_large_heads_and_bodies() -> None:
    async with bookshops("a") as (shop,):
        limits = GatewayLimits(header_bytes_max=1024, body_bytes_max=10)
        async with Gateway([shop.address], limits=limits) as gateway:
            head = b"GET / HTTP/1.1\r\nHost: shop\r\nX: " + b"y" * 2000
            assert (await raw(gateway.port, head + b"\r\n\r\n")).startswith(b"HTTP/1.1 431 ")
            assert (await raw(gateway.port, head * 2)).startswith(b"HTTP/1.1 431 ")
            assert (await ask(gateway.port, "/", "POST", b"y" * 11)).status == 413
            chunked = (
                b"POST /length HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"b\r\n01234567890\r\n0\r\n\r\n"
            )
            assert (await raw(gateway.port, chunked)).startswith(b"HTTP/1.1 413 ")
            assert (await ask(gateway.port, "/length", "POST", b"y" * 10)).body == b"10"
    assert shop.app.requests == [("POST", "/length", 10)]


async def test_gateway_closes_slow_clients() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        front, limits = front_of(gateway), GatewayLimits()
        too_slow = asyncio.gather(
            raw(gateway.port, b""),
            raw(gateway.port, b"GET / HTTP/1.1\r\nHost:"),
            raw(gateway.port, b"POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 9\r\n\r\nx"),
            raw(gateway.port, b"GET /hang HTTP/1.1\r\nHost: shop\r\n\r\n"),
        )

        def all_are_here() -> bool:
            idle = [one.idle for one in front.clients]
            return len(idle) == 4 and sum(idle) == 1 and gateway.in_flight == 2

        await eventually_async(all_are_here, "the gateway waits for all four")
        await shop.app.arrived.wait()
        front.sweep(time.monotonic() + limits.answer_timeout_s + 1.0)
        silent, slow_head, slow_body, slow_server = await too_slow
        assert silent == b""
        assert slow_head.startswith(b"HTTP/1.1 408 ")
        assert slow_body.startswith(b"HTTP/1.1 408 ")
        assert slow_server.startswith(b"HTTP/1.1 504 ")
        await eventually_async(lambda: gateway.connections == 0, "nobody is left")
        answered = gateway.answered
        idle = asyncio.create_task(raw(gateway.port, b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n"))
        await eventually_async(lambda: gateway.answered == answered + 1, "it is answered")
        front.sweep(time.monotonic() + limits.idle_timeout_s + 1.0)
        assert (await idle).startswith(b"HTTP/1.1 200 ")
        assert gateway.in_flight == 0


async def test_a_body_that_comes_too_slowly_is_no_answer_that_the_server_broke_off() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: shop\r\nContent-Length: 9\r\n\r\nab")
        async with asyncio.timeout(60):
            await reader.readuntil(b"ab")
            assert gateway._front is not None
            gateway._front.sweep(time.monotonic() + GatewayLimits().body_grace_s + 1.0)
            # What is left of the part that came; the end of the answer does not.
            assert await reader.read() == b"\r\n"
        writer.close()
        assert gateway.broken_off == 0


async def test_a_long_upload_that_its_server_holds_for_a_moment_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later_s = GatewayLimits().answer_timeout_s + 1.0
    part = bytes(1024 * 1024)
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def holds(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(part))
        arrived.set()
        await go_on.wait()
        await reader.readexactly(len(part) * 31)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with plain_server(holds) as address, Gateway([address]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        length = b"Content-Length: %d\r\n\r\n" % (len(part) * 32)
        writer.write(b"POST / HTTP/1.1\r\nHost: shop\r\n" + length + part)
        await asyncio.wait_for(arrived.wait(), 60)
        front = gateway._front
        assert front is not None
        server_is_full = exchange.ProxiedRequest.server_is_full

        def looked_at(request: exchange.ProxiedRequest) -> None:
            server_is_full(request)
            front.sweep(time.monotonic() + later_s + 1.0)
            go_on.set()

        # It has come for over a minute when its server takes no more for the first time.
        monkeypatch.setattr(exchange, "monotonic", lambda: time.monotonic() + later_s)
        monkeypatch.setattr(exchange.ProxiedRequest, "server_is_full", looked_at)
        writer.write(part * 31)
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        assert gateway.servers[0].meters.failed.total == 0
        writer.close()


async def test_without_a_server_there_is_a_clear_answer() -> None:
    async with Gateway() as gateway:
        answer = await ask(gateway.port)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert b"no server is well" in answer.body
