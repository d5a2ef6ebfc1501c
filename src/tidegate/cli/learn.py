"""The command `tidegate learn`: the pipeline turns recorded rows into tables and models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tidegate.cli.exit_codes import FAILED, NOTHING_THERE
from tidegate.cli.interruption import terminated_like_interrupted
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings.settings import Settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.core.errors import InvalidValue, Notice, TidegateError
from tidegate.core.quantities import parse_duration_s

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.pipeline.progress import Steps
    from tidegate.pipeline.session import SparkOptions
    from tidegate.telemetry.knowledge import JobRecord, Reading, Run

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data folder, as of tidegate up --data, with lake and knowledge in it. "
        "[default: tidegate-data]",
    ),
]
LakeOption = Annotated[
    str | None, typer.Option("--lake", help="Where nodes record. [default: from the settings]")
]
KnowledgeOption = Annotated[
    Path | None,
    typer.Option("--knowledge", help="Where results go. [default: from the settings]"),
]
AgreementOption = Annotated[
    list[Path] | None,
    typer.Option("--agreement", help="A file, or a folder of them; may be repeated."),
]


class SparkMissing(TidegateError):
    """A package that only the pipeline needs is not installed."""

    name = "SPARK_MISSING"


def register(app: typer.Typer) -> None:
    app.command("learn")(learn)


def learn(
    since: Annotated[str, typer.Option(help="How far back, such as 12h or 7d.")] = "7d",
    data: DataOption = None,
    lake: LakeOption = None,
    knowledge: KnowledgeOption = None,
    only: Annotated[
        list[str] | None, typer.Option(help="One job; may be repeated. [default: all]")
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
    with with_spark():
        from tidegate.agreement.document import read_agreements
        from tidegate.pipeline.jobs import JOBS
        from tidegate.pipeline.learning import Assignment
        from tidegate.pipeline.learning import learn as run_jobs
        from tidegate.pipeline.survey import Place
        from tidegate.telemetry.knowledge import Knowledge

        unknown = [name for name in only or [] if name not in {job.name for job in JOBS}]
        if unknown:
            known = ", ".join(job.name for job in JOBS)
            raise typer.BadParameter(f"there is no job {unknown[0]}; there are {known}")
        places = agreement or settings.pipeline.agreement_places
        assignment = Assignment(
            lake=Place.of(lake or settings.lake),
            jobs=[job for job in JOBS if not only or job.name in only],
            agreements=read_agreements(places) if places else [],
            since=begin,
            until=now,
        )
        store = Knowledge(knowledge or settings.knowledge_folder, warn)
        try:
            with progress(output) as steps:
                run = run_jobs(assignment, store, spark_options(settings), steps)
        except Notice as nothing:
            warn(str(nothing))
            raise typer.Exit(NOTHING_THERE) from None
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
def with_spark() -> Iterator[None]:
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
def progress(output: Output) -> Iterator[Steps]:
    """Provide progress bars on a terminal, and no output elsewhere."""
    from tidegate.pipeline.progress import SilentSteps, TerminalSteps

    console = Console(stderr=True)
    if output.on_terminal and console.is_terminal:
        with TerminalSteps(console).showing() as steps:
            yield steps
    else:
        yield SilentSteps()


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


def show_run(run: Run, output: Output) -> None:
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


def left_out(reading: Reading) -> str:
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
