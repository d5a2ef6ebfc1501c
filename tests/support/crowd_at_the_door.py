"""A process full of clients that want nothing: idle connections, and heads that drip and never end.

python crowd_at_the_door.py PORT IDLE SLOW

Says "there" when all are connected; to each line that it is told it says how many of them are
connected still. Half of the idle ones have asked for something before; the others are silent from
the first. Ends with its stdin.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import cast

import uvloop

_ASKED = b"GET /well HTTP/1.1\r\nHost: shop\r\n\r\n"
_HEAD = b"GET /choose?book=1 HTTP/1.1\r\nHost: shop\r\nX-Slow: "
_AT_ONCE = 100
# A byte of each slow head.
_PAUSE_S = 2.0


class Client(asyncio.Protocol):
    """One of them."""

    def __init__(self) -> None:
        self.is_connected = False
        self.has_heard = asyncio.Event()
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self.is_connected = True

    def data_received(self, data: bytes) -> None:
        self.has_heard.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_connected = False
        self.has_heard.set()

    def say(self, what: bytes) -> None:
        assert self.transport is not None
        self.transport.write(what)


async def come(port: int, count: int, says: bytes, answered: bool) -> list[Client]:
    loop = asyncio.get_running_loop()

    async def one() -> Client:
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        client.say(says)
        if answered:
            await client.has_heard.wait()
        return client

    clients: list[Client] = []
    while len(clients) < count:
        some = min(_AT_ONCE, count - len(clients))
        clients += await asyncio.gather(*(one() for _ in range(some)))
    return clients


async def drip(clients: list[Client]) -> None:
    while True:
        for client in clients:
            if client.is_connected:
                client.say(b"x")
            await asyncio.sleep(_PAUSE_S / len(clients))  # that they drip is their point


async def main(port: int, idle: int, slow: int) -> None:
    crowd = await come(port, idle // 2, _ASKED, answered=True)
    crowd += await come(port, idle - idle // 2, b"", answered=False)
    slow_ones = await come(port, slow, _HEAD, answered=False)
    crowd += slow_ones
    dripping = asyncio.create_task(drip(slow_ones))
    print("there", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(sum(one.is_connected for one in crowd), flush=True)
    dripping.cancel()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(main(*(int(argument) for argument in sys.argv[1:4])))
