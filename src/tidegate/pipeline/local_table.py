"""Small tables on their way between Spark and the laws: out as Arrow, back with a checked schema.

Spark adds up millions of rows; the laws take the few thousand sums that remain, on the driver.
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
    """A column of figures as an array; null is NaN."""
    found: Numbers = table.column(name).cast(pa.float64()).to_numpy()
    return found


def seconds(table: pa.Table, name: str) -> Numbers:
    """A column of times as seconds since 1970."""
    found: Numbers = table.column(name).cast(pa.int64()).cast(pa.float64()).to_numpy() / 1e6
    return found


def by_name(table: pa.Table, name: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each name in a column, names in order."""
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
    """A frame of values at hand; NaN becomes null, which is how tables say `not known`."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array(columns[field.name], type=field.type, from_pandas=True) for field in arrow]
    return session.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
