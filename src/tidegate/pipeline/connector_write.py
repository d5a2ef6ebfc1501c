"""Rows on their way into a queue: check their columns, and convert each row to a put."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tidegate.client.options import PutOptions
from tidegate.core.errors import InvalidValue, RequiredParameterMissing

_TEXT_MAP = MapType(StringType(), StringType())
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
# The columns that a put may have, and their types.
_KINDS: dict[str, tuple[type[DataType], ...]] = {
    "payload": (BinaryType, StringType),
    "content_type": (StringType,),
    "headers": (MapType,),
    "priority": _WHOLE,
    "receiver": _WHOLE,
    "context": _WHOLE,
    "group": (StringType,),
    "tenant": (StringType,),
    "deliver_at": (TimestampType,),
    "expires_at": (TimestampType,),
}
KEY_KINDS = (StringType, *_WHOLE)


class Put(msgspec.Struct, array_like=True, frozen=True):
    """A message to put, and the key of its row if there is a key column."""

    payload: bytes
    # Without nulls, so that a column of nulls does not change the digest of the content.
    options: dict[str, Any]
    key: str | None = None

    def content(self) -> bytes:
        """Return bytes that are equal for equal messages and differ for different ones."""
        return msgspec.msgpack.encode((self.payload, self.options), order="deterministic")

    def put_options(self, dedup_id: str) -> PutOptions:
        options: PutOptions = {**self.options, "dedup_id": dedup_id}  # type: ignore[typeddict-item]
        return options


def check_columns(schema: StructType, key: str | None) -> None:
    """Raise unless there is a payload, and every column is part of a message or is the key."""
    names = schema.fieldNames()
    if "payload" not in names:
        raise RequiredParameterMissing(
            f"a message needs a column 'payload', binary or string; there are {', '.join(names)}"
        )
    if key is not None and key not in names:
        raise InvalidValue(f"option 'key' names no column: {key!r} is none of {', '.join(names)}")
    for each in schema:
        if each.name == key:
            _check_kind(each.name, each.dataType, KEY_KINDS)
        elif each.name not in _KINDS:
            raise InvalidValue(
                f"column {each.name!r} is no part of a message, which has {', '.join(_KINDS)}: "
                'select what is to be sent, or name it by option("key")'
            )
        if each.name in _KINDS:
            _check_kind(each.name, each.dataType, _KINDS[each.name])
    headers = schema["headers"].dataType if "headers" in names else _TEXT_MAP
    assert isinstance(headers, MapType)
    if (type(headers.keyType), type(headers.valueType)) != (StringType, StringType):
        raise InvalidValue(f"headers are map<string,string>, not {headers.simpleString()}")


def _check_kind(name: str, kind: DataType, wanted: tuple[type[DataType], ...]) -> None:
    if not isinstance(kind, wanted):
        names = [_TEXT_MAP if each is MapType else each() for each in wanted]
        texts = " or ".join(each.simpleString() for each in names)
        raise InvalidValue(f"column {name!r} is {kind.simpleString()}, not {texts}: cast it")


def puts_of(batch: pa.RecordBatch, key: str | None) -> Iterator[Put]:
    """Yield a put for each row of an Arrow batch."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    keys = columns[key] if key is not None else [None] * batch.num_rows
    payloads = columns.pop("payload")
    # If the key column is also part of the message, its value is sent too.
    parts = [(name, values) for name, values in columns.items() if name in _KINDS]
    for index, payload in enumerate(payloads):
        if payload is None:
            raise InvalidValue("a payload is null: leave such rows out, or send b''")
        options = {
            name: _value(name, value)
            for name, values in parts
            if (value := values[index]) is not None
        }
        if isinstance(payload, str):
            payload = payload.encode()
        yield Put(payload, options, None if key is None else _key(key, keys[index]))


def _value(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    if name == "headers":
        headers = dict(value)
        if None in headers.values():
            raise InvalidValue("a header is null: leave it out")
        return headers
    return value


def _key(column: str, value: Any) -> str:
    if value is None:
        raise InvalidValue(f"a row has no key: column {column!r} is null")
    return str(value)
