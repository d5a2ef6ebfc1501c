"""The HTTP call of the probe and of webhooks: which answers count as complete."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tidegate.control.services.measurement import http_get
from tidegate.core.errors import Unavailable

HOST = "127.0.0.1"
GUARD_S = 60.0
LONG = b"x" * (3 << 20)


async def status_of(answer: bytes, method: str = "GET") -> int:
    """Call a server that gives `answer` and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await http_get(method, f"http://{HOST}:{port}/", timeout_s=GUARD_S)
    finally:
        server.close()


def of(head: bytes, body: bytes = b"", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n" + body


@pytest.mark.parametrize(
    "answer",
    [
        of(b"", b"until the end"),
        of(b"Content-Length: 5\r\n", b"whole"),
        of(b"content-length:5\r\n", b"whole"),
        of(b"Content-Length: %d\r\n" % len(LONG), LONG),
        of(b"Transfer-Encoding: chunked\r\n", b"5\r\nwhole\r\n0\r\n\r\n"),
        of(b"Transfer-Encoding: chunked\r\n", b"5;a=b\r\nwhole\r\n0\r\nSum: 1\r\n\r\n"),
        of(b"Transfer-Encoding: chunked\r\n", b"%x\r\n" % len(LONG) + LONG + b"\r\n0\r\n\r\n"),
    ],
    ids=["no length", "length", "small letters", "long", "chunks", "trailer", "long chunk"],
)
async def test_call_returns_the_status_when_the_answer_is_complete(answer: bytes) -> None:
    assert await status_of(answer) == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n",
        of(b"Content-Length: 6\r\n", b"whole"),
        of(b"Content-Length: %d\r\n" % len(LONG), b"x" * 1000),
        of(b"Transfer-Encoding: chunked\r\n", b"5\r\nwhol"),
        of(b"Transfer-Encoding: chunked\r\n", b"5\r\nwhole\r\n"),
        of(b"Transfer-Encoding: chunked\r\n", b"5\r\nwhole\r\n0\r\n"),
    ],
    ids=["no head", "half a head", "body", "long body", "half a chunk", "no last", "half a last"],
)
async def test_call_raises_unavailable_when_the_answer_is_cut_off(answer: bytes) -> None:
    with pytest.raises(Unavailable, match="without sending"):
        await status_of(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (of(b"Content-Length: five\r\n", b"whole"), "bad Content-Length"),
        (of(b"Transfer-Encoding: chunked\r\n", b"whole\r\n"), "illegal chunk header"),
        (of(b"X: " + b"x" * (1 << 20) + b"\r\n"), "too long"),
    ],
    ids=["length", "chunk size", "line"],
)
async def test_call_raises_unavailable_when_the_answer_is_no_http(answer: bytes, why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        await status_of(answer)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_call_returns_the_status_when_such_an_answer_has_no_body(
    method: str, status: int
) -> None:
    answer = of(b"Content-Length: 5\r\n", status=b"%d said" % status)
    assert await status_of(answer, method) == status


async def test_call_follows_no_redirect_and_uses_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{HOST}:1")
    answer = of(b"Location: http://127.0.0.1:1/\r\nContent-Length: 0\r\n", status=b"302 Found")
    assert await status_of(answer) == 302


async def test_call_raises_unavailable_when_the_answer_does_not_end() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(of(b"Content-Length: 5\r\n", b"who"))
        # The end of the input: the caller has closed the connection.
        await reader.read()
        writer.close()
        closed.set()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(Unavailable, match=r"no answer within 0.2 s"):
            await http_get("GET", f"http://{HOST}:{port}/", timeout_s=0.2)
        await closed.wait()


async def test_call_says_that_nothing_listens() -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable) as refused:
        await http_get("GET", f"http://{HOST}:{port}/", timeout_s=GUARD_S)
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)
