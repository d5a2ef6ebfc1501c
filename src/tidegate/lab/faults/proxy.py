"""A TCP proxy that misbehaves on request: the cable between a client and a node.

    passes    bytes go both ways
    frozen    half open: both connections stay, nothing passes, nobody is told
    deaf      requests pass, answers are swallowed: the outcome of everything is unknown
    cut()     all connections are reset at once

What is held while frozen is delivered when the link thaws, as a real cable would.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Literal, Self

Mode = Literal["passes", "frozen", "deaf"]

_CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Listens on a free loopback port in front of a node; use with `async with`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tidegate://").rpartition(":")
        self._host, self._port = host, int(port)
        self._mode: Mode = "passes"
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.bytes_swallowed = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"tidegate://127.0.0.1:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set_mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "frozen":
            self._thawed.clear()
        else:
            self._thawed.set()

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        for writer in list(self._writers):
            # Linger 0: a reset, as when the other machine is gone, not a polite end.
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            node_reader, node_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, node_writer}
        for source, sink, is_answer in (
            (reader, node_writer, False),
            (node_reader, writer, True),
        ):
            task = asyncio.create_task(self._pump(source, sink, is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                await self._thawed.wait()
                if is_answer and self._mode == "deaf":
                    self.bytes_swallowed += len(data)
                    continue
                sink.write(data)
                await sink.drain()
        await self._thawed.wait()
        self._writers.discard(sink)
        sink.transport.abort()
