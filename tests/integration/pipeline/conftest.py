"""One Spark for all tests of a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_fixtures import lake_of, refused_command
from places import SUPPORT
from pyspark.sql import SparkSession

from tidegate.pipeline.session import SparkOptions, spark_session

__all__ = ["lake_of", "refused_command", "spark"]

HERE = Path(__file__).parent
# A test waits for dozens of Spark's queries; on two cores with neighbours each may take seconds.
HANGS_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANGS_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    properties = {
        "spark.driver.memory": "1g",
        # Hundreds of small queries run once each: interpreting one takes less than compiling it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # What tests hand to tasks may use the helpers of the tests.
        "spark.executorEnv.PYTHONPATH": str(SUPPORT),
    }
    # A task that fails is tried once more: on a cluster it is tried more often.
    options = SparkOptions("local[2,2]", properties, brief=True)
    with spark_session(options) as session:
        yield session
