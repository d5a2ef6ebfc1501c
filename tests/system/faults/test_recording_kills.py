"""A node that records is killed under load: its last seconds are missing, and nothing is broken."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_ports
from waiting import LIMIT_S, eventually

import tidegate
from tidegate.core.runtime import CRASH_VARIABLE
from tidegate.demo.history import read_history
from tidegate.telemetry.compaction import run_round
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import CompactionPlan
from tidegate_lab.faults.clients import clients_in
from tidegate_lab.faults.deployment import joined_node

QUEUE = "orders"
RATE_PER_S, TASKS, PREFETCH = 500, 50, 200
INTERVAL_S = 0.2


async def make_queue(url: str, name: str) -> None:
    async with tidegate.connect(url) as mq:
        await mq.create_queue(name)


def environment(lake: Path) -> dict[str, str]:
    return {
        "TIDEGATE_TELEMETRY__LAKE": str(lake),
        "TIDEGATE_TELEMETRY__INTERVAL": f"{INTERVAL_S}s",
        "TIDEGATE_TELEMETRY__FLUSH": "500ms",
    }


def rows_in(lake: Lake, kind: str) -> list[dict[str, Any]]:
    """Every row; a file that cannot be read fails the test."""
    rows = [row for file in lake.files(kind) for row in lake.read(file).to_pylist()]
    return sorted(rows, key=lambda row: row["at"])


def happened(histories: Path, op: str, phase: str, since: float, until: float) -> int:
    """How often the clients saw that between two moments of the monotonic clock."""
    return sum(
        event.op == op and event.phase == phase and since < event.t < until
        for path in histories.glob("*.history")
        for event in read_history(path)
    )


@pytest.mark.timeout(300)
def test_a_kill_costs_the_last_seconds_of_history_and_breaks_no_file(
    store: tuple[str, Path],
) -> None:
    # Given a node that records, under load
    url, folder = store
    lake = Lake(str(folder / "killed" / "lake"))
    recording = environment(folder / "killed" / "lake")
    port = free_ports()
    with clients_in(folder / "killed") as clients:
        with joined_node(url, folder, port=port, environment=recording) as node:
            asyncio.run(make_queue(node.address, QUEUE))
            clients.add_consumer("c1", node.address, QUEUE, "--prefetch", str(PREFETCH))
            load = ("--rate", str(RATE_PER_S), "--tasks", str(TASKS))
            clients.add_producer("p1", node.address, QUEUE, *load)
            clients.wait_for_confirms(2 * RATE_PER_S)
            eventually(lambda: len(rows_in(lake, "queue_samples")) >= 15, "samples are recorded")
            # When it is killed
            node.process.send_signal(signal.SIGKILL)
            killed_s = time.time()
            node.process.wait(LIMIT_S)

        # Then all that is there is whole
        last_s = rows_in(lake, "queue_samples")[-1]["at"].timestamp()
        print(f"the last {killed_s - last_s:.2f} s are missing")
        for kind in lake.kinds():
            rows_in(lake, kind)

        # And when another one takes its place, which stops in good order
        with joined_node(url, folder, port=port, environment=recording):
            second_at = time.monotonic()
            clients.wait_for_confirms(3 * RATE_PER_S)
            clients.finish_producers()
            clients.drain(LIMIT_S)
            clients.finish_consumers()
    verdict = clients.verdict(stored=None, sole_consumer=[QUEUE])
    assert verdict.outcome == "pass", str(verdict)

    # Then the sums are those of the clients, but for what happened after the last sample of the
    # first one: what they saw from then on, and what was on its way to it
    rows = [row for row in rows_in(lake, "queue_samples") if row["queue"] == QUEUE]
    put, acked = (sum(row[column] for row in rows) for column in ("put", "acked"))
    sampled_at = time.monotonic() - (time.time() - last_s) - INTERVAL_S
    unseen = partial(happened, folder / "killed", since=sampled_at, until=second_at)
    puts, acks = unseen("put", "ok") + TASKS, unseen("ack", "invoke") + PREFETCH
    assert verdict.confirmed - puts <= put <= verdict.put
    assert verdict.confirmed - acks <= acked <= verdict.deliveries
    events = [row["event"] for row in rows_in(lake, "events")]
    assert events.count("join") == 2
    assert events[-1] == "leave"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["before-file-in-place", "after-file-in-place"])
def test_a_node_that_dies_while_it_writes_leaves_no_broken_file(
    store: tuple[str, Path], point: str
) -> None:
    url, folder = store
    where = folder / point / "lake"
    lake = Lake(str(where))
    port = free_ports()
    crashing = environment(where) | {CRASH_VARIABLE: f"{point}:6"}
    with joined_node(url, folder, port=port, environment=crashing) as node:
        assert node.process.wait(LIMIT_S) == -signal.SIGKILL

    hidden = [file for kind in lake.kinds() for file in lake.files(kind, hidden=True)]
    visible = [file for kind in lake.kinds() for file in lake.files(kind)]
    assert len(hidden) == (point == "before-file-in-place")
    assert len(visible) == (5 if hidden else 6)
    for kind in lake.kinds():
        assert rows_in(lake, kind)

    # Its next life clears up after it.
    writer = f"{socket.gethostname()}-{port}"
    done = run_round(CompactionPlan(lake=str(where), writer=writer, run="next", now_s=time.time()))
    assert done.leftovers_deleted == len(hidden)


@pytest.mark.timeout(300)
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
        eventually(lambda: "cannot record to" in log.read_text(), "the node says so")
        assert asyncio.run(use_again(node.address)) == 1
    assert log.read_text().count("cannot record to") == 1


async def use_again(address: str) -> int:
    async with tidegate.connect(address) as mq:
        await mq.put("flowing", b"still")
        return len([await mq.get("flowing")])
