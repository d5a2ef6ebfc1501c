"""The command `tidegate learn`: the pipeline turns recorded rows into tables and models."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tidegate.cli.command_line import EMPTY_RESULT, FAILED, NotWritten
from tidegate.cli.options import ConfigOption, duration_option, some_duration_s
from tidegate.cli.output import (
    Cell,
    Column,
    JsonOption,
    Output,
    terminal_table,
    terminated_like_interrupted,
)
from tidegate.cli.settings import Settings, load_settings
from tidegate.core.errors import InvalidValue, Notice, TidegateError
from tidegate.core.text import parse_duration_s

if TYPE_CHECKING:
    from tidegate.agreements.document import Agreement
    from tidegate.pipeline.session import ProgressReporter, SparkOptions
    from tidegate.pipeline.watch import StreamingWatch, WatchOptions
    from tidegate.telemetry.models import JobRecord, LearningRun, ReadCounts


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data folder, as of tidegate up --data, with lake and knowledge in it. "
        "[default: tidegate-data]",
    ),
]
LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Folder or address of the lake that nodes record into. [default: from the settings]",
    ),
]
KnowledgeOption = Annotated[
    Path | None,
    typer.Option(
        "--knowledge", help="Write the learned models to this folder. [default: from the settings]"
    ),
]
AgreementOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--agreement", help="An agreement file, or a folder of agreement files; may be repeated."
    ),
]


class SparkMissing(TidegateError):
    """A package that only the pipeline needs is not installed."""

    name = "SPARK_MISSING"


def register_learn(app: typer.Typer) -> None:
    app.command("learn")(learn)


def learn(
    since: Annotated[
        str, typer.Option(help="Use telemetry of this last period only, such as 12h or 7d.")
    ] = "7d",
    data: DataOption = None,
    lake: LakeOption = None,
    knowledge: KnowledgeOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this job; may be repeated. [default: all jobs]"),
    ] = None,
    agreement: AgreementOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Learn service levels, stability and models from recorded telemetry. Needs tidegate[spark].

    The exit code is 3 if there is nothing to learn from.

    Example: `tidegate learn --since 12h --agreement agreements/`
    """
    now = datetime.now(UTC)
    try:
        begin = now - timedelta(seconds=parse_duration_s(since))
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--since") from None
    except OverflowError:
        wrong_since = f"{since!r} is before the year 1"
        raise typer.BadParameter(wrong_since, param_hint="--since") from None
    output = Output(json)
    settings = load_settings(config, os.environ).with_data(data)
    with requiring_spark():
        from tidegate.agreements.document import read_agreements
        from tidegate.pipeline.lake import LakeFolder
        from tidegate.pipeline.learn import JOBS, LearnTask
        from tidegate.pipeline.learn import learn as run_jobs
        from tidegate.telemetry.models import ModelRegistry

        unknown = [name for name in only or [] if name not in {job.name for job in JOBS}]
        if unknown:
            known = ", ".join(job.name for job in JOBS)
            raise typer.BadParameter(f"there is no job {unknown[0]}; there are {known}")
        places = agreement or settings.pipeline.agreement_places
        assignment = LearnTask(
            lake=LakeFolder.of(lake or settings.lake),
            jobs=[job for job in JOBS if not only or job.name in only],
            agreements=read_agreements(places) if places else [],
            since=begin,
            until=now,
        )
        store = ModelRegistry(knowledge or settings.knowledge_folder, warn)
        try:
            with progress(output) as steps:
                run = run_jobs(assignment, store, spark_options(settings), steps)
        except Notice as nothing:
            warn(str(nothing))
            raise typer.Exit(EMPTY_RESULT) from None
        for sentence in without_data(store.run_folder(run.run), assignment.agreements):
            warn(sentence)
    if json:
        output.json(run)
    else:
        show_run(run, output)
        output.line(f"{store.run_folder(run.run)} in {run.seconds:.1f} s")
    if all(job.failure for job in run.jobs):
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def requiring_spark() -> Iterator[None]:
    """Report a missing Spark package in this context as `SparkMissing`."""
    try:
        with terminated_like_interrupted():
            yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("tidegate"):
            raise
        package = missing.name.partition(".")[0]
        raise SparkMissing(
            f"this needs the package {package}: pip install 'tidegate[spark]'"
        ) from None


