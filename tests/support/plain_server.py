"""A server that a test writes byte by byte, where an application's framework would do otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tidegate.gateway.servers import ServerAddress

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
HANDSHAKE = b"GET / HTTP/1.1\r\nHost: shop\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


@asynccontextmanager
async def plain_server(serve: Serve, name: str = "plain") -> AsyncIterator[ServerAddress]:
    """It serves each connection until whoever has it hangs up."""
    serving: set[asyncio.Task[None]] = set()

    async def until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(until_gone, "127.0.0.1", 0)
    try:
        yield ServerAddress(name, "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
