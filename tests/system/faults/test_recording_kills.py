"""A node that records is killed under load: its last seconds are missing, and nothing is broken."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.core.crash import VARIABLE
from tidegate.lab.faults.clients import clients_in
from tidegate.lab.faults.deployment import joined_node
from tidegate.lab.peers.server import free_loopback_ports, temporary_folder
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.telemetry.compaction import run_round
from tidegate.telemetry.housekeeping import Plan
from tidegate.telemetry.lake import Lake

QUEUE = "orders"
RATE_PER_S = 500
INTERVAL_S, FLUSH_S = 0.2, 1.0
# What a busy machine may add to both.
SLACK_S = 3.0


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, Path]]:
    with temporary_folder("recording") as folder, EmbeddedPostgres(folder / "data") as postgres:
        yield postgres.url, folder


async def make_queue(url: str, name: str) -> None:
    async with tidegate.connect(url) as mq:
        await mq.create_queue(name)


def environment(lake: Path) -> dict[str, str]:
    return {
        "TIDEGATE_TELEMETRY__LAKE": str(lake),
        "TIDEGATE_TELEMETRY__INTERVAL": f"{INTERVAL_S}s",
        "TIDEGATE_TELEMETRY__FLUSH": f"{FLUSH_S}s",
    }


def rows_in(lake: Lake, kind: str) -> list[dict[str, Any]]:
    """Every row; a file that cannot be read fails the test."""
    rows = [row for file in lake.files(kind) for row in lake.read(file).to_pylist()]
    return sorted(rows, key=lambda row: row["at"])


def wait_for_rows(lake: Lake, kind: str, count: int) -> None:
    deadline = time.monotonic() + 30.0
    while len(rows_in(lake, kind)) < count:
        assert time.monotonic() < deadline, "nothing was recorded"
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_a_kill_costs_the_last_seconds_of_history_and_breaks_no_file(
    store: tuple[str, Path],
) -> None:
    # Given a node that records, under load
    url, folder = store
    lake = Lake(str(folder / "killed" / "lake"))
    recording = environment(folder / "killed" / "lake")
    (port,) = free_loopback_ports(1)
    with clients_in(folder / "killed") as clients:
        with joined_node(url, folder, port=port, environment=recording) as node:
            asyncio.run(make_queue(node.address, QUEUE))
            clients.add_consumer("c1", node.address, QUEUE)
            clients.add_producer("p1", node.address, QUEUE, "--rate", str(RATE_PER_S))
            clients.wait_for_confirms(2 * RATE_PER_S)
            wait_for_rows(lake, "queue_samples", 15)
            # When it is killed
            node.process.send_signal(signal.SIGKILL)
            killed_at = time.time()
            node.process.wait(10)

        # Then all that is there is whole, and at most the last seconds are missing
        before = rows_in(lake, "queue_samples")
        missing_s = killed_at - before[-1]["at"].timestamp()
        assert missing_s < FLUSH_S + INTERVAL_S + SLACK_S
        for kind in lake.kinds():
            rows_in(lake, kind)

        # And when another one takes its place, which stops in good order
        with joined_node(url, folder, port=port, environment=recording):
            clients.wait_for_confirms(3 * RATE_PER_S)
            clients.finish_producers()
            clients.drain(30.0)
            clients.finish_consumers()
    verdict = clients.verdict(stored=None, sole_consumer=[QUEUE])
    assert verdict.outcome == "pass", str(verdict)

    # Then the sums are those of the clients, but for what was missing
    rows = [row for row in rows_in(lake, "queue_samples") if row["queue"] == QUEUE]
    missing = int((missing_s + 1.0) * RATE_PER_S)
    put, acked = (sum(row[column] for row in rows) for column in ("put", "acked"))
    assert verdict.confirmed - missing <= put <= verdict.put
    assert verdict.confirmed - missing <= acked <= verdict.deliveries
    events = [row["event"] for row in rows_in(lake, "events")]
    assert events.count("join") == 2
    assert events[-1] == "leave"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["before-file-in-place", "after-file-in-place"])
def test_a_node_that_dies_while_it_writes_leaves_no_broken_file(
    store: tuple[str, Path], point: str
) -> None:
    url, folder = store
    where = folder / point / "lake"
    lake = Lake(str(where))
    (port,) = free_loopback_ports(1)
    crashing = environment(where) | {VARIABLE: f"{point}:6"}
    with joined_node(url, folder, port=port, environment=crashing) as node:
        assert node.process.wait(60) == -signal.SIGKILL

    hidden = [file for kind in lake.kinds() for file in lake.files(kind, hidden=True)]
    visible = [file for kind in lake.kinds() for file in lake.files(kind)]
    assert len(hidden) == (point == "before-file-in-place")
    assert len(visible) == (5 if hidden else 6)
    for kind in lake.kinds():
        assert rows_in(lake, kind)

    # Its next life clears up after it.
    writer = f"{socket.gethostname()}-{port}"
    done = run_round(Plan(lake=str(where), writer=writer, run="next", now_s=time.time()))
    assert done.leftovers_deleted == len(hidden)


@pytest.mark.timeout(120)
def test_messages_flow_while_the_lake_cannot_be_written(store: tuple[str, Path]) -> None:
    url, folder = store
    (folder / "full").mkdir()
    where = folder / "full" / "lake"
    where.write_text("in the way")

    async def use(address: str) -> int:
        async with tidegate.connect(address) as mq:
            await mq.create_queue("flowing")
            for number in range(200):
                await mq.put("flowing", b"%d" % number)
            return len([await mq.get("flowing") for _ in range(200)])

    with joined_node(url, folder, environment=environment(where)) as node:
        assert asyncio.run(use(node.address)) == 200
        log = max(folder.glob("node-*.log"), key=lambda path: path.stat().st_mtime)
        deadline = time.monotonic() + 20.0
        while "cannot record to" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert asyncio.run(use_again(node.address)) == 1
    assert log.read_text().count("cannot record to") == 1


async def use_again(address: str) -> int:
    async with tidegate.connect(address) as mq:
        await mq.put("flowing", b"still")
        return len([await mq.get("flowing")])
