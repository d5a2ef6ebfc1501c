"""What is wrong comes through Spark in a sentence, and a password is never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tidegate.broker.node import Node
from tidegate.core.errors import QueueNotExisting
from tidegate.pipeline.connector_read import MESSAGE, ConnectorOptions, QueueReader
from tidegate.pipeline.connector_write import QueueWriter

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Queues

CANARY = "canary-6c1f"


def test_spark_shows_errors_of_options(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    with pytest.raises(Exception, match="no option 'colour'"):
        queues.read("orders", colour="red").collect()
    frame = queues.spark.sql("select 'x' as payload, 99 as priority")
    with pytest.raises(Exception, match="a queue is not overwritten"):
        frame.write.format("tidegate").mode("overwrite").option("queue", "orders").save()
    with pytest.raises(Exception, match=r"queue 'orders' at .*priority runs from 1"):
        queues.write(frame, "orders")
    assert queues.waiting("orders") == 0


def test_a_queue_that_is_not_there_is_named(spark_node: Node) -> None:
    nowhere = ConnectorOptions("nowhere", spark_node.address)
    with pytest.raises(QueueNotExisting, match="no queue named 'nowhere': create it first"):
        QueueReader(nowhere, MESSAGE).partitions()
    writer = QueueWriter(nowhere, StructType([StructField("payload", StringType())]))
    with pytest.raises(QueueNotExisting, match=r"queue 'nowhere' at .*: no queue named 'nowhere'"):
        writer.write(iter([]))


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
