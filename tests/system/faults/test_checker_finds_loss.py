"""The checker on a system that really loses: it must say so, or its passes mean nothing."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from free_ports import free_ports
from waiting import eventually

import tidegate
from tidegate.demo.evidence import stored_messages
from tidegate.demo.history import CheckResult, MessageKey
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate_lab.faults.clients import clients_in
from tidegate_lab.faults.deployment import joined_node, kill_postgres, kill_process
from tidegate_lab.peers.servers import temporary_folder

QUEUE = "orders"
# A commit is reported before its log leaves shared memory, and stays there: nobody writes it.
FORGETFUL = {
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
    "wal_buffers": "64MB",
}


async def make_queue(url: str) -> None:
    async with tidegate.connect(url) as mq:
        await mq.create_queue(QUEUE)


def stop_the_log_writer(postgres: EmbeddedPostgres) -> None:
    """Only a commit that waits for the log writes it from now on: no pause lets it catch up."""
    children = psutil.Process(postgres.pid).children()
    (writer,) = (child for child in children if "walwriter" in " ".join(child.cmdline()))
    writer.suspend()


def verdict_after_a_crash_of_everything(settings: dict[str, str]) -> CheckResult:
    port = free_ports()
    with temporary_folder("crash") as folder:
        postgres = EmbeddedPostgres(folder / "data", settings=settings)
        with postgres, clients_in(folder / "histories") as clients:
            # Given confirmed messages that nobody has taken yet
            with joined_node(postgres.url, folder, port=port) as node:
                asyncio.run(make_queue(node.address))
                stop_the_log_writer(postgres)
                clients.add_producer(
                    "p1", node.address, QUEUE, "--rate", "2000", "--tasks", "50", "--limit", "3000"
                )
                clients.wait_for_confirms(3000)
                clients.finish_producers()
                # When the node and PostgreSQL crash, and both come back
                kill_process(node.pid)
                kill_postgres(postgres.pid)
            eventually(postgres.ensure_running, "the killed PostgreSQL is started again")
            with joined_node(postgres.url, folder, port=port) as node:
                asyncio.run(ensure_queue(node.address))
                clients.add_consumer("c1", node.address, QUEUE)
                # What was lost is never drained, so the store tells when all that is left is gone.
                eventually(lambda: not stored_in(postgres), "the consumer has taken all there is")
                clients.finish_consumers()
                stored = stored_in(postgres)

        assert clients.failures == []
        verdict = clients.verdict(stored=stored, sole_consumer=[QUEUE])
        print(verdict)
        assert verdict.confirmed == 3000
        return verdict


def stored_in(postgres: EmbeddedPostgres) -> list[MessageKey]:
    return [key for key in stored_messages(postgres.url) if key[0] == QUEUE]


async def ensure_queue(url: str) -> None:
    """The queue itself may have been forgotten."""
    async with tidegate.connect(url) as mq:
        await mq.create_queue(QUEUE, exist_ok=True)


@pytest.mark.timeout(300)
def test_without_synchronous_commit_a_crash_loses_and_the_checker_says_so() -> None:
    verdict = verdict_after_a_crash_of_everything(FORGETFUL)

    assert verdict.lost > 0
    assert verdict.outcome == "fail"


@pytest.mark.timeout(300)
def test_with_the_settings_we_ship_the_same_crash_loses_nothing() -> None:
    verdict = verdict_after_a_crash_of_everything({})

    assert verdict.outcome == "pass", str(verdict)
