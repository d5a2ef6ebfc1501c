"""One Spark for all tests of the pipeline, and lakes with a few rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lake_of import LakeOf
from pyspark.sql import SparkSession

from tidegate.pipeline.session import SparkOptions, spark_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Whatever asks for the session starts Spark.
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Tasks that fail are tried again, as on a cluster.
    options = SparkOptions("local[2,3]", {"spark.driver.memory": "1g"}, brief=True)
    with spark_session(options) as session:
        yield session


@pytest.fixture
def lake_of(tmp_path: Path) -> LakeOf:
    """An empty lake to put rows in."""
    return LakeOf(tmp_path / "lake")
