"""A client that keeps its connection, and says exactly what it sends and gets."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import h11
from waiting import LIMIT_S


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection; h11 reads it, so that no parser of ours judges our own writing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._h11 = h11.Connection(h11.CLIENT)

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(
        self,
        target: str = "/",
        method: str = "GET",
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        fields = {"Host": "shop", **(headers or {})}
        if body:
            fields["Content-Length"] = str(len(body))
        request = h11.Request(method=method, target=target, headers=list(fields.items()))
        self.writer.write(self._h11.send(request) or b"")
        if body:
            self.writer.write(self._h11.send(h11.Data(body)) or b"")
        self.writer.write(self._h11.send(h11.EndOfMessage()) or b"")
        async with asyncio.timeout(LIMIT_S):
            return await self._answer()

    async def _answer(self) -> Answer:
        head: h11.Response | None = None
        parts = []
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                self._h11.receive_data(await self.reader.read(65536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                fields = {k.decode(): v.decode() for k, v in head.headers}
                return Answer(head.status_code, fields, b"".join(parts))
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("hung up without an answer")


async def ask(port: int, target: str = "/", method: str = "GET", body: bytes = b"") -> Answer:
    """On a connection of its own."""
    async with await Connection.to(port) as connection:
        return await connection.ask(target, method, body)


async def raw(port: int, data: bytes) -> bytes:
    """All that comes back on these bytes until the other side hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
