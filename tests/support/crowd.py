"""A process full of strangers: idle sockets, and some that drip a login, a byte each second.

python crowd.py HOST PORT COUNT      says "there" when all are connected; ends with its stdin
"""

from __future__ import annotations

import asyncio
import sys

from tidegate.protocol.catalogue import Authenticate
from tidegate.protocol.connection import ProtocolConnection

_DRIPPING_EVERY = 10
_PAUSE_S = 1.0


async def main(host: str, port: int, count: int) -> None:
    writers: list[asyncio.StreamWriter] = []
    while len(writers) < count:
        some = min(100, count - len(writers))
        opened = await asyncio.gather(*(asyncio.open_connection(host, port) for _ in range(some)))
        writers += [writer for _, writer in opened]
    print("there", flush=True)
    dripping = writers[::_DRIPPING_EVERY]
    login = b"".join(
        map(bytes, ProtocolConnection(server=False).send(Authenticate("n,,n=a,r=x"), 1))
    )
    for byte in login:
        for writer in dripping:
            writer.write(bytes([byte]))
            await asyncio.sleep(_PAUSE_S / len(dripping))  # that they drip is their point


async def until_stdin_ends(work: asyncio.Task[None]) -> None:
    await asyncio.to_thread(sys.stdin.read)
    work.cancel()


async def run() -> None:
    crowd = asyncio.create_task(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    await until_stdin_ends(crowd)


if __name__ == "__main__":
    asyncio.run(run())
