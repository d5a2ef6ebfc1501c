"""The checker on a system that really loses: it must say so, or its passes mean nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

import tidegate
from tidegate.lab.checker import Verdict
from tidegate.lab.faults.clients import clients_in
from tidegate.lab.faults.deployment import joined_node
from tidegate.lab.faults.injector import kill_postgres, kill_process
from tidegate.lab.peers.server import temporary_folder
from tidegate.lab.stored_messages import stored_messages
from tidegate.storage.embedded import EmbeddedPostgres

QUEUE = "orders"
# A commit is reported before its log leaves shared memory, and stays there for seconds.
FORGETFUL = {
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
    "wal_buffers": "64MB",
}


async def make_queue(url: str) -> None:
    async with tidegate.connect(url) as mq:
        await mq.create_queue(QUEUE)


def verdict_after_a_crash_of_everything(settings: dict[str, str]) -> Verdict:
    with temporary_folder("crash") as folder:
        postgres = EmbeddedPostgres(folder / "data", settings=settings)
        with postgres, clients_in(folder / "histories") as clients:
            # Given confirmed messages that nobody has taken yet
            with joined_node(postgres.url, folder) as node:
                asyncio.run(make_queue(node.address))
                clients.add_producer(
                    "p1", node.address, QUEUE, "--rate", "2000", "--tasks", "50", "--limit", "3000"
                )
                clients.wait_for_confirms(3000)
                clients.finish_producers()
                # When the node and PostgreSQL crash, and both come back
                kill_process(node.pid)
                kill_postgres(postgres.pid)
            while not postgres.ensure_running():
                time.sleep(0.01)
            with joined_node(postgres.url, folder) as node:
                asyncio.run(ensure_queue(node.address))
                clients.add_consumer("c1", node.address, QUEUE)
                clients.drain(3.0)
                clients.finish_consumers()
                stored = [key for key in stored_messages(postgres.url) if key[0] == QUEUE]

        assert clients.failures == []
        verdict = clients.verdict(stored=stored, sole_consumer=[QUEUE])
        print(verdict)
        assert verdict.confirmed == 3000
        return verdict


async def ensure_queue(url: str) -> None:
    """The queue itself may have been forgotten."""
    async with tidegate.connect(url) as mq:
        await mq.create_queue(QUEUE, exist_ok=True)


@pytest.mark.timeout(120)
def test_without_synchronous_commit_a_crash_loses_and_the_checker_says_so() -> None:
    verdict = verdict_after_a_crash_of_everything(FORGETFUL)

    assert verdict.lost > 0
    assert verdict.outcome == "fail"


@pytest.mark.timeout(120)
def test_with_the_settings_we_ship_the_same_crash_loses_nothing() -> None:
    verdict = verdict_after_a_crash_of_everything({})

    assert verdict.outcome == "pass", str(verdict)
