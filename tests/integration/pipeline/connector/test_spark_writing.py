"""`df.write` and `writeStream`: what is written again is stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.functions import rand
from waiting import eventually

import tidegate
from tidegate.pipeline import connector

if TYPE_CHECKING:
    from conftest import Queues


FOR_STREAMS = tidegate.QueuePolicy(dedup_window_s=7200)


def lines(queues: Queues, rows: list[str], partitions: int) -> DataFrame:
    return queues.spark.createDataFrame([(row,) for row in rows], "payload string").repartition(
        partitions, rand()
    )


def test_rows_become_messages(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    frame = queues.spark.sql(
        """select cast('x' as binary) payload, 'text/plain' content_type, map('a', '1') headers,
           7 priority, 'ann' `group`, 'acme' tenant, cast(12 as bigint) context,
           timestamp '2999-01-01 00:00:00+00:00' expires_at"""
    )
    queues.write(frame, "orders")

    (message,) = queues.mq.browse("orders")
    assert (message.payload, message.content_type, message.headers) == (
        *(b"x", "text/plain"),
        {"a": "1"},
    )
    assert (message.priority, message.group, message.tenant) == (7, "ann", "acme")
    assert (message.context, message.expires_at) == (12, 32_472_144_000.0)


def test_of_rows_with_the_same_key_the_first_is_stored(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    frame = queues.spark.range(20).selectExpr("cast(id as string) payload", "id % 5 as number")
    for _ in range(2):
        queues.write(frame, "orders", key="number")
    assert queues.waiting("orders") == 5
    assert sorted(str(m.dedup_id) for m in queues.mq.browse("orders")) == ["0", "1", "2", "3", "4"]


def test_equal_rows_are_all_stored_and_a_write_of_one_name_once(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    rows = ["ping"] * 40 + ["pong"] * 7 + [str(n) for n in range(30)]
    for partitions in (3, 1, 5):
        queues.write(lines(queues, rows, partitions), "orders", writeId="monday")
    stored = Counter(payload.decode() for payload in queues.payloads("orders"))
    assert stored == Counter(rows)
    queues.write(lines(queues, rows, 2), "orders")
    assert queues.waiting("orders") == 2 * len(rows)


def failing_once(url: str) -> Callable[[Iterable[int]], Iterator[tuple[str]]]:
    """The first try dies when some of it is stored; the second gives rows the other way."""

    def rows(numbers: Iterable[int]) -> Iterator[tuple[str]]:
        context = TaskContext.get()
        assert context is not None
        is_first = context.attemptNumber() == 0
        # Long, so that no buffer holds them back.
        yield from ((f"{n % 40_000:0200}",) for n in (numbers if is_first else [*numbers][::-1]))
        if is_first:
            with tidegate.connect(url) as mq:
                eventually(lambda: mq.stats("orders").queue("orders").waiting, "some are stored")
            raise RuntimeError("out of luck")

    return rows


def test_a_task_that_is_tried_again_stores_nothing_twice(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    rows = queues.spark.sparkContext.parallelize(range(50_000), 2)
    frame = queues.spark.createDataFrame(
        rows.mapPartitions(failing_once(queues.url)), "payload string"
    )
    queues.write(frame, "orders")

    numbers = queues.mq.stats("orders").queue("orders")
    assert numbers is not None
    assert numbers.deduplicated > 0  # or nothing was put before the failure
    stored = Counter(int(payload) for payload in queues.payloads("orders"))
    assert stored == Counter(n % 40_000 for n in range(50_000))


def test_a_batch_of_a_stream_that_is_written_again_is_stored_once(
    queues: Queues, tmp_path: Path
) -> None:
    queues.mq.create_queue("orders", policy=FOR_STREAMS)
    folder, checkpoint = tmp_path / "input", tmp_path / "checkpoint"
    folder.mkdir()
    rows = ["ping", *(f"{n}" for n in range(500)), "ping"]
    for name in ("a", "b", "c"):
        (folder / name).write_text("\n".join(rows))

    def run(partitions: int) -> None:
        source = queues.spark.readStream.text(str(folder)).withColumnRenamed("value", "payload")
        queues.write_stream(source.repartition(partitions, rand()), "orders", str(checkpoint))

    run(3)
    stored = Counter(payload.decode() for payload in queues.payloads("orders"))
    # As if it had been killed before Spark noted that the batch is done.
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()
    run(2)

    assert stored == Counter(rows * 3)
    assert queues.waiting("orders") == 3 * len(rows)
    numbers = queues.mq.stats("orders").queue("orders")
    assert numbers is not None
    assert numbers.deduplicated >= len(stored)
    # A new batch with the same rows is new.
    (folder / "d").write_text("\n".join(rows))
    run(2)
    assert queues.waiting("orders") == 4 * len(rows)


def test_a_queue_that_forgets_too_soon_is_refused(queues: Queues, tmp_path: Path) -> None:
    queues.mq.create_queue("orders")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "a").write_text("1\n2")
    source = queues.spark.readStream.text(str(tmp_path / "input"))
    source = source.withColumnRenamed("value", "payload")
    with pytest.raises(Exception, match=r"remembers dedup ids for 300 s.*dedup_window=3600s"):
        queues.write_stream(source, "orders", str(tmp_path / "checkpoint"))
    queues.write_stream(source, "orders", str(tmp_path / "checkpoint"), dedupSeconds=300)
    assert sorted(queues.payloads("orders")) == [b"1", b"2"]


def test_prepared_rows_are_the_same_with_equal_ones_together(queues: Queues) -> None:
    rows = ["a", "b", "c"] * 20
    frame = connector.prepared(lines(queues, rows, 4), 3)
    parts = [{row.payload for row in part} for part in frame.rdd.glom().collect()]
    assert Counter(row.payload for row in frame.collect()) == Counter(rows)
    assert sum(map(len, parts)) == 3


def test_stream_copies_one_queue_into_another(queues: Queues, tmp_path: Path) -> None:
    queues.mq.create_queue("orders")
    queues.mq.create_queue("shipped", policy=FOR_STREAMS)
    queues.mq.put_many("orders", [b"%d" % n for n in range(1000)])
    source = queues.read_stream("orders", messagesPerBatch=400).select("payload", "id")
    queues.write_stream(source, "shipped", str(tmp_path), key="id")
    assert sorted(map(int, queues.payloads("shipped"))) == list(range(1000))
    assert queues.waiting("orders") == 0
