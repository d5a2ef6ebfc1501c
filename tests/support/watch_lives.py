"""A watcher in a process of its own, to be killed: it takes one file a batch.

    python watch_lives.py LAKE AGREEMENT FOLDER

It prints a line after each batch that found something.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tidegate.agreements.document import read_agreements
from tidegate.pipeline.session import SparkOptions, spark_session
from tidegate.pipeline.watch import WatchOptions, run_watch

# None of them lives long enough for compiled code to pay.
SHORT_LIVED = {
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def watch_once(
    spark: SparkSession, lake: str, agreement: Path, folder: Path, files_max: int
) -> None:
    """Watch what the lake holds now, and end."""
    options = WatchOptions(
        lake=lake, folder=folder, agreements=read_agreements([agreement]), files_max=files_max
    )
    with run_watch(spark, options, say_found) as watch:
        watch.run_once()


def say_found(query: str, _: object) -> None:
    print("found", query, flush=True)


if __name__ == "__main__":
    lake, agreement, folder = sys.argv[1:]
    with spark_session(SparkOptions("local[2]", SHORT_LIVED, brief=True)) as spark:
        watch_once(spark, lake, Path(agreement), Path(folder), files_max=1)
