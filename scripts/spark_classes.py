"""Write the class archive of the Spark in this environment; later starts take half as long.

    python scripts/spark_classes.py

The script starts a Spark that learns from a lake of five minutes and watches it. Java thereby loads
the classes that learning and watching need, and writes them to the archive when it ends (see
`ClassArchive`). If the archive already exists, the script does nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.agreements.document import Agreement, read_agreements
from tidegate.core.errors import TidegateError
from tidegate.pipeline.lake import LakeFolder
from tidegate.pipeline.learn import JOBS, LearnTask, learn_with
from tidegate.pipeline.session import (
    SilentProgress,
    SparkOptions,
    archive_of,
    find_java,
    spark_session,
)
from tidegate.pipeline.watch import WatchOptions, run_watch
from tidegate.telemetry.lake import HOUR_S, Lake
from tidegate.telemetry.models import ModelRegistry
from tidegate.telemetry.schemas import QUEUE_SAMPLES

_MINUTES = 5
_BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
_AGREEMENT = """\
name = "orders"
queue = "orders"
window = "1m"
[metrics.throughput]
breach = 1
"""


def main() -> None:
    """Write the archive if it does not exist; exit with an error message if that fails."""
    try:
        archive = archive_of(find_java(os.environ))
        if not archive.path.exists():
            with archive.being_written() as path:
                _use_spark(SparkOptions("local[2]", brief=True, classes_to=path))
    except (OSError, TidegateError) as error:
        sys.exit(f"Spark's classes were not written down: {error}")
    if not archive.path.exists():
        sys.exit("Spark's classes were not written down: this Java cannot do it")


def _use_spark(options: SparkOptions) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-classes-") as name:
        folder = Path(name)
        lake = str(folder / "lake")
        _write(Lake(lake))
        (folder / "orders.toml").write_text(_AGREEMENT)
        agreements = read_agreements([folder / "orders.toml"])
        with spark_session(options) as spark:
            _learn_and_watch(spark, lake, folder, agreements)


def _learn_and_watch(
    spark: SparkSession, lake: str, folder: Path, agreements: list[Agreement]
) -> None:
    until = _BEGINS + timedelta(minutes=_MINUTES)
    assignment = LearnTask(LakeFolder.of(lake), JOBS, agreements, _BEGINS, until)
    learn_with(spark, assignment, ModelRegistry(folder / "knowledge"), SilentProgress())
    with run_watch(spark, WatchOptions(lake, folder / "watch", agreements)) as watch:
        watch.run_once()


def _write(lake: Lake) -> None:
    """Write five minutes of samples of one queue to `lake`."""
    rows = [_row(_BEGINS + timedelta(seconds=second)) for second in range(1, 60 * _MINUTES)]
    table = pa.Table.from_pylist(rows, schema=QUEUE_SAMPLES.columns)
    hour = int(_BEGINS.timestamp() // HOUR_S)
    lake.write(QUEUE_SAMPLES, hour, [table], writer="classes", run="classes")


def _row(at: datetime) -> dict[str, Any]:
    row = {field.name: _nothing(field) for field in QUEUE_SAMPLES.columns}
    wait = [{"bucket": 100, "count": 10}]
    return row | {"at": at, "interval_s": 1.0, "put": 10, "acked": 10, "wait": wait}


def _nothing(field: pa.Field) -> Any:
    if field.nullable:
        return None
    if pa.types.is_dictionary(field.type):
        return "orders"
    return [] if pa.types.is_list(field.type) else 0


if __name__ == "__main__":
    main()
