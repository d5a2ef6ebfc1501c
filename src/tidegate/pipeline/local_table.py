"""Small tables between Spark and the laws: out as Arrow, back with a checked schema.

Spark aggregates millions of rows. The laws run on the driver, on the few thousand sums that remain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

Numbers = NDArray[np.float64]


def numbers(table: pa.Table, name: str) -> Numbers:
    """Return a numeric column as an array of floats; null becomes NaN."""
    found: Numbers = table.column(name).cast(pa.float64()).to_numpy()
    return found


def seconds(table: pa.Table, name: str) -> Numbers:
    """Return a time column as seconds since 1970."""
    found: Numbers = table.column(name).cast(pa.int64()).cast(pa.float64()).to_numpy() / 1e6
    return found


def by_name(table: pa.Table, name: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each distinct value of a text column, in the order of the values."""
    if not table.num_rows:
        return
    table = table.sort_by(name)
    names = table.column(name).combine_chunks().dictionary_encode()
    begins = np.flatnonzero(np.diff(names.indices.to_numpy(), prepend=-1)).tolist()
    for one, begin, end in zip(
        names.dictionary.to_pylist(), begins, [*begins[1:], table.num_rows], strict=True
    ):
        yield one, table.slice(begin, end - begin)


def frame_of(
    session: SparkSession, schema: StructType, columns: Mapping[str, Sequence[Any] | NDArray[Any]]
) -> DataFrame:
    """Return a frame of `columns` with the schema; NaN becomes null, which means "not known"."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array(columns[field.name], type=field.type, from_pandas=True) for field in arrow]
    return session.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
