"""A real ASGI application on a real uvicorn, in this process or in one of its own.

It counts what it is asked, so that a test can compare what servers saw with what clients sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from tidegate.gateway.servers import ServerAddress

Message = dict[str, Any]
PART = b"0123456789abcdef" * 1024


class Bookshop:
    """What each path does is said by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Method, path and body length of every request, in order.
        self.requests: list[tuple[str, str, int]] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = asyncio.Event()
        self.go_on = asyncio.Event()
        self.well = True

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "websocket":
            await self._echo_socket(receive, send)
            return
        path = scope["path"]
        if path == "/well":
            await _answer(send, 200 if self.well else 503, b"well")
            return
        self.headers.append({k.decode(): v.decode("latin-1") for k, v in scope["headers"]})
        if path == "/hang":
            self.arrived.set()
            await self.go_on.wait()
        if path == "/echo":
            await self._echo(scope, receive, send)
            return
        length = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                # Broken off: no request that a server would act on.
                return
            length += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        self.requests.append((scope["method"], path, length))
        if path.startswith("/large/"):
            await _stream(send, int(path.removeprefix("/large/")))
        elif path == "/die":
            os._exit(1)
        elif path == "/status/500":
            await _answer(send, 500, b"no")
        elif path == "/length":
            await _answer(send, 200, str(length).encode())
        elif path == "/nothing":
            await _answer(send, 204, b"")
        else:
            await _answer(send, 200, self.name.encode())

    async def _echo(self, scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        length = 0
        while True:
            message = await receive()
            body = message.get("body", b"")
            length += len(body)
            more = bool(message.get("more_body"))
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                break
        self.requests.append((scope["method"], scope["path"], length))

    async def _echo_socket(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        self.requests.append(("WEBSOCKET", self.name, 0))
        while (message := await receive())["type"] == "websocket.receive":
            if message.get("text") is not None:
                await send({"type": "websocket.send", "text": message["text"]})
            else:
                await send({"type": "websocket.send", "bytes": message["bytes"]})


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Any, parts: int) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(parts):
        await send({"type": "http.response.body", "body": PART, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class Running:
    """A bookshop that answers, and how to end it."""

    def __init__(self, app: Bookshop, port: int) -> None:
        self.app = app
        self.port = port
        self.address = ServerAddress(app.name, "127.0.0.1", port)


@asynccontextmanager
async def bookshops(*names: str) -> AsyncIterator[list[Running]]:
    """One server for each name, in this event loop."""
    running = []
    servers = []
    for name in names:
        app = Bookshop(name)
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_level="error", lifespan="off", ws="websockets-sansio", http="httptools"
            )
        )
        task = asyncio.create_task(server.serve([listener]))
        servers.append((server, task))
        running.append(Running(app, listener.getsockname()[1]))
    try:
        yield running
    finally:
        for (server, task), one in zip(servers, running, strict=True):
            one.app.go_on.set()
            server.should_exit = server.force_exit = True
            await task


class Process:
    """A bookshop in a process of its own, which can be killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: asyncio.subprocess.Process | None = None
        self.address = ServerAddress(name, "127.0.0.1", 1)

    async def start(self, port: int = 0) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            self.name,
            str(port),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        self.address = ServerAddress(self.name, "127.0.0.1", int(line))

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", port))

    # It listens already: who connects before uvicorn serves waits in the backlog.
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(Bookshop(name), log_level="error", lifespan="off", http="httptools")
    asyncio.run(uvicorn.Server(config).serve([listener]))


if __name__ == "__main__":
    main()
