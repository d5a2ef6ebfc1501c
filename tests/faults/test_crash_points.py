"""A node dies at the worst moments around commit, confirm, delivery and settlement."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from tidegate.core.crash import POINTS, VARIABLE
from tidegate.lab.faults.clients import clients_in
from tidegate.lab.faults.deployment import joined_node, stored_messages
from tidegate.lab.peers.server import free_loopback_ports, temporary_folder
from tidegate.storage.embedded import EmbeddedPostgres

pytestmark = pytest.mark.faults

QUEUE = "orders"


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, Path]]:
    with temporary_folder("crash-points") as folder, EmbeddedPostgres(folder / "data") as postgres:
        yield postgres.url, folder


async def make_queue(url: str, name: str) -> None:
    async with tidegate.connect(url) as mq:
        await mq.create_queue(name)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", POINTS)
def test_nothing_confirmed_is_lost_by_a_crash(store: tuple[str, Path], point: str) -> None:
    # Given a node that will die the 30th time it comes to this point, under load
    url, folder = store
    queue = f"{QUEUE}-{point}"
    (port,) = free_loopback_ports(1)
    with clients_in(folder / point) as clients:
        crashing = {VARIABLE: f"{point}:30"}
        with joined_node(url, folder, port=port, environment=crashing) as node:
            asyncio.run(make_queue(node.address, queue))
            clients.add_consumer("c1", node.address, queue)
            clients.add_producer("p1", node.address, queue, "--rate", "500", "--tasks", "20")
            # When it does
            assert node.process.wait(60) == -signal.SIGKILL

        # And another one takes its place, which lives
        with joined_node(url, folder, port=port):
            clients.wait_for_confirms(200)
            clients.finish_producers()
            drained = clients.drain(30.0)
            clients.finish_consumers()

    # Then the checker finds nothing
    stored = [key for key in stored_messages(url) if key[0] == queue]
    verdict = clients.verdict(stored=stored if drained else None, sole_consumer=[queue])
    print(point, verdict)
    assert clients.failures == []
    assert verdict.outcome == "pass", str(verdict)
    assert verdict.confirmed > 200
