"""The one place that starts Spark, and ends it.

    with spark_session(SparkOptions(master="local[*]")) as spark: …

On one machine the defaults suit two cores and little memory; a master of yours and every `spark.…`
property win over them. Spark talks to a log in a temporary folder, of which people see the end only
when it does not start. Nothing is left behind: not on errors, not on Ctrl-C. A Spark that runs in
this process already, such as a notebook's, is used as it is, and goes on. Where Spark's classes
have been written down (`class_archive`), Java maps them and starts sooner.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
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
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tidegate.core.errors import TidegateError
from tidegate.pipeline.class_archive import archive_of
from tidegate.pipeline.java import Java, find_java, launchable_home

_ENDING_S_MAX = 10.0
# With hundreds of megabytes to be written.
_WRITING_S_MAX = 120.0
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_LINES_SHOWN = 5
# Places in Spark's code, and what it says at every start.
_NOISE = re.compile(r"^\tat |^WARNING: | WARN |^Using Spark's default")
# Who has an archive of their own.
_ABOUT_CLASSES = re.compile(r"-Xshare|-XX:(\w*Archive|AOT)")
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
    # Where Java writes Spark's classes down when it ends, if it shall.
    classes_to: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether everything runs in one process on this machine."""
        return _LOCAL_MASTER.match(self.master) is not None


@contextlib.contextmanager
def spark_session(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for as long as the block runs.

    A process has one Spark. If it runs already, the block gets it as it is, and leaves it running.
    """
    if SparkContext._active_spark_context is not None:
        yield SparkSession.builder.getOrCreate()
        return
    folder = Path(tempfile.mkdtemp(prefix="tidegate-spark-"))
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        ending.enter_context(_quiet())
        java = find_java(os.environ)
        conf = _configured(options, folder, java)
        gateway = _launched(conf, options, folder, java)
        ending.callback(_end, gateway, _WRITING_S_MAX if options.classes_to else _ENDING_S_MAX)
        try:
            with _environment(_own_python(options)), _own_signal_handlers():
                context = SparkContext(conf=conf, gateway=gateway)
            ending.callback(_stop, context)
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        except Exception as error:
            why = _first_line(error)
            if not options.is_local and "stopped SparkContext" in why:
                # It has tried for a minute, and stopped by itself.
                why = "nobody answers there"
            raise SparkDidNotStart(f"Spark did not start on {options.master}: {why}") from None
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
        log_settings = (folder / "log4j2.properties").as_uri()
        java = "-XX:+UseParallelGC"
        if options.brief:
            # So short a run ends before Java's better code would pay for its making.
            java += " -XX:TieredStopAtLevel=1"
        chosen |= {
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            _JAVA_OPTIONS: f"{java} -Dlog4j2.configurationFile={log_settings}",
            # Adaptive execution joins those that turn out small.
            "spark.sql.shuffle.partitions": str(2 * cores),
            "spark.local.dir": str(folder / "scratch"),
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        }
    return chosen


def _configured(options: SparkOptions, folder: Path, java: Java) -> SparkConf:
    (folder / "log4j2.properties").write_text(_LOGGING)
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(options.master)
    for key, value in (defaults(options, folder) | dict(options.properties)).items():
        conf.set(key, value)
    said = conf.get(_JAVA_OPTIONS, "") or ""
    if options.is_local and not _ABOUT_CLASSES.search(said):
        conf.set(_JAVA_OPTIONS, f"{said} {shlex.join(_about_classes(options, java))}".strip())
    return conf


def _about_classes(options: SparkOptions, java: Java) -> tuple[str, ...]:
    archive = archive_of(java)
    if options.classes_to is not None:
        return archive.options_to_write(options.classes_to)
    return archive.options


def _launched(conf: SparkConf, options: SparkOptions, folder: Path, java: Java) -> Any:
    """The process that Spark lives in, its output in a log."""
    java_home = launchable_home(java, folder)
    environment = {"JAVA_HOME": str(java_home), **_own_python(options)}
    log = folder / "spark.log"
    with log.open("wb") as sink, _environment(environment):
        try:
            return launch_gateway(conf, {"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            raise SparkDidNotStart(f"Spark did not start: {_end_of(log)}") from error


def _own_python(options: SparkOptions) -> dict[str, str]:
    """Spark would take whatever python3 is on the PATH; both the process and the context ask."""
    if not options.is_local or "PYSPARK_PYTHON" in os.environ:
        return {}
    return {"PYSPARK_PYTHON": sys.executable}


def _stop(one: SparkContext | SparkSession) -> None:
    """One that has stopped by itself, or whose Java was told to stop as well, is stopped."""
    with contextlib.suppress(Exception):
        one.stop()


def _end(gateway: Any, ending_s_max: float) -> None:
    """No process stays, and another session may be started."""
    SparkContext._gateway = None
    SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    # It lives as long as its standard input is open.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(ending_s_max)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Python's part of Spark logs errors that it raises, and Ctrl-C, with all of their stack."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)

    def is_not_py4j(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != "py4j"

    # It logs under no name of its own.
    logging.getLogger().addFilter(is_not_py4j)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_not_py4j)


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
    """Spark puts a handler of its own in the place of ours; it goes at once.

    It calls Java amid whichever call to Java Ctrl-C came in, which neither of them survives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_of(log: Path) -> str:
    """The last that Spark said, without where in its code it stood."""
    lines = log.read_text(errors="replace").strip().splitlines()
    said = [line.strip() for line in lines if not _NOISE.search(line)]
    return " ".join(said[-_LOG_LINES_SHOWN:]) or "it said nothing"


def _first_line(error: Exception) -> str:
    # What Java raised, in Java's own words; Python's ask Java for more, which may be gone.
    raised = getattr(error, "java_exception", None)
    try:
        words = str(raised.getMessage() if raised is not None else error)
    except Exception:
        words = ""
    return (words.strip() or type(error).__name__).splitlines()[0]
