"""The management API, when it is not what it should be: an error that says so, and never a wait
without end or a password that goes elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.engines.rabbitmq import management
from tidegate.engines.rabbitmq.management import ManagementApi, usual_address

NONSENSE = {
    "another protocol": b"AMQP\x00\x00\x09\x01",
    "nothing": b"",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "other JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[17]",
    "a table too deep": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    "another place": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
}


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, then_drip: bool = False) -> AsyncIterator[ManagementApi]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            while then_drip:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)  # it drips: the answer never ends
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield ManagementApi(f"http://127.0.0.1:{port}", "guest", "secret", "/")


@pytest.mark.parametrize("what", NONSENSE)
async def test_nonsense_is_an_error_of_ours(what: str) -> None:
    async with answering(NONSENSE[what]) as api:
        with pytest.raises(Unavailable, match="management API") as caught:
            await api.queues("orders")
    assert "secret" not in str(caught.value)


async def test_request_fails_when_management_api_answers_too_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(management, "_ANSWER_S", 0.2)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", then_drip=True) as api:
        with pytest.raises(Unavailable, match="too slow"):
            await api.queues("orders")


async def test_queues_that_were_not_asked_for_are_left_out() -> None:
    body = b'{"items": [{"name": "orders"}, {"name": "orders#x"}, {"name": "orders#2"}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with answering(head + body) as api:
        assert [one.name for one in await api.queues("orders")] == ["orders", "orders#2"]


def test_an_address_is_checked_without_showing_a_password() -> None:
    assert usual_address("::1") == "http://[::1]:15672"
    for address in ("ftp://guest:secret@host", "http://guest:secret@host:port", "http://[::1"):
        with pytest.raises(InvalidValue, match="such as http") as caught:
            ManagementApi(address, "guest", "secret", "/")
        assert "secret" not in str(caught.value)