def spark_options(settings: Settings) -> SparkOptions:
    from tidegate.pipeline.session import SparkOptions

    return SparkOptions(settings.spark.master, settings.spark.properties)


@contextlib.contextmanager
def progress(output: Output) -> Iterator[ProgressReporter]:
    """Provide progress bars on a terminal, and no output elsewhere."""
    from tidegate.pipeline.session import SilentProgress, TerminalProgress

    console = Console(stderr=True)
    if output.on_terminal and console.is_terminal:
        with TerminalProgress(console).showing() as steps:
            yield steps
    else:
        yield SilentProgress()


def warn(sentence: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(
        f"tidegate: {sentence}"
    )


def without_data(run_folder: Path, agreements: Sequence[Agreement]) -> Iterator[str]:
    """Yield a sentence for each agreement without recorded data, if that was computed."""
    import pyarrow.parquet as pq

    levels = run_folder / "service_levels"
    if not agreements or not levels.is_dir():
        return
    rows = pq.read_table(levels, columns=["agreement", "from"]).to_pylist()
    seen = {row["agreement"] for row in rows if row["from"] is not None}
    for agreement in agreements:
        if agreement.name not in seen:
            what, governed = (
                ("queue", f"queue = {agreement.queue!r}")
                if agreement.queue is not None
                else ("HTTP service", f"http = {agreement.http!r}")
            )
            yield (
                f"the agreement {agreement.name} governs no {what} that was recorded "
                f"({governed}: check the name)"
            )


def show_run(run: LearningRun, output: Output) -> None:
    """Print what a run read, and its results."""
    output.table(
        [
            Column("kind"),
            Column("files", right=True),
            Column("read", "{:,}".format, right=True),
            Column("left out", style="yellow"),
        ],
        [
            (kind, reading.files, reading.rows, left_out(reading) or None)
            for kind, reading in run.reading.items()
        ],
        title="Read",
    )
    output.line("")
    output.table(
        [
            Column("job"),
            Column("seconds", "{:.1f}".format, right=True),
            Column("tables"),
            Column("models"),
            Column("failed", style="red"),
        ],
        [
            (
                job.job,
                job.seconds,
                ", ".join(f"{table} {rows:,}" for table, rows in job.tables.items()) or None,
                _models(job) or None,
                job.failure,
            )
            for job in run.jobs
        ],
        title="Learned",
    )
    output.line("")


def left_out(reading: ReadCounts) -> str:
    """Return the numbers of files and rows that were not used, with the reasons."""
    files = [
        f"{count:,} {'file' if count == 1 else 'files'} {why}"
        for why, count in reading.files_left_out.items()
    ]
    rows = [
        f"{count:,} {'row' if count == 1 else 'rows'} {why}"
        for why, count in reading.rows_left_out.items()
    ]
    return "; ".join(files + rows)


def _models(job: JobRecord) -> str:
    parts = [f"{job.models_accepted:,} accepted"] if job.models_accepted else []
    parts += [f"{count:,} refused: {why}" for why, count in job.models_refused.items()]
    return "; ".join(parts)


# The command `tidegate watch`: agreements and anomalies as they are recorded, by the pipeline.


_REFRESH_S = 1.0


def register_watch(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    once: Annotated[
        bool, typer.Option("--once", help="Process the recorded telemetry once, then exit.")
    ] = False,
    since: Annotated[
        float,
        duration_option("Age of the telemetry with which the first start begins. [default: 1h]"),
    ] = 3600.0,
    delay: Annotated[
        float,
        duration_option(
            "Count a row only if it is at most this much older than the newest row. [default: 60s]"
        ),
    ] = 60.0,
    every: Annotated[
        float,
        duration_option("Time between two reads of the lake. [default: 5s]", some_duration_s),
    ] = 5.0,
    afresh: Annotated[
        bool,
        typer.Option(
            "--afresh", help="Discard the progress of earlier runs, and start from the beginning."
        ),
    ] = False,
    data: DataOption = None,
    lake: LakeOption = None,
    knowledge: KnowledgeOption = None,
    agreement: AgreementOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Watch agreements and anomalies as nodes record them, until Ctrl-C. Needs tidegate[spark].

    Example: `tidegate watch --once --since 6h --agreement agreements/`
    """
    output = Output(json)
    settings = load_settings(config, os.environ).with_data(data)
    with requiring_spark():
        from tidegate.agreements.document import read_agreements
        from tidegate.pipeline.lake import LakeFolder, check_there
        from tidegate.pipeline.session import spark_session
        from tidegate.pipeline.watch import WatchOptions, lock_folder, start_afresh, start_watch
        from tidegate.telemetry.models import ModelRegistry

        places = agreement or settings.pipeline.agreement_places
        store = ModelRegistry(knowledge or settings.knowledge_folder)
        options = WatchOptions(
            lake=lake or settings.lake,
            folder=store.folder / "watch",
            agreements=read_agreements(places) if places else [],
            since_s=time.time() - since,
            delay_s=delay,
            every_s=every,
        )
        # Report all refusals before Spark starts, which takes several seconds.
        check_there(LakeFolder.of(options.lake))
        store.check_writable()
        if not places:
            warn("no agreement is named (--agreement, or [pipeline] agreements): anomalies only")
        if afresh:
            start_afresh(options.folder)
        standing = WatchStatus.of(options.folder)
        teller = _ResultPrinter(output, standing)
        with (
            lock_folder(options) as continued,
            spark_session(spark_options(settings)) as spark,
            _told_to_stop() as stop,
            start_watch(spark, continued, teller.found) as watched,
        ):
            if once:
                watched.run_once(stop)
            else:
                _watch_on(watched, output, standing, stop)
        if once and stop.is_set():
            raise KeyboardInterrupt
        if once:
            _summary(output, standing, watched, options)


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Let Ctrl-C set a flag in this context, because an interrupted call to Java is unsafe."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class _ResultPrinter:
    """Adds the results of batches to the status, and prints changes outside a terminal."""

    def __init__(self, output: Output, standing: WatchStatus) -> None:
        self._output = output
        self._standing = standing

    def found(self, query: str, tables: Mapping[str, Any]) -> None:
        for name, table in tables.items():
            for row in table.to_pylist():
                line = self._standing.add_row(name, row)
                if self._output.as_json:
                    self._output.json({"table": name, **row}, one_line=True)
                elif line is not None and not self._output.on_terminal:
                    self._output.line(line)


def _watch_on(
    watched: StreamingWatch, output: Output, standing: WatchStatus, stop: threading.Event
) -> None:
    """Watch until `stop` is set; results are stored, and an unfinished batch repeats next time."""
    watched.start()
    if not output.on_terminal:
        while not stop.wait(_REFRESH_S):
            watched.check()
        return
    from rich.live import Live

    with Live(console=output.console, screen=True, auto_refresh=False) as live:
        while not stop.wait(_REFRESH_S):
            watched.check()
            live.update(standing.screen(watched.readings(), output.console.width), refresh=True)


def _summary(
    output: Output, standing: WatchStatus, watched: StreamingWatch, options: WatchOptions
) -> None:
    readings = watched.readings()
    if output.as_json:
        output.json({"reading": readings, "folder": str(options.folder)}, one_line=True)
        return
    for title, columns, rows in standing.tables(readings):
        output.table(columns, rows, title=title)
        output.line("")
    output.line(str(options.folder))


# The view of `watch`: a light for each agreement, recent anomalies, and counts of rows read.


_ANOMALIES_SHOWN = 10
_COLOURS = {"met": "green", "warned": "yellow", "breached": "red", "no_data": "dim"}
_VERDICTS = {"no_data": "no data"}

Tables = list[tuple[str, list[Column], list[Sequence[Cell]]]]


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


_AGREEMENTS = [
    Column("agreement", style="bold"),
    Column("verdict"),
    Column("at"),
    Column("met", right=True, style="green"),
    Column("warned", right=True, style="yellow"),
    Column("breached", right=True, style="red"),
    Column("no data", right=True, style="dim", spare=True),
    Column("burn", "{:.2f}".format, right=True),
    Column("alarm", style="bold red"),
    Column("budget left", _percent, right=True),
]
_ANOMALIES = [Column("seen"), Column("what")]
_READ = [
    Column("query"),
    Column("files", "{:,}".format, right=True),
    Column("rows", "{:,}".format, right=True),
    Column("left out", style="yellow"),
]


class WatchStatus:
    """The last row of each agreement, and the most recent anomalies."""

    def __init__(self) -> None:
        self._agreements: dict[str, Mapping[str, Any]] = {}
        self._anomalies: deque[tuple[datetime, str]] = deque(maxlen=_ANOMALIES_SHOWN)

    @staticmethod
    def of(folder: Path) -> WatchStatus:
        """Return the status that the last watch stored in the folder."""
        from tidegate.telemetry.learned import read_table

        standing = WatchStatus()
        for name in ("compliance", "anomalies"):
            table = read_table(folder, name)
            for row in [] if table is None else table.sort_by(_ORDER[name]).to_pylist():
                standing.add_row(name, row)
        return standing

    def add_row(self, table: str, row: Mapping[str, Any]) -> str | None:
        """Add a row; return a line about it if the verdict or alarm changed, or for an anomaly."""
        if table == "anomalies":
            from tidegate.pipeline.watch import describe_anomaly

            said = describe_anomaly(dict(row))
            self._anomalies.append((row["at"], said))
            return f"{row['at']:%Y-%m-%dT%H:%M:%SZ} {said}"
        before = self._agreements.get(row["agreement"])
        self._agreements[row["agreement"]] = row
        changed = before is None or any(before[key] != row[key] for key in ("verdict", "alarm"))
        return _anomaly_text(row) if changed else None

    def tables(self, readings: Mapping[str, ReadCounts]) -> Tables:
        """Return title, columns and rows of each table."""
        agreements: list[Sequence[Cell]] = [
            _agreement_cells(row) for _, row in sorted(self._agreements.items())
        ]
        odd: list[Sequence[Cell]] = [(_clock(at), said) for at, said in self._anomalies]
        read: list[Sequence[Cell]] = [
            (query, reading.files, reading.rows, left_out(reading) or None)
            for query, reading in readings.items()
        ]
        found: Tables = [("Anomalies", _ANOMALIES, odd), ("Read", _READ, read)]
        if agreements:
            found.insert(0, ("Agreements, over the last hour", _AGREEMENTS, agreements))
        return found

    def screen(self, readings: Mapping[str, ReadCounts], width: int) -> RenderableType:
        """Return the whole screen."""
        lights = Text("  ").join(
            Text.assemble(("● ", _COLOURS[row["verdict"]]), name)
            for name, row in sorted(self._agreements.items())
        )
        parts: list[RenderableType] = [
            Padding(
                lights if self._agreements else Text("waiting for the first window"), (0, 0, 1, 0)
            )
        ]
        for title, columns, rows in self.tables(readings):
            if rows:
                table = terminal_table(columns, rows, title, width=width - 4)
                parts.append(Padding(table, (0, 0, 1, 0)))
        return Padding(Group(*parts), (1, 2))


_ORDER = {
    "compliance": [("window", "ascending"), ("agreement", "ascending")],
    "anomalies": [("at", "ascending"), ("subject", "ascending")],
}


def _agreement_cells(row: Mapping[str, Any]) -> Sequence[Cell]:
    return (
        row["agreement"],
        _VERDICTS.get(row["verdict"], row["verdict"]),
        _clock(row["window"]),
        row["met"],
        row["warned"],
        row["breached"],
        row["no_data"],
        row["burn_hour"],
        row["alarm"],
        row["budget_left"],
    )


def _anomaly_text(row: Mapping[str, Any]) -> str:
    verdict = _VERDICTS.get(row["verdict"], row["verdict"])
    alarm = f", burning {'fast' if row['alarm'] == 'fast' else 'slowly'}" if row["alarm"] else ""
    return (
        f"{row['window']:%Y-%m-%dT%H:%M:%SZ} {row['agreement']}: {verdict}{alarm} (last hour: "
        f"{row['met']} met, {row['warned']} warned, {row['breached']} breached; budget left "
        f"{_percent(row['budget_left'])})"
    )


# The command `tidegate report`: learned results as one HTML page and a PDF.


def register_report(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    out: Annotated[Path, typer.Option("--out", help="Write the HTML page to this file.")] = Path(
        "report.html"
    ),
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write a PDF beside the page.")] = False,
    queues: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="Maximum number of queues to draw; the busiest queues come first."
        ),
    ] = 8,
    data: DataOption = None,
    knowledge: Annotated[
        Path | None,
        typer.Option(
            "--knowledge",
            help="Read the learned models from this folder. [default: from the settings]",
        ),
    ] = None,
    agreement: AgreementOption = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write a page of learned results: service levels, waits, stability, models and a forecast.

    The exit code is 3 if nothing was learned yet.

    Example: `tidegate report --out report.html --pdf`
    """
    output = Output(json)
    settings = load_settings(config, os.environ).with_data(data)
    folder = knowledge or settings.knowledge_folder
    places = agreement or settings.pipeline.agreement_places
    pdf_file = _beside(out) if pdf else None
    for place in (out, pdf_file):
        if place is not None and place.is_dir():
            raise NotWritten(f"{place} is a folder: name a file, such as {place / 'report.html'}")
    with requiring_spark():
        from tidegate.agreements.document import read_agreements
        from tidegate.report.page import document_of, write_report
        from tidegate.telemetry.learned import LearnedModels, NothingLearned

        try:
            learned = LearnedModels(folder)
            document = document_of(learned, queues, read_agreements(places))
            write_report(document, out, pdf_file)
        except NothingLearned as nothing:
            warn(str(nothing))
            raise typer.Exit(EMPTY_RESULT) from None
        except OSError as error:
            raise NotWritten(
                f"{_asked_for(error, out)} cannot be written: {error.strerror or error}"
            ) from None
    for complaint in learned.complaints:
        warn(complaint)
    files = [str(file) for file in (out, pdf_file) if file is not None]
    if json:
        output.json({"files": files, "run": learned.run.run, "complaints": learned.complaints})
    else:
        for written in files:
            output.line(written)
    if show:
        typer.launch(out.absolute().as_uri())


def _beside(page: Path) -> Path:
    """Return the path of the PDF for a page."""
    if page.is_dir():
        return page
    if page.suffix.lower() == ".pdf":
        raise typer.BadParameter(
            f"{page} would be both the page and its PDF: name the page, such as "
            f"{page.with_suffix('.html')}, and the PDF comes beside it",
            param_hint="--out",
        )
    return page.with_suffix(".pdf")


def _asked_for(error: OSError, out: Path) -> str:
    """Return the path that could not be written; for a partial file, the path it would get."""
    if error.filename is None:
        return str(out)
    failed = Path(error.filename)
    if failed.name.startswith(".") and failed.suffix == ".partial":
        return str(failed.with_name(failed.stem.removeprefix(".")))
    return str(failed)
