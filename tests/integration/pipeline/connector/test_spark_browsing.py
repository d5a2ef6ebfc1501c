"""`spark.read`: what waits is seen, and stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import col

if TYPE_CHECKING:
    from conftest import Queues


def test_a_queue_is_a_table_that_nobody_takes_from(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    plain = queues.mq.put("orders", b"\x00plain")
    rich = queues.mq.put(
        "orders",
        b"{}",
        priority=9,
        content_type="application/json",
        headers={"region": "eu"},
        group="ann",
        tenant="acme",
        dedup_id="o-1",
        context=77,
        ttl=3600,
        receiver=queues.mq.client_id,
    )

    first, second = queues.read("orders").orderBy("id").collect()

    assert (first.id, bytes(first.payload), first.priority) == (plain, b"\x00plain", 5)
    assert first.sender == queues.mq.client_id
    assert (first.content_type, first.headers, first.delivery_count) == (None, {}, 0)
    assert (first.group, first.tenant, first.expires_at, first.receiver) == (None,) * 4
    (stored, _) = queues.mq.browse("orders")
    assert first.put_at.timestamp() == pytest.approx(stored.arrived_at)
    assert (second.id, bytes(second.payload), second.priority) == (rich, b"{}", 9)
    assert (second.content_type, second.headers) == ("application/json", {"region": "eu"})
    assert (second.group, second.tenant, second.dedup_id) == ("ann", "acme", "o-1")
    assert (second.context, second.receiver) == (77, queues.mq.client_id)
    assert second.expires_at.timestamp() - second.put_at.timestamp() == pytest.approx(3600)
    assert queues.waiting("orders") == 2


def test_more_than_a_page_is_seen_once_each_and_a_limit_holds(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    queues.mq.put_many("orders", [b"%d" % n for n in range(12_345)])

    frame = queues.read("orders").select(col("payload").cast("string").cast("int").alias("n"))

    assert frame.distinct().count() == frame.count() == 12_345
    assert queues.read("orders", limit=7000).count() == 7000
    assert queues.read("orders").filter("id <= 3").count() == 3


def test_an_empty_queue_is_an_empty_table(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    assert queues.read("orders").collect() == []


def test_columns_may_be_named_by_a_schema(queues: Queues) -> None:
    queues.mq.create_queue("orders")
    queues.mq.put("orders", b"1")
    reader = queues.spark.read.format("tidegate").option("url", queues.url)

    (row,) = (
        reader.option("queue", "orders").schema("payload binary, tenant string").load().collect()
    )

    assert row.asDict() == {"payload": b"1", "tenant": None}
    with pytest.raises(Exception, match="no column 'colour'; a message has id, payload"):
        reader.schema("colour string").load().collect()
    with pytest.raises(Exception, match="column 'payload' is binary, not string"):
        reader.schema("payload string").load().collect()
