"""Small tables on their way between Spark and the laws: out as Arrow, back with a checked schema.

Spark adds up millions of rows; the laws take the few thousand sums that remain, on the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def frame_of(
    session: SparkSession, schema: StructType, columns: Mapping[str, Sequence[Any] | NDArray[Any]]
) -> DataFrame:
    """A frame of values at hand; NaN becomes null, which is how tables say `not known`."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array(columns[field.name], type=field.type, from_pandas=True) for field in arrow]
    return session.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Those that are numbers: a model's file knows no NaN."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
