"""A watcher in a process of its own, to be killed: takes what is there, one file a batch.

    python watch_lives.py LAKE FOLDER FILES_MAX [AGREEMENT…]

Says a line after each batch that found something, and `done` at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.agreement.document import read_agreements
from tidegate.pipeline.session import SparkOptions, spark_session
from tidegate.pipeline.watching.watch import WatchOptions, watching

# None of them lives long enough for compiled code to pay.
SHORT_LIVED = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def main() -> None:
    lake, folder, files_max, *agreements = sys.argv[1:]
    options = WatchOptions(
        lake=lake,
        folder=Path(folder),
        agreements=read_agreements([Path(one) for one in agreements]),
        files_max=int(files_max),
    )
    with (
        spark_session(SparkOptions("local[2]", SHORT_LIVED)) as spark,
        watching(spark, options, lambda query, _: print("found", query, flush=True)) as watch,
    ):
        watch.run_once()
    print("done", flush=True)


main()
