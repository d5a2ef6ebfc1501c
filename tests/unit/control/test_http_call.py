"""The HTTP call of the probe and of webhooks: which answers count as complete."""

from __future__ import annotations

import asyncio

import pytest
from virtual_nodes import in_virtual_time

from tidegate.control.services.measurement import http_get
from tidegate.core.errors import Unavailable
from tidegate.testing.network import DOMAIN

HOST = f"app{DOMAIN}"
LONG = b"x" * (3 << 20)


async def status_of(answer: bytes, method: str = "GET") -> int:
    """Call a server that gives `answer` and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 8080)
    try:
        return await http_get(method, f"http://{HOST}:8080/", timeout_s=5.0)
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
def test_call_returns_the_status_when_the_answer_is_complete(answer: bytes) -> None:
    @in_virtual_time
    async def running() -> None:
        assert await status_of(answer) == 200

    running()


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
def test_call_raises_unavailable_when_the_answer_is_cut_off(answer: bytes) -> None:
    @in_virtual_time
    async def running() -> None:
        with pytest.raises(Unavailable, match="cut off"):
            await status_of(answer)

    running()


@pytest.mark.parametrize(
    "answer",
    [
        of(b"Content-Length: five\r\n", b"whole"),
        of(b"Transfer-Encoding: chunked\r\n", b"whole\r\n"),
        of(b"X: " + b"x" * (1 << 20) + b"\r\n"),
    ],
    ids=["length", "chunk size", "line"],
)
def test_call_raises_unavailable_when_the_answer_cannot_be_read(answer: bytes) -> None:
    @in_virtual_time
    async def running() -> None:
        with pytest.raises(Unavailable, match="no HTTP"):
            await status_of(answer)

    running()


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_call_returns_the_status_when_such_an_answer_has_no_body(method: str, status: int) -> None:
    @in_virtual_time
    async def running() -> None:
        answer = of(b"Content-Length: 5\r\n", status=b"%d said" % status)
        assert await status_of(answer, method) == status

    running()
