"""Schemas at both ends: the lake's kinds as Spark reads them, and tables as promised."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from tidegate.core.errors import TidegateError
from tidegate.telemetry.schemas import Kind


class SchemaDiffers(TidegateError):
    """A table is not what its job promised; our bug."""

    name = "SCHEMA_DIFFERS"


def spark_schema(kind: Kind) -> StructType:
    """The columns of a kind as Spark reads them."""
    return StructType(
        [StructField(field.name, _spark_type(field.type), True) for field in kind.columns]
    )


def checked(frame: DataFrame, promised: StructType, what: str) -> DataFrame:
    """The frame, if its columns are those promised, in order and type."""
    found = [(field.name, _loose(field.dataType)) for field in frame.schema]
    wanted = [(field.name, _loose(field.dataType)) for field in promised]
    if found != wanted:
        differing = [f"{name} {kind.simpleString()}" for name, kind in found]
        expected = [f"{name} {kind.simpleString()}" for name, kind in wanted]
        raise SchemaDiffers(
            f"{what} has the columns ({', '.join(differing)}) and promised ({', '.join(expected)})"
        )
    return frame


def _spark_type(arrow_type: pa.DataType) -> DataType:
    # In a file a dictionary is a way of writing texts down.
    if pa.types.is_dictionary(arrow_type):
        return _spark_type(arrow_type.value_type)
    return from_arrow_type(arrow_type)


def _loose(data_type: DataType) -> DataType:
    """Without saying what may be null: Spark says so of whatever it has computed."""
    if isinstance(data_type, ArrayType):
        return ArrayType(_loose(data_type.elementType), True)
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _loose(f.dataType), True) for f in data_type])
    return data_type
