"""How connections end: talks that both have left, slow readers, and a gateway that stops.

Where a time has to pass, the sweep is told of a later one.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest
from http_client import Connection
from plain_server import HANDSHAKE, SWITCH, plain_server
from waiting import eventually_async

from tidegate.gateway import client_connection
from tidegate.gateway.gateway import Gateway, GatewayLimits, GatewayState
from tidegate.laws.http.balancing import ServerState

LIMITS = GatewayLimits()
BODY = b"z" * 60_000


def front_of(gateway: Gateway) -> GatewayState:
    assert gateway._front is not None
    return gateway._front


def let_pass(gateway: Gateway, time_s: float) -> None:
    front_of(gateway).sweep(time.monotonic() + time_s)


async def nobody_left(gateway: Gateway) -> None:
    async def gone() -> bool:
        return gateway.connections == 0 and gateway.servers[0].outstanding == 0

    await eventually_async(gone, "both connections are closed")


async def talk(gateway: Gateway) -> Connection:
    client = await Connection.to(gateway.port)
    client.writer.write(HANDSHAKE)
    await client.reader.readuntil(b"\r\n\r\n")
    return client


@pytest.mark.parametrize("first", ["server", "client"])
async def test_a_talk_that_both_have_ended_leaves_nothing_behind(first: str) -> None:
    farewell = b"bye" * 100_000

    async def says_goodbye(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        if first == "server":
            await reader.read(100)
        else:
            assert await reader.read() == b"close"
        writer.write(farewell)
        await writer.drain()

    async with plain_server(says_goodbye) as address, Gateway([address]) as gateway:
        async with await talk(gateway) as client:
            client.writer.write(b"close")
            if first == "client":
                client.writer.write_eof()
            async with asyncio.timeout(60):
                # To the last byte, though who said it has gone.
                assert await client.reader.read() == farewell
        await nobody_left(gateway)
        assert gateway.servers[0].meters.answered.total == 1


async def test_a_talk_that_one_has_ended_lasts_no_longer_than_a_silent_answer() -> None:
    async def listens_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        await reader.read()
        writer.write(b"all heard")
        await asyncio.Event().wait()

    async with (
        plain_server(listens_on) as address,
        Gateway([address]) as gateway,
        await talk(gateway) as client,
    ):
        # As long as both may talk, a minute of silence is nothing.
        let_pass(gateway, LIMITS.answer_stall_s + 1.0)
        client.writer.write_eof()
        async with asyncio.timeout(60):
            await client.reader.readuntil(b"all heard")
        let_pass(gateway, LIMITS.answer_stall_s / 2)
        assert is_kept(gateway)
        let_pass(gateway, LIMITS.answer_stall_s + 1.0)
        await nobody_left(gateway)


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY))


async def asked_and_unread(gateway: Gateway, connection: bytes = b"close") -> socket.socket:
    """One who asks for its last answer and has not read it: most of it is still in the gateway."""
    assert gateway._listener is not None
    for listener in gateway._listener.sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", gateway.port))
    head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: %b\r\n\r\n" % connection
    await loop.sock_sendall(client, head)

    async def answered() -> bool:
        return gateway.answered == 1

    await eventually_async(answered, "the server has answered")
    assert unsent_bytes(gateway) > 0
    return client


def is_kept(gateway: Gateway) -> bool:
    (connection,) = front_of(gateway).clients
    return connection._transport is not None and not connection._transport.is_closing()


def unsent_bytes(gateway: Gateway) -> int:
    (connection,) = front_of(gateway).clients
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size()


async def test_slow_client_gets_its_whole_last_response() -> None:
    loop = asyncio.get_running_loop()
    async with plain_server(answers) as address, Gateway([address]) as gateway:
        client = await asked_and_unread(gateway)
        received, waited_s = b"", 0.0
        async with asyncio.timeout(60):
            while data := await loop.sock_recv(client, 2048):
                received += data
                if gateway.connections and unsent_bytes(gateway):
                    # Longer in all than a client that stalls would be waited for.
                    waited_s += LIMITS.linger_s + 1.0
                    let_pass(gateway, waited_s)
        client.close()
        assert received.endswith(b"\r\n\r\n" + BODY)
        await nobody_left(gateway)


async def test_client_that_does_not_read_its_last_response_is_closed() -> None:
    async with plain_server(answers) as address, Gateway([address]) as gateway:
        client = await asked_and_unread(gateway)
        let_pass(gateway, 0.0)
        let_pass(gateway, LIMITS.send_stall_s / 2)
        assert is_kept(gateway)
        let_pass(gateway, LIMITS.send_stall_s + 1.0)
        await nobody_left(gateway)
        client.close()


async def test_a_slow_reader_is_waited_for_though_it_has_as_much_to_read_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with plain_server(answers) as address, Gateway([address]) as gateway:
        client = await asked_and_unread(gateway)
        (connection,) = front_of(gateway).clients
        connection.pause_writing()
        # It reads, and much later there is so much again.
        later_s = LIMITS.send_stall_s + 1.0
        monkeypatch.setattr(client_connection, "monotonic", lambda: time.monotonic() + later_s)
        connection.resume_writing()
        connection.pause_writing()
        assert not connection.takes_nothing(time.monotonic() + later_s + 1.0)
        assert connection.takes_nothing(time.monotonic() + 2 * later_s)
        client.close()


async def test_half_closed_client_that_does_not_read_is_closed() -> None:
    async with plain_server(answers) as address, Gateway([address]) as gateway:
        client = await asked_and_unread(gateway, b"keep-alive")
        (connection,) = front_of(gateway).clients
        client.shutdown(socket.SHUT_WR)

        async def half_closed() -> bool:
            return connection.half_closed

        await eventually_async(half_closed, "the gateway knows of it")
        idle_s = LIMITS.idle_timeout_s
        let_pass(gateway, idle_s + 1.0)
        let_pass(gateway, idle_s + 2.0)
        assert gateway.connections == 1
        let_pass(gateway, idle_s + LIMITS.send_stall_s + 3.0)
        await nobody_left(gateway)
        client.close()


async def connected(gateway: Gateway) -> socket.socket:
    before = gateway.connections
    client = socket.socket()
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", gateway.port))

    async def known() -> bool:
        return gateway.connections > before

    await eventually_async(known, "the gateway knows of it")
    return client


def test_a_client_that_has_just_reset_its_connection_can_be_seen_to() -> None:
    async def reset() -> None:
        async with plain_server(answers) as address, Gateway([address]) as gateway:
            client = await connected(gateway)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            # The event loop has not seen it yet.
            (connection,) = front_of(gateway).clients
            connection.expired(time.monotonic())
            await nobody_left(gateway)

    # On asyncio's own loop: uvloop says nothing of it.
    asyncio.run(reset())


async def test_failing_expiry_of_one_connection_does_not_stop_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with plain_server(answers) as address, Gateway([address]) as gateway:
        clients = [await connected(gateway) for _ in range(3)]
        # Whoever is looked at first.
        sick = next(iter(front_of(gateway).clients))

        def fails(now: float) -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(sick, "expired", fails)
        let_pass(gateway, LIMITS.head_timeout_s + 1.0)
        let_pass(gateway, LIMITS.head_timeout_s + LIMITS.linger_s + 2.0)
        await nobody_left(gateway)
        for client in clients:
            client.close()


async def test_upkeep_that_fails_once_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with plain_server(answers) as address, Gateway([address]) as gateway:
        ticks = gateway._servers.tick
        failed = asyncio.Event()

        def fails_once(now: float) -> None:
            if not failed.is_set():
                failed.set()
                raise ValueError("a bug")
            ticks(now)

        (server,) = gateway.servers
        server.ejection.refused(0.0, "refused long ago")
        monkeypatch.setattr(gateway._servers, "tick", fails_once)

        async def returning() -> bool:
            return failed.is_set() and server.ejection.standing is ServerState.RETURNING

        await eventually_async(returning, "its time is up")
        assert "the upkeep of a gateway has failed" in caplog.text


async def test_a_gateway_that_stops_closes_what_was_to_be_kept_when_it_is_answered() -> None:
    go_on = asyncio.Event()

    async def in_two_parts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        await go_on.wait()
        writer.write(b"cd")
        await reader.read()

    async with plain_server(in_two_parts) as address:
        gateway = Gateway([address])
        await gateway.start()
        async with await Connection.to(gateway.port) as client, asyncio.timeout(60):
            client.writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            # Its head has said already that the connection is kept.
            await client.reader.readuntil(b"ab")
            stopping = asyncio.create_task(gateway.stop(timeout_s=600.0))
            await asyncio.sleep(0)
            assert front_of(gateway).stopping
            go_on.set()
            assert await client.reader.read() == b"cd"
            client.writer.close()
            assert await stopping == 0
