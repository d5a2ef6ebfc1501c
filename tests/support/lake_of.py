"""A lake with the rows that a test names; columns that it does not name get harmless values."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import MapType

from tidegate.pipeline.lake import spark_schema
from tidegate.telemetry.schemas import RowKind

# In the middle of an hour, so that rows around it share a folder.
NOON = datetime(2026, 3, 14, 12, 30, tzinfo=UTC)


class LakeOf:
    """Writes files as a recorder does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def write(
        self,
        kind: RowKind,
        rows: Iterable[Mapping[str, Any]],
        *,
        file_id: str | None = None,
        partition: datetime | None = None,
        metadata: Mapping[bytes, bytes] | None = None,
        schema: pa.Schema | None = None,
    ) -> Path:
        """One file, in the folder of its first row's hour."""
        columns = schema or kind.columns
        complete = [row_of(kind, **row) for row in rows]
        hour = partition or (complete[0]["at"] if complete else NOON)
        folder = self.folder / kind.name / hour.strftime("date=%Y-%m-%d/hour=%H")
        folder.mkdir(parents=True, exist_ok=True)
        file_id = file_id or uuid.uuid4().hex
        says = kind.file_metadata(file_id) | dict(metadata or {})
        table = pa.Table.from_pylist(complete, schema=columns).replace_schema_metadata(says)
        path = folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(table, path)
        return path


def frame_of(spark: SparkSession, kind: RowKind, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """The same rows without a lake."""
    schema = spark_schema(kind)
    complete = [row_of(kind, **row) for row in rows]
    # A map is a list of pairs to Arrow, and a dict to Spark.
    maps = {field.name for field in schema if isinstance(field.dataType, MapType)}
    tuples = [
        tuple(dict(row[name]) if name in maps else row[name] for name in schema.names)
        for row in complete
    ]
    return spark.createDataFrame(tuples, schema)


def row_of(kind: RowKind, **given: Any) -> dict[str, Any]:
    unknown = set(given) - set(kind.columns.names)
    assert not unknown, f"{kind.name} has no {unknown}"
    return {field.name: given.get(field.name, _harmless(field)) for field in kind.columns}


def _harmless(field: pa.Field) -> Any:
    if field.name == "interval_s":
        return 1.0
    if field.name in ("at", "put_at"):
        return NOON
    if field.nullable:
        return None
    if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type):
        return f"some {field.name}"
    if pa.types.is_list(field.type) or pa.types.is_map(field.type):
        return []
    if pa.types.is_boolean(field.type):
        return False
    return 0.0 if pa.types.is_floating(field.type) else 0
