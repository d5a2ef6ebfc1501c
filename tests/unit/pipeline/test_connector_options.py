"""What the connector refuses before it asks a node: wrong options, columns and rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType

from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.pipeline import connector_read as o
from tidegate.pipeline.connector import QueueSource
from tidegate.pipeline.connector_write import puts_of

CANARY = "canary-6c1f"
TEXT, WHOLE = StringType(), IntegerType()


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
    source = QueueSource({"queue": "orders", **wrong})
    with pytest.raises(InvalidValue, match=sentence):
        source.streamReader(source.schema())


def test_a_read_that_is_limited_to_no_number_is_refused() -> None:
    source = QueueSource({"queue": "orders", "limit": "all"})
    with pytest.raises(InvalidValue, match="'limit' is a whole number from 1, not 'all'"):
        source.reader(source.schema())


def test_options_become_what_they_say() -> None:
    read = o.parse_options(
        {"queue": "orders", "limit": "5", "user": "ann", "password": CANARY}, o.READ, ""
    )
    assert (read.queue, read.limit, read.patience_s, read.fail_on_data_loss) == (
        *("orders", 5, o.PATIENCE_S),
        True,
    )
    assert CANARY not in repr(read)


@pytest.mark.parametrize(
    ("columns", "key", "sentence"),
    [
        ({"n": WHOLE}, None, "needs a column 'payload'"),
        ({"payload": TEXT, "n": WHOLE}, None, "column 'n' is no part of a message"),
        ({"payload": WHOLE}, None, "column 'payload' is int, not binary or string: cast it"),
        (
            {"payload": TEXT, "headers": MapType(WHOLE, WHOLE)},
            None,
            "headers are map<string,string>",
        ),
        (
            {"payload": TEXT, "order_id": TEXT},
            "number",
            "'key' names no column: 'number' is none of payload",
        ),
    ],
)
def test_columns_that_are_no_message_are_refused(
    columns: dict[str, object], key: str | None, sentence: str
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    source = QueueSource({"queue": "orders"} | ({} if key is None else {"key": key}))
    with pytest.raises(TidegateError, match=sentence):
        source.writer(schema, overwrite=False)


@pytest.mark.parametrize(
    ("column", "key", "sentence"),
    [("payload", None, "a payload is null"), ("order_id", "order_id", "column 'order_id' is null")],
)
def test_a_row_without_a_payload_or_a_key_is_refused(
    column: str, key: str | None, sentence: str
) -> None:
    row = {"payload": "x", "order_id": "7", column: None}
    with pytest.raises(InvalidValue, match=sentence):
        list(puts_of(pa.RecordBatch.from_pylist([row]), key))
