"""One Spark for all tests of a worker process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pipeline_fixtures import lake_of, refused_command
from places import SUPPORT
from pyspark.sql import SparkSession

from tidegate.pipeline.session import SparkOptions, spark_session

__all__ = ["lake_of", "refused_command", "spark"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    properties = {
        "spark.driver.memory": "1g",
        # What tests hand to tasks may use the helpers of the tests.
        "spark.executorEnv.PYTHONPATH": str(SUPPORT),
    }
    # A task that fails is tried once more: on a cluster it is tried more often.
    options = SparkOptions("local[2,2]", properties, brief=True)
    with spark_session(options) as session:
        yield session
