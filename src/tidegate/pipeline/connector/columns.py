"""The columns in which a reader returns a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.client.blocking import BlockingMessage
from tidegate.core.errors import InvalidValue

_HEADERS = MapType(StringType(), StringType(), valueContainsNull=False)

MESSAGE = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
        StructField("content_type", StringType()),
        StructField("headers", _HEADERS, nullable=False),
        StructField("priority", IntegerType(), nullable=False),
        StructField("sender", LongType(), nullable=False),
        StructField("receiver", LongType()),
        StructField("context", LongType()),
        StructField("put_at", TimestampType(), nullable=False),
        StructField("expires_at", TimestampType()),
        StructField("delivery_count", IntegerType(), nullable=False),
        StructField("group", StringType()),
        StructField("tenant", StringType()),
        StructField("dedup_id", StringType()),
    ]
)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


_VALUES: dict[str, Callable[[BlockingMessage], Any]] = {
    "id": lambda message: message.message_id,
    "payload": lambda message: message.payload,
    "content_type": lambda message: message.content_type,
    "headers": lambda message: list(message.headers.items()),
    "priority": lambda message: message.priority,
    "sender": lambda message: message.sender,
    "receiver": lambda message: message.receiver,
    "context": lambda message: message.context,
    "put_at": lambda message: _time(message.arrived_at),
    "expires_at": lambda message: _time(message.expires_at),
    "delivery_count": lambda message: message.delivery_count,
    "group": lambda message: message.group,
    "tenant": lambda message: message.tenant,
    "dedup_id": lambda message: message.dedup_id,
}


def check_schema(schema: StructType) -> None:
    """Raise `InvalidValue` if a schema has columns that a message lacks, or other types.

    Columns may be left out.
    """
    known = {each.name: each for each in MESSAGE}
    for each in schema:
        if each.name not in known:
            raise InvalidValue(f"no column {each.name!r}; a message has {', '.join(known)}")
        if each.dataType != known[each.name].dataType:
            wanted = known[each.name].dataType.simpleString()
            raise InvalidValue(
                f"column {each.name!r} is {wanted}, not {each.dataType.simpleString()}: load it "
                "without a schema, and cast"
            )


def record_batch(messages: Sequence[BlockingMessage], schema: StructType) -> pa.RecordBatch:
    """Convert messages to an Arrow batch with the columns of the schema."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pa.array(map(_VALUES[each.name], messages), type=each.type, size=len(messages))
        for each in arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
