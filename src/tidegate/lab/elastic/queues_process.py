"""Clients of several queues: `python -m tidegate.lab.elastic.queues_process <share as JSON>`.

The process runs a producer and a consumer for each queue, as fast as possible, and counts the
messages acknowledged within a window. Without a URL the node runs in this process too, and
connections to it exist in memory only. A put and its answer then use no socket, as with JORAM's
local connection factory.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

import tidegate
from tidegate.lab.bench.child import answer
from tidegate.node.server import Node
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres import PostgresStore
from tidegate.testing.network import DOMAIN, Network

PAYLOAD = bytes(100)
PUTS_IN_FLIGHT = 500
PREFETCH = 1000
HOST = "machine" + DOMAIN


class Share(msgspec.Struct, frozen=True):
    """The task of the process."""

    queues: int
    durable: bool
    warm_up_s: float
    seconds: float
    # `None` runs the node in this process, with a database in `folder`.
    url: str | None
    folder: str


class Window(msgspec.Struct, frozen=True):
    """The number of acknowledged messages, and the length of the window."""

    messages: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


class LocalLoop(uvloop.Loop):
    """An event loop with an additional network inside the process."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(self)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if self.network.is_ours(host):
            return self.network.listen(protocol_factory, host, port or 0)
        return await super().create_server(protocol_factory, host, port, **options)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if self.network.is_ours(host):
            return self.network.connect(protocol_factory, host, port)
        return await super().create_connection(protocol_factory, host, port, **options)


@contextlib.asynccontextmanager
async def _node(share: Share) -> AsyncIterator[str]:
    if share.url is not None:
        yield share.url
        return
    with EmbeddedPostgres(Path(share.folder)) as database:
        node = Node(PostgresStore(database.url), host=HOST, port=0, name="local")
        await node.start()
        try:
            yield node.address
        finally:
            await node.stop()


class Traffic:
    """One queue with its producer and consumer."""

    def __init__(self, url: str, queue: str, *, durable: bool) -> None:
        self._url = url
        self._queue = queue
        self._durable = durable
        self.acknowledged = 0

    async def flow(self, ready: asyncio.Event) -> None:
        """Put and consume messages until cancelled."""
        async with (
            tidegate.connect(self._url) as producer,
            tidegate.connect(self._url) as consumer,
        ):
            await producer.create_queue(self._queue, durable=self._durable)
            async with (
                consumer.subscribe(self._queue, prefetch=PREFETCH) as subscription,
                asyncio.TaskGroup() as tasks,
            ):
                for _ in range(PUTS_IN_FLIGHT):
                    tasks.create_task(self._put(producer))
                ready.set()
                async for batch in subscription.batches():
                    batch.ack()
                    self.acknowledged += len(batch)

    async def _put(self, producer: tidegate.Client) -> None:
        while True:
            await producer.put(self._queue, PAYLOAD)


async def work(share: Share) -> Window:
    """Run all queues, and return the measured window."""
    async with _node(share) as url:
        traffics = [
            Traffic(url, f"queue-{number}", durable=share.durable) for number in range(share.queues)
        ]
        ready = [asyncio.Event() for _ in traffics]
        flows = [
            asyncio.create_task(traffic.flow(event))
            for traffic, event in zip(traffics, ready, strict=True)
        ]
        try:
            await _first(flows, asyncio.gather(*(event.wait() for event in ready)))
            await _first(flows, asyncio.sleep(share.warm_up_s))
            before, begun_s = sum(one.acknowledged for one in traffics), time.monotonic()
            await _first(flows, asyncio.sleep(share.seconds))
            after, ended_s = sum(one.acknowledged for one in traffics), time.monotonic()
        finally:
            for flow in flows:
                flow.cancel()
            await asyncio.gather(*flows, return_exceptions=True)
        return Window(after - before, ended_s - begun_s)


async def _first(flows: list[asyncio.Task[None]], awaited: Any) -> None:
    """Wait for `awaited`; raise if one of the flows fails before."""
    waiting = asyncio.ensure_future(awaited)
    done, _ = await asyncio.wait([*flows, waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LocalLoop) as runner:
        answer(runner.run(work(msgspec.json.decode(sys.argv[1], type=Share))))
