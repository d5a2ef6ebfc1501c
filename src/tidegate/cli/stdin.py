"""Lines of stdin for asyncio: a file, a pipe or a terminal alike.

A thread reads, since asyncio takes no files. It is a daemon that reads the descriptor itself, so
that nothing waits for it, or for a lock it holds, when the command ends before stdin does.
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
    """Lines without their newlines, as many at once as are there."""
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
