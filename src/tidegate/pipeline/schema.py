"""Schemas: the lake's row kinds as Spark reads them, and the tables that jobs declare."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from tidegate.core.errors import TidegateError
from tidegate.telemetry.schemas import Kind


class SchemaDiffers(TidegateError):
    """A job's table does not have the columns that the job declares; a bug in the job."""

    name = "SCHEMA_DIFFERS"


def spark_schema(kind: Kind) -> StructType:
    """Return the columns of a kind as Spark reads them."""
    return StructType(
        [StructField(field.name, _spark_type(field.type), True) for field in kind.columns]
    )


def checked(frame: DataFrame, promised: StructType, what: str) -> DataFrame:
    """Return `frame` if it has the promised columns, in order and type; else raise `SchemaDiffers`.

    `what` names the table in the error message. Whether columns may be null is not compared.
    """
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
    # Dictionary encoding is a property of the file; to Spark the column is text.
    if pa.types.is_dictionary(arrow_type):
        return _spark_type(arrow_type.value_type)
    return from_arrow_type(arrow_type)


def _loose(data_type: DataType) -> DataType:
    """Return the type with every part nullable: Spark marks every computed column as nullable."""
    if isinstance(data_type, ArrayType):
        return ArrayType(_loose(data_type.elementType), True)
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _loose(f.dataType), True) for f in data_type])
    return data_type
