"""Start Spark for one block of code, and stop it at the end of the block.

    with spark_session(SparkOptions(master="local[*]")) as spark: …

Theory of operation

A session has three parts. The *gateway* is a Java process that this process starts and talks to
over a local socket. The *context* (`SparkContext`) is this process's handle on Spark in the
gateway. The *session* (`SparkSession`) is what callers use. A process has at most one context.

If a context is already active, for example in a notebook, `spark_session` yields its session
without changing it and does not stop it afterwards.

Otherwise `spark_session` starts Spark in this order: create a temporary folder, find a Java,
compute the configuration, start the gateway, create the context, create the session. Each step
registers its own cleanup. When the block ends, with or without an exception, the cleanups run in
reverse order: stop the session, stop the context, end the gateway, remove the folder. Ctrl-C
raises `KeyboardInterrupt` in the block and takes the same path.

Configuration. `defaults` suits a machine with two cores and little memory. Every property in
`SparkOptions.properties` takes precedence over it. If a class archive exists (see `class_archive`),
Java maps the archive and starts faster.

Output. Spark writes its log to a file in the temporary folder. If the gateway does not start, the
last lines of that file become part of the error message.

Failures. If the gateway or the context does not start, `spark_session` raises `SparkDidNotStart`
with a short cause. A gateway that does not exit within 10 s of the end of the block is killed; a
gateway that writes a class archive has 120 s.
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
# Java writes a class archive of more than 100 MB while it ends.
_WRITING_S_MAX = 120.0
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_LINES_SHOWN = 5
# Stack frames, and warnings that Spark prints at every start.
_NOISE = re.compile(r"^\tat |^WARNING: | WARN |^Using Spark's default")
# Java options that already choose a class archive: then this module adds none of its own.
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
    """Which Spark to use, and its properties."""

    master: str = "local[*]"
    properties: Mapping[str, str] = field(default_factory=dict)
    # True for short runs: Java then skips the optimizing compiler, which would not pay off.
    brief: bool = False
    # The file to which Java writes Spark's classes when it ends; `None` writes no file.
    classes_to: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether driver and executors run in one process on this machine."""
        return _LOCAL_MASTER.match(self.master) is not None


@contextlib.contextmanager
def spark_session(options: SparkOptions) -> Iterator[SparkSession]:
    """Yield a Spark session, and stop Spark when the block ends.

    If this process already has an active Spark context, yield its session and leave it running.
    Raise `SparkDidNotStart` if Spark does not start, and `JavaMissing` if no usable Java is found.
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
                # Spark tries to reach the master for a minute and then stops its own context.
                why = "nobody answers there"
            raise SparkDidNotStart(f"Spark did not start on {options.master}: {why}") from None
        ending.callback(_stop, session)
        yield session


def defaults(options: SparkOptions, folder: Path) -> dict[str, str]:
    """Return the Spark properties that apply unless `options.properties` overrides them."""
    chosen = {
        "spark.app.name": "tidegate",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Lakes hold many files and we pass their names: Spark must not start a job to list them.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.parquet.compression.codec": "zstd",
        # Jobs group by millions of keys. Spark's fast hash table holds 2¹⁶ of them by default.
        "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "20",
        # Write times with their zone, so that every reader sees the same instant.
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
            # A short run ends before optimized code has repaid the time to compile it.
            java += " -XX:TieredStopAtLevel=1"
        chosen |= {
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            _JAVA_OPTIONS: f"{java} -Dlog4j2.configurationFile={log_settings}",
            # Adaptive execution merges partitions that turn out small.
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
    """Start the gateway process, with its output in the log file, and return the gateway."""
    java_home = launchable_home(java, folder)
    environment = {"JAVA_HOME": str(java_home), **_own_python(options)}
    log = folder / "spark.log"
    with log.open("wb") as sink, _environment(environment):
        try:
            return launch_gateway(conf, {"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            raise SparkDidNotStart(f"Spark did not start: {_end_of(log)}") from error


def _own_python(options: SparkOptions) -> dict[str, str]:
    """Return the variable that makes Spark's workers use this interpreter.

    Without it Spark runs the first `python3` on the PATH. Both the gateway and the context read it.
    """
    if not options.is_local or "PYSPARK_PYTHON" in os.environ:
        return {}
    return {"PYSPARK_PYTHON": sys.executable}


def _stop(one: SparkContext | SparkSession) -> None:
    """Stop a context or session, and ignore errors: Java may have ended already."""
    with contextlib.suppress(Exception):
        one.stop()


def _end(gateway: Any, ending_s_max: float) -> None:
    """End the gateway process.

    Clear pyspark's references to it, so that a later session starts a new one. Kill the process if
    it does not exit within `ending_s_max`.
    """
    SparkContext._gateway = None
    SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    # The gateway process exits when its standard input closes.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(ending_s_max)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the stack traces that pyspark and py4j log for errors they also raise."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)

    def is_not_py4j(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != "py4j"

    # py4j logs through the root logger, so the filter goes by the source file.
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
    """Restore the SIGINT handler that creating a context replaces.

    Spark's handler calls Java. When Ctrl-C interrupts another call to Java, the nested call breaks
    both. Signal handlers can be set in the main thread only; in other threads this does nothing.
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
    """Return the last lines of Spark's log, without stack frames and routine warnings."""
    lines = log.read_text(errors="replace").strip().splitlines()
    said = [line.strip() for line in lines if not _NOISE.search(line)]
    return " ".join(said[-_LOG_LINES_SHOWN:]) or "it said nothing"


def _first_line(error: Exception) -> str:
    # Ask Java for its own message. The Python exception would make further calls to Java, which may
    # have ended already.
    raised = getattr(error, "java_exception", None)
    try:
        words = str(raised.getMessage() if raised is not None else error)
    except Exception:
        words = ""
    return (words.strip() or type(error).__name__).splitlines()[0]
