"""`spark.readStream`: every message in exactly one batch, whatever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import stream_process
from backing import TurnedClock
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from stream_process import stream_to_folders
from waiting import eventually

import tidegate
from tidegate.broker.node import Node
from tidegate.client.blocking import BlockingClient
from tidegate.core.errors import InvalidValue
from tidegate.pipeline import connector_read
from tidegate.pipeline.connector_read import (
    MESSAGE,
    ConnectorOptions,
    MessagesMissing,
    QueueStreamReader,
    WriteRateLimiter,
)

if TYPE_CHECKING:
    from conftest import Queues


# Each batch is more than one page.
COUNT = 40_000
ALL = ReadAllAvailable()


# The contract with Spark, call by call


class Stream:
    """A reader as the driver uses it, and what its batches hold."""

    def __init__(self, url: str, pace: WriteRateLimiter | None = None, **options: Any) -> None:
        self.reader = QueueStreamReader(ConnectorOptions("orders", url, **options), MESSAGE, pace)

    def payloads(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        found: list[int] = []
        for share in self.reader.partitions(start, end):
            for batch in self.reader.read(share):
                found += [int(payload) for payload in batch["payload"].to_pylist()]
        return found


@pytest.fixture
def mq(spark_node: Node) -> Iterator[BlockingClient]:
    with tidegate.connect(spark_node.address) as mq:
        for known in mq.queues():
            mq.delete_queue(known.name)
        mq.create_queue("orders")
        yield mq


@pytest.fixture
def stream(spark_node: Node) -> Iterator[Stream]:
    stream = Stream(spark_node.address)
    yield stream
    stream.reader.stop()


def put(mq: BlockingClient, *numbers: int, **options: Any) -> list[int]:
    return [mq.put("orders", b"%d" % number, **options) for number in numbers]


def test_a_batch_that_is_planned_again_is_the_same(mq: BlockingClient, stream: Stream) -> None:
    put(mq, *range(10))
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ReadMaxRows(6))
    put(mq, *range(10, 20))

    assert stream.payloads(start, end) == list(range(6))
    assert stream.payloads(start, end) == list(range(6))
    stream.reader.commit(end)
    after = stream.reader.latestOffset(end, ALL)
    assert stream.payloads(end, after) == list(range(6, 20))
    assert stream.reader.partitions(after, after) == []


def test_a_commit_that_was_swallowed_is_made_up_for(
    mq: BlockingClient, stream: Stream, spark_node: Node
) -> None:
    put(mq, *range(10))
    start = stream.reader.initialOffset()
    first = stream.reader.latestOffset(start, ReadMaxRows(4))
    assert stream.payloads(start, first) == [0, 1, 2, 3]
    # In Spark's commit log, and then it was killed.
    stream.reader.stop()
    again = Stream(spark_node.address)

    second = again.reader.latestOffset(first, ReadMaxRows(4))
    assert again.payloads(first, second) == [4, 5, 6, 7]
    again.reader.stop()
    # Killed once more, with the offsets of the second batch written down.
    last = Stream(spark_node.address)
    assert last.payloads(first, second) == [4, 5, 6, 7]
    last.reader.commit(second)
    assert last.payloads(second, last.reader.latestOffset(second, ALL)) == [8, 9]
    assert [message.payload for message in mq.browse("orders")] == [b"8", b"9"]
    last.reader.stop()


def test_late_message_is_in_a_later_batch(
    mq: BlockingClient, stream: Stream, node_clock: TurnedClock
) -> None:
    # Not ready when the first batch is made, however busy the machine is.
    (late,) = put(mq, 1, delay=3600.0)
    (taken,) = put(mq, 2)
    held = mq.get("orders", lease=7200)
    put(mq, 3)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    first = stream.payloads(start, end)
    held.nack(delay=0.0)  # its lower id was somebody else's until now
    node_clock.turn(3600.0)
    eventually(lambda: len(mq.browse("orders")) == 3, "all three are ready")
    stream.reader.commit(end)
    after = stream.reader.latestOffset(end, ALL)

    assert held.message_id == taken > late
    assert first == [3]
    assert stream.payloads(end, after) == [1, 2]
    stream.reader.commit(after)
    assert mq.browse("orders") == []


def test_batch_fails_when_its_messages_were_taken(
    mq: BlockingClient, stream: Stream, spark_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_read, "MISSING_S", 0.0)
    put(mq, 1, 2, 3)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    mq.get("orders")

    with pytest.raises(MessagesMissing, match=r"1 of the 3 messages .*failOnDataLoss"):
        stream.payloads(start, end)
    careless = Stream(spark_node.address, fail_on_data_loss=False)
    assert careless.payloads(start, end) == [2, 3]
    careless.reader.stop()


def test_message_held_at_the_end_of_its_batch_does_not_stop_the_stream(
    mq: BlockingClient, stream: Stream
) -> None:
    mq.put("orders", b"1")
    end = stream.reader.latestOffset(stream.reader.initialOffset(), ReadMaxRows(1))
    assert stream.payloads(stream.reader.initialOffset(), end) == [1]
    # Given a consumer that takes it while the batch is under way, and gives it back afterwards
    message = mq.get("orders", lease=60)
    stream.reader.commit(end)
    message.release()
    mq.put("orders", b"2")

    # Then it is done, and the next batch is another one
    following = stream.reader.latestOffset(end, ReadMaxRows(1))
    assert stream.payloads(end, following) == [2]


def test_a_queue_that_was_made_anew_is_another_one(mq: BlockingClient, stream: Stream) -> None:
    put(mq, 1, 2)
    start = stream.reader.latestOffset(stream.reader.initialOffset(), ALL)
    stream.reader.stop()
    mq.delete_queue("orders")
    mq.create_queue("orders")
    put(mq, 3, 4)

    with pytest.raises(InvalidValue, match="use a new checkpoint"):
        stream.reader.latestOffset(start, ALL)
    assert len(mq.browse("orders")) == 2


def test_addressed_messages_and_paused_queues_are_left_alone(
    mq: BlockingClient, stream: Stream
) -> None:
    put(mq, 1, receiver=mq.client_id)
    put(mq, 2)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    assert stream.payloads(start, end) == [2]
    stream.reader.commit(end)
    put(mq, 3)
    mq.pause("orders")
    assert stream.reader.latestOffset(end, ALL) == end
    mq.resume("orders")
    assert stream.payloads(end, stream.reader.latestOffset(end, ALL)) == [3]


def test_available_now_ends_with_what_was_there(mq: BlockingClient, stream: Stream) -> None:
    put(mq, 1, 2)
    stream.reader.prepareForTriggerAvailableNow()
    put(mq, 3)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    assert stream.payloads(start, end) == [1, 2]
    assert stream.reader.latestOffset(end, ALL) == end


def test_a_rate_bounds_a_batch(mq: BlockingClient, spark_node: Node) -> None:
    """100 a second, on a clock that only the pace itself and this test move."""
    mq.put_many("orders", [b"1"] * 1000)
    now_s = 0.0

    def pass_by(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    pace = WriteRateLimiter(100.0, lambda: now_s, pass_by)
    stream = Stream(spark_node.address, pace, messages_per_second=100.0)
    start = stream.reader.initialOffset()
    sizes = []
    # The first batch waits for a tenth of a second's messages; the others follow 2 s and 1 s later.
    for pause_s in (0.0, 2.0, 1.0):
        pass_by(pause_s)
        end = stream.reader.latestOffset(start, ALL)
        sizes.append(len(stream.payloads(start, end)))
        start = end
    assert sizes == [10, 200, 100]
    assert now_s == pytest.approx(3.1)
    stream.reader.stop()


# With Spark itself


def test_a_stream_takes_what_comes_while_it_runs(queues: Queues, tmp_path: Path) -> None:
    queues.mq.create_queue("orders")
    seen: list[int] = []
    query = (
        queues.read_stream("orders")
        .writeStream.foreachBatch(
            lambda batch, _: seen.extend(int(row.payload) for row in batch.collect())
        )
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    for n in range(3):
        queues.mq.put("orders", b"%d" % n)
        query.processAllAvailable()
    query.stop()
    assert seen == [0, 1, 2]


def killed_while_it_holds(folder: Path, *arguments: str) -> None:
    """Run a driver until it stands in the middle of a batch, and kill it with all it started."""
    driver = subprocess.Popen(
        [sys.executable, stream_process.__file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # What it leaves behind goes with the test.
        env=os.environ | {"TMPDIR": str(folder)},
        text=True,
        start_new_session=True,
    )
    try:
        assert driver.stdout is not None
        assert "holding\n" in iter(driver.stdout.readline, "")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()


def ids_in(folder: Path) -> list[int]:
    return sorted(pq.read_table(folder, columns=["id"])["id"].to_pylist())


# Each life of a driver starts a Spark of its own. One is killed while half of a batch is written,
# the other one after the batch is written and before Spark knows it.
HALF, WHOLE = ("1", "half"), ("4", "whole")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "lives",
    [
        pytest.param((HALF,), id="in a batch"),
        pytest.param((HALF, WHOLE), id="in and after a batch", marks=pytest.mark.only_with_all),
    ],
)
def test_a_killed_driver_loses_nothing_and_repeats_nothing(
    queues: Queues, tmp_path: Path, lives: Sequence[tuple[str, str]]
) -> None:
    queues.mq.create_queue("orders")
    put_ids = queues.mq.put_many("orders", [b"%d" % n for n in range(COUNT)])
    output, checkpoint = tmp_path / "output", tmp_path / "checkpoint"
    where = (queues.url, "orders", str(checkpoint), str(output))

    held = {}
    for number, extent in lives:
        killed_while_it_holds(tmp_path, *where, number, extent)
        held[extent] = ids_in(output / f"batch={number}")
    stream_to_folders(queues.spark, *where)

    batches = {folder.name: ids_in(folder) for folder in output.glob("batch=*")}
    assert set(held["half"]) < set(batches["batch=1"])
    assert held.get("whole", batches["batch=4"]) == batches["batch=4"]
    assert sorted(each for ids in batches.values() for each in ids) == put_ids
    assert queues.waiting("orders") == 0
