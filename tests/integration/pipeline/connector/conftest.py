"""A node on an embedded PostgreSQL that runs beside the tests, as Spark and as we see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from backing import PostgresBacking, TurnedClock
from pyspark.sql import DataFrame, SparkSession

import tidegate
from tidegate.broker.node import Node
from tidegate.client.blocking import BlockingClient, LoopThread
from tidegate.pipeline import connector


@pytest.fixture(scope="session")
def node_clock() -> TurnedClock:
    """The clock of the node, which tests may turn forward."""
    return TurnedClock()


@pytest.fixture(scope="session")
def spark_node(embedded_url: str, node_clock: TurnedClock) -> Iterator[Node]:
    backing = PostgresBacking("spark", embedded_url)
    thread = LoopThread()
    node = Node(backing.store(), name="spark-node", clock=node_clock)
    thread.wait(node.start())
    yield node
    thread.wait(node.stop())
    thread.stop()


@dataclass
class Queues:
    """A node from Spark's side and from ours."""

    url: str
    spark: SparkSession
    mq: BlockingClient

    def read(self, queue: str, **options: object) -> DataFrame:
        reader = self.spark.read.format("tidegate").option("url", self.url)
        return reader.options(queue=queue, **options).load()

    def read_stream(self, queue: str, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("tidegate").option("url", self.url)
        return reader.options(queue=queue, **options).load()

    def write(self, frame: DataFrame, queue: str, **options: object) -> None:
        writer = frame.write.format("tidegate").mode("append").option("url", self.url)
        writer.options(queue=queue, **options).save()

    def write_stream(
        self, frame: DataFrame, queue: str, checkpoint: str, **options: object
    ) -> None:
        """All that is there now."""
        writer = frame.writeStream.format("tidegate").option("url", self.url)
        writer = writer.options(queue=queue, checkpointLocation=checkpoint, **options)
        writer.trigger(availableNow=True).start().awaitTermination()

    def waiting(self, queue: str) -> int:
        numbers = self.mq.stats(queue).queue(queue)
        assert numbers is not None
        return numbers.waiting

    def payloads(self, queue: str) -> list[bytes]:
        return [message.payload for message in self.mq.browse(queue, limit=1_000_000)]


@pytest.fixture
def queues(spark: SparkSession, spark_node: Node) -> Iterator[Queues]:
    # The Java thread that served the fixture of the session need not be the one of this test.
    connector.register(spark)
    with tidegate.connect(spark_node.address) as mq:
        for known in mq.queues():
            mq.delete_queue(known.name)
        yield Queues(spark_node.address, spark, mq)
