"""Wrong options get a sentence, and a password is never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tidegate.core.errors import InvalidValue
from tidegate.pipeline.connector import options as o

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Queues

CANARY = "canary-6c1f"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"queue": ""}, "name a queue"),
        ({"colour": "red"}, "no option 'colour'; a stream has url, queue"),
        ({"limit": "5"}, "'limit' is not for a stream"),
        ({"path": "/tmp"}, "take no path"),
        ({"messagesPerBatch": "0"}, "'messagesPerBatch' is a whole number from 1, not '0'"),
        ({"messagesPerBatch": "1.5"}, "a whole number from 1, not '1.5'"),
        ({"messagesPerSecond": "fast"}, "'messagesPerSecond' is a number above 0, not 'fast'"),
        ({"messagesPerSecond": "nan"}, "a number above 0, not 'nan'"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss' is true or false, not 'maybe'"),
        ({"url": "http://here"}, "tidegate://"),
        ({"password": "x"}, "a password without a user"),
        ({"caFile": "/nowhere"}, "ca_file= is for TLS"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        o.parse({"queue": "orders", **wrong}, o.READ_STREAM, "a stream")


def test_options_become_what_they_say() -> None:
    read = o.parse({"queue": "orders", "limit": "5", "user": "ann", "password": CANARY}, o.READ, "")
    assert (read.queue, read.limit, read.patience_s, read.fail_on_data_loss) == (
        *("orders", 5, o.PATIENCE_S),
        True,
    )
    assert CANARY not in repr(read)


def test_what_is_wrong_comes_through_spark(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    with pytest.raises(Exception, match="no option 'colour'"):
        queues.read("orders", colour="red").collect()
    with pytest.raises(Exception, match="'limit' is a whole number from 1, not 'all'"):
        queues.read("orders", limit="all").collect()
    with pytest.raises(Exception, match="no queue named 'nowhere': create it first"):
        queues.read("nowhere").collect()
    frame = queues.spark.createDataFrame([(b"1",)], "payload binary").coalesce(1)
    with pytest.raises(Exception, match=r"queue 'nowhere' at .*: no queue named 'nowhere'"):
        queues.write(frame, "nowhere")
    with pytest.raises(Exception, match="a queue is not overwritten"):
        frame.write.format("tidegate").mode("overwrite").option("queue", "orders").save()


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        ("select 1 as n", "needs a column 'payload'"),
        ("select 'x' as payload, 1 as n", "column 'n' is no part of a message"),
        ("select 1 as payload", "column 'payload' is int, not binary or string: cast it"),
        ("select 'x' as payload, map(1, 2) as headers", "headers are map<string,string>"),
        ("select 'x' as payload, 99 as priority", "priority runs from 1"),
        ("select cast(null as string) as payload", "a payload is null"),
    ],
)
def test_rows_that_are_no_messages_are_refused(queues: Queues, frame: str, sentence: str) -> None:
    queues.mq.create_queue("orders")
    with pytest.raises(Exception, match=sentence):
        queues.write(queues.spark.sql(frame), "orders")
    assert queues.waiting("orders") == 0


def test_keys_that_are_none_are_refused(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    frame = queues.spark.sql("select 'x' as payload, cast(null as string) as order_id")
    with pytest.raises(Exception, match="column 'order_id' is null"):
        queues.write(frame, "orders", key="order_id")
    with pytest.raises(Exception, match="'key' names no column: 'number' is none of payload"):
        queues.write(frame, "orders", key="number")


def test_a_password_is_shown_in_no_plan_and_no_error(
    queues: Queues, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queues.mq.create_queue("orders")
    with_user: dict[str, Any] = {"user": "ann", "password": CANARY}
    shown: list[str] = []
    address = queues.url.removeprefix("tidegate://")
    for url, options in ((queues.url, with_user), (f"tidegate://ann:{CANARY}@{address}", {})):
        reader = queues.spark.read.format("tidegate").options(url=url, queue="orders", **options)
        frame = reader.load()
        frame.explain(extended=True)
        shown.append(frame._jdf.queryExecution().toString())
        with pytest.raises(Exception, match="password is wrong") as failure:
            frame.collect()
        shown.append(str(failure.value))
    writer = queues.spark.sql("select 'x' as payload").write.format("tidegate").mode("append")
    with pytest.raises(Exception, match="password is wrong") as failure:
        writer.options(url=queues.url, queue="orders", **with_user).save()
    shown.append(str(failure.value))
    stream = queues.spark.readStream.format("tidegate")
    query = (
        stream.options(url=queues.url, queue="orders", **with_user)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(Exception, match="password is wrong") as failure:
        query.awaitTermination()
    shown += [str(failure.value), str(query.lastProgress), str(query.status)]
    shown += capsys.readouterr()
    assert not [text for text in shown if CANARY in text]
