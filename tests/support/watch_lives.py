"""A watcher in a process of its own, to be killed: takes what is there, so many files a batch.

    python watch_lives.py LAKE AGREEMENT FILES_MAX FOLDER…

Says a line after each batch that found something. Several folders are watchers one after the other
that know nothing of each other, but for their Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.agreements.document import read_agreements
from tidegate.pipeline.session import SparkOptions, spark_session
from tidegate.pipeline.watch import WatchOptions, run_watch

# None of them lives long enough for compiled code to pay.
SHORT_LIVED = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def say_found(query: str, _: object) -> None:
    print("found", query, flush=True)


def main() -> None:
    lake, agreement, files_max, *folders = sys.argv[1:]
    with spark_session(SparkOptions("local[2]", SHORT_LIVED)) as spark:
        for folder in folders:
            options = WatchOptions(
                lake=lake,
                folder=Path(folder),
                agreements=read_agreements([Path(agreement)]),
                files_max=int(files_max),
            )
            with run_watch(spark, options, say_found) as watch:
                watch.run_once()


main()
