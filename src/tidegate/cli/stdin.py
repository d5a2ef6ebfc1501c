"""Lines of stdin for asyncio, from a file, a pipe or a terminal.

A thread reads stdin, because asyncio cannot read regular files. It is a daemon thread and reads the
file descriptor directly. The process can therefore exit while the thread still waits for input.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

_CHUNK_BYTES = 256 * 1024
_LINES_MAX = 1000


async def stdin_lines() -> AsyncIterator[list[bytes]]:
    """Yield lists of lines without newlines, as many lines as are available at once."""
    rest: list[bytes] = []
    while chunk := await _read_chunk(sys.stdin.fileno()):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if not others:
            continue
        lines = [b"".join(rest), *others[:-1]]
        rest = [others[-1]]
        for start in range(0, len(lines), _LINES_MAX):
            yield lines[start : start + _LINES_MAX]
    if last := b"".join(rest):
        yield [last]


async def _read_chunk(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()

    def hand_over(chunk: bytes) -> None:
        if not arrived.cancelled():
            arrived.set_result(chunk)

    def read() -> None:
        chunk = os.read(descriptor, _CHUNK_BYTES)
        loop.call_soon_threadsafe(hand_over, chunk)

    threading.Thread(target=read, daemon=True).start()
    return await arrived
