"""A small real HTTP server that tells how many requests it has at a time, and can hold them.

It writes its name into every answer. `/slow/20` takes 20 ms; while `gate` is closed nothing that
begins with `/held` is answered. One that `breaks` hangs up on every request instead of answering.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11

from tidegate.core.services import Backend


class Stall:
    """One server."""

    def __init__(self, instance_id: int) -> None:
        self.instance_id = instance_id
        self.name = f"i{instance_id}"
        self.busy = 0
        self.busiest = 0
        # Method and path of every whole request, as they came; and their fields.
        self.requests: list[tuple[str, str]] = []
        self.headers: list[list[tuple[str, str]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.breaks = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def die(self) -> None:
        """As a process does that is killed: nobody listens, and all connections break."""
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    def backend(
        self,
        weight: float = 1.0,
        concurrency: int = 100,
        *,
        draining: bool = False,
        sessions_until: float | None = None,
    ) -> Backend:
        return Backend(
            instance_id=self.instance_id,
            host="127.0.0.1",
            port=self.port,
            weight=weight,
            concurrency=concurrency,
            draining=draining,
            sessions_until=sessions_until,
        )

    @property
    def paths(self) -> list[str]:
        return [path for _, path in self.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._answer_all(reader, writer)
        except (OSError, h11.RemoteProtocolError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        request: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                await self._answer(connection, request, writer)
                if connection.our_state is not h11.DONE:
                    return
                connection.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                return

    async def _answer(
        self, connection: h11.Connection, request: h11.Request, writer: asyncio.StreamWriter
    ) -> None:
        path = request.target.decode()
        if path != "/well":
            # Also those that it breaks off.
            self.requests.append((request.method.decode(), path))
            self.headers.append([(k.decode(), v.decode("latin-1")) for k, v in request.headers])
            self.busy += 1
            self.busiest = max(self.busy, self.busiest)
            try:
                if path.startswith("/held"):
                    await self.gate.wait()
                elif path.startswith("/slow/"):
                    took_s = int(path.removeprefix("/slow/")) / 1000
                    await asyncio.sleep(took_s)  # the work of this server
            finally:
                self.busy -= 1
        if self.breaks and path != "/well":
            writer.transport.abort()
            return
        body = self.name.encode()
        status = 500 if path == "/error" else 200
        head = h11.Response(
            status_code=status, headers=[("Content-Length", str(len(body)))], reason=b"OK"
        )
        data = connection.send(head) or b""
        if request.method != b"HEAD":
            data += connection.send(h11.Data(body)) or b""
        data += connection.send(h11.EndOfMessage()) or b""
        if writer.transport.is_closing():
            raise ConnectionResetError("whoever asked has gone")
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def stalls(count: int, first: int = 1) -> AsyncIterator[list[Stall]]:
    """So many servers, i1, i2 …, in this event loop."""
    running = [Stall(first + number) for number in range(count)]
    for one in running:
        await one.start()
    try:
        yield running
    finally:
        for one in running:
            one.gate.set()
            one.die()
