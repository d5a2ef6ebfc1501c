"""A child process with publishers, each with normally distributed pauses between its messages.

Every publisher has its own connection and a due time of its next message. The due time does not
depend on the time at which the last message was sent. So a busy machine delays messages but does
not reduce their number. On RabbitMQ a publisher writes pre-encoded frames without confirmations.
With a client library, 25 publishers would use the core that the consumer needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import sys
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
import uvloop

import tidegate
from tidegate.client.client import Client
from tidegate_lab.loadgen.processes import answer
from tidegate_lab.peers.amqp import FRAME_END, RawConnection, publish_prefix

PAYLOAD_BYTES = 256
# The most unanswered puts of a publisher on Tidegate; above it the publisher skips messages.
UNDER_WAY_MAX = 50


class PublisherTask(msgspec.Struct, frozen=True):
    """The task of a process of publishers."""

    url: str
    queue: str
    publishers: int
    mean_s: float
    deviation_s: float
    seed: int = 6


class PublishSpeed(msgspec.Struct, frozen=True):
    """A command to multiply the publishers' rate; 0 pauses them.

    The answer is the number of messages published so far.
    """

    times: float


class PublishTarget(Protocol):
    """A connection to a queue of a broker."""

    def put(self) -> None: ...


class RabbitmqTarget:
    """A queue on RabbitMQ, with pre-encoded frames on a raw connection and no confirmations."""

    def __init__(self, port: int, queue: str) -> None:
        self._socket = RawConnection(port).socket
        prefix = publish_prefix(queue, PAYLOAD_BYTES, persistent=False)
        self._frames = prefix + bytes(PAYLOAD_BYTES) + FRAME_END

    def put(self) -> None:
        self._socket.sendall(self._frames)


class TidegateTarget:
    """A queue on Tidegate; a put is skipped while `UNDER_WAY_MAX` puts are unanswered."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._under_way: set[asyncio.Future[int]] = set()

    def put(self) -> None:
        if len(self._under_way) >= UNDER_WAY_MAX:
            return
        put = self._client.put(self._queue, bytes(PAYLOAD_BYTES))
        task = asyncio.ensure_future(put)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


class Publishers:
    """All publishers of a process, in the order of their due times."""

    def __init__(self, press: PublisherTask, outlets: list[PublishTarget]) -> None:
        self._press = press
        self._outlets = outlets
        self._random = random.Random(press.seed)
        self._times = 1.0
        self.published = 0

    def change(self, times: float) -> None:
        self._times = times

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Random times in the first interval, as if the publishers were started in succession.
        due = [
            (now + self._random.uniform(0.0, self._press.mean_s), number)
            for number in range(len(self._outlets))
        ]
        heapq.heapify(due)
        while True:
            now = loop.time()
            while due[0][0] <= now:
                at, number = due[0]
                if self._times > 0.0:
                    self._outlets[number].put()
                    self.published += 1
                heapq.heapreplace(due, (at + self._pause_s(), number))
            await asyncio.sleep(due[0][0] - now)

    def _pause_s(self) -> float:
        press = self._press
        pause_s = max(self._random.gauss(press.mean_s, press.deviation_s), 0.0)
        return pause_s / self._times if self._times > 0.0 else pause_s


async def _publish(press: PublisherTask) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with contextlib.AsyncExitStack() as stack:
        outlets = [await _outlet(press, stack) for _ in range(press.publishers)]
        publishers = Publishers(press, outlets)
        publishing = asyncio.ensure_future(publishers.run())
        answer(True)
        while line := await orders.readline():
            publishers.change(msgspec.json.decode(line, type=PublishSpeed).times)
            if publishing.done():
                publishing.result()
            answer(publishers.published)
        publishing.cancel()


async def _outlet(press: PublisherTask, stack: contextlib.AsyncExitStack) -> PublishTarget:
    if press.url.startswith("amqp"):
        port = urlsplit(press.url).port
        assert port is not None
        return RabbitmqTarget(port, press.queue)
    client = await stack.enter_async_context(tidegate.connect(press.url))
    return TidegateTarget(client, press.queue)


if __name__ == "__main__":
    uvloop.run(_publish(msgspec.json.decode(sys.argv[1], type=PublisherTask)))
