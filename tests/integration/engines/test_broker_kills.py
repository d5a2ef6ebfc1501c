"""RabbitMQ killed with -9 under load and started again: nothing confirmed is lost.

One broker carries a classic and a quorum queue at once, so that each kill serves both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop
from engine_under_test import taken_until_last
from load import Load, assert_nothing_went_wrong, judged
from rabbitmq import VirtualHost
from waiting import eventually_async

import tidegate
from tidegate.demo.history import HistoryWriter
from tidegate_lab.peers.servers import RabbitmqServer

PRODUCERS = 4
# Deliveries between two kills, of each queue.
BETWEEN = 150
# The broker boots in some five seconds, on a busy machine in some twenty.
BACK_S_MAX = 60.0


class Site:
    """Producers and a worker of one queue, and what they saw."""

    def __init__(self, host: VirtualHost, kind: str, folder: Path) -> None:
        self.queue = f"orders-{kind}"
        self.url = f"{host.url}?queue_type={kind}"
        self.history = folder / kind
        self.writer = HistoryWriter(self.history, kind)
        self.load = Load(self.writer, self.queue)
        self.app = tidegate.App(self.url)
        # The first message stays in its handler until we say so: its ack comes late.
        self.held: bytes | None = None
        self.let_go = asyncio.Event()
        self._producing = True

        @self.app.worker(self.queue, concurrency=8)
        async def handle(message: tidegate.Message) -> None:
            self.load.delivered(message)
            if self.held is None:
                self.held = message.payload
                await self.let_go.wait()
            self.load.acknowledges(message)

    def _seqs(self) -> Iterator[int]:
        seq = 0
        while self._producing:
            yield seq
            seq += 1

    async def more(self) -> None:
        """Wait for so many deliveries from now on."""
        goal = self.load.deliveries + BETWEEN
        await eventually_async(lambda: self.load.deliveries >= goal)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with self.app.running(), tidegate.connect(self.url, reconnect_s=BACK_S_MAX) as mq:
            producing = [
                asyncio.create_task(self.load.produce(mq, f"p{number}", self._seqs()))
                for number in range(PRODUCERS)
            ]
            yield
            self._producing = False
            await asyncio.gather(*producing)
            await eventually_async(lambda: self.load.is_drained)


async def kill_under_load(server: RabbitmqServer, sites: list[Site], kills: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for site in sites:
            await stack.enter_async_context(site.at_work())
        await eventually_async(lambda: server.keeps_quorum_queue("orders-quorum"))
        for _ in range(kills):
            await asyncio.gather(*(site.more() for site in sites))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start_again)
        # Nobody started them again: the workers are back by themselves.
        await asyncio.gather(*(site.more() for site in sites))
        for site in sites:
            site.let_go.set()
        await asyncio.gather(*(site.more() for site in sites))

    for site in sites:
        site.writer.close()
        async with tidegate.connect(site.url) as mq:
            left = await taken_until_last(mq, site.queue)
        assert all(message.redelivered for message in left)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.only_with_all)])
def test_a_killed_broker_loses_nothing_confirmed_and_workers_come_back_by_themselves(
    mortal_broker: RabbitmqServer, tmp_path: Path, kills: int
) -> None:
    host = VirtualHost(mortal_broker)

    async def run() -> list[Site]:
        sites = [Site(host, kind, tmp_path) for kind in ("classic", "quorum")]
        await kill_under_load(mortal_broker, sites, kills)
        return sites

    for site in uvloop.run(run()):
        verdict = judged([site.history])
        assert_nothing_went_wrong(verdict)
        assert verdict.confirmed > BETWEEN * (kills + 1)
        assert site.held is not None
        assert site.load.seen[site.held] > 1, "its late ack was nobody's: it came again"
    host.delete()
