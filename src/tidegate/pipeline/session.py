"""The one place that starts Spark, and ends it.

    with spark_session(SparkOptions(master="local[*]")) as spark: …

On one machine the defaults suit two cores and little memory; a master of yours and every `spark.…`
property win over them. Spark talks to a log in a temporary folder, of which people see the end only
when it does not start. Nothing is left behind: not on errors, not on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidegate.core.errors import TidegateError
from tidegate.pipeline.java import find_java, launchable_home

_ENDING_S_MAX = 10.0
_LOG_LINES_SHOWN = 2
_WRONG = re.compile(r"Exception|ERROR|Error|Invalid|[Uu]nrecognized")
_LOCAL_MASTER = re.compile(r"local(\[.*\])?$")

_LOGGING = """\
status = off
rootLogger.level = error
rootLogger.appenderRef.all.ref = log
appender.log.type = Console
appender.log.name = log
appender.log.target = SYSTEM_ERR
appender.log.layout.type = PatternLayout
appender.log.layout.pattern = %d{ISO8601} %p %c: %m%n%ex
"""


class SparkDidNotStart(TidegateError):
    """Spark could not be started."""

    name = "SPARK_DID_NOT_START"


@dataclass(frozen=True)
class SparkOptions:
    """Which Spark, and what it is told."""

    master: str = "local[*]"
    properties: Mapping[str, str] = field(default_factory=dict)
    # Whether it is over soon: code that runs once is not worth compiling well.
    brief: bool = False

    @property
    def is_local(self) -> bool:
        """Whether everything runs in one process on this machine."""
        return _LOCAL_MASTER.match(self.master) is not None


@contextlib.contextmanager
def spark_session(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for as long as the block runs."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-spark-"))
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        ending.enter_context(_own_signal_handlers())
        conf = _configured(options, folder)
        log = folder / "spark.log"
        gateway = _launched(conf, options, folder, log)
        ending.callback(_end, gateway)
        try:
            with _environment(_own_python(options)):
                context = SparkContext(conf=conf, gateway=gateway)
                ending.callback(_stop, context)
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        except Exception as error:
            raise SparkDidNotStart(
                f"Spark did not start on {options.master}: {_words(error) or _end_of(log)}"
            ) from error
        ending.callback(_stop, session)
        yield session


def defaults(options: SparkOptions, folder: Path) -> dict[str, str]:
    """What Spark is told unless the settings say otherwise."""
    chosen = {
        "spark.app.name": "tidegate",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Lakes hold many files, whose names we hand over: no Spark job to list them.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.parquet.compression.codec": "zstd",
        # Groups by the million are the rule here; Spark's fast table holds 2¹⁶ unless told.
        "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "20",
        # With their zone, so that a time read elsewhere is the same time.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    if options.is_local:
        cores = os.cpu_count() or 2
        logging = (folder / "log4j2.properties").as_uri()
        java = "-XX:+UseParallelGC"
        if options.brief:
            # A run of `learn` over an hour's samples needs 18 s of processor time instead of 28.
            java += " -XX:TieredStopAtLevel=1"
        chosen |= {
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"{java} -Dlog4j2.configurationFile={logging}",
            # Adaptive execution joins those that turn out small.
            "spark.sql.shuffle.partitions": str(2 * cores),
            "spark.local.dir": str(folder / "scratch"),
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        }
    return chosen


def _configured(options: SparkOptions, folder: Path) -> SparkConf:
    (folder / "log4j2.properties").write_text(_LOGGING)
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(options.master)
    for key, value in (defaults(options, folder) | dict(options.properties)).items():
        conf.set(key, value)
    return conf


def _launched(conf: SparkConf, options: SparkOptions, folder: Path, log: Path) -> Any:
    """The process that Spark lives in, its output in a log."""
    java_home = launchable_home(find_java(os.environ), folder)
    environment = {"JAVA_HOME": str(java_home), **_own_python(options)}
    with log.open("wb") as sink, _environment(environment):
        try:
            return launch_gateway(conf, {"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            raise SparkDidNotStart(
                f"Spark did not start on {options.master}: {_end_of(log)}"
            ) from error


def _own_python(options: SparkOptions) -> dict[str, str]:
    """Spark would take whatever python3 is on the PATH; both the process and the context ask."""
    if not options.is_local or "PYSPARK_PYTHON" in os.environ:
        return {}
    return {"PYSPARK_PYTHON": sys.executable}


def _end(gateway: Any) -> None:
    """No process stays, and another session may be started."""
    SparkContext._gateway = None
    SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    # It lives as long as its standard input is open.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_ENDING_S_MAX)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Spark puts a handler of its own in the place of ours; it goes when Spark does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(what: SparkContext | SparkSession) -> None:
    # One that has lost its cluster, or its process, cannot be told.
    with contextlib.suppress(Exception):
        what.stop()


def _end_of(log: Path) -> str:
    """What Spark said first of what went wrong; if it did not say so, what it said last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    # Where in its code is not for people.
    told = [line for line in lines if line and not line.startswith("at ")]
    wrong = [line for line in told if _WRONG.search(line)]
    shown = wrong[:_LOG_LINES_SHOWN] or told[-_LOG_LINES_SHOWN:]
    return " ".join(shown) or "it said nothing"


def _words(error: Exception) -> str:
    """What an error says, in a line; nothing if it is about what came of another one."""
    try:
        lines = [line.strip(": ") for line in str(error).splitlines() if line.strip(": ")]
    except Exception:
        # Those of a Java that is gone have no words.
        return ""
    # Which of its methods was called is not for people.
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return told[0] if told and "stopped SparkContext" not in told[0] else ""
