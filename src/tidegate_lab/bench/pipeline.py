"""`tidegate bench pipeline`: rows of telemetry per second that `tidegate learn` processes.

For each job, a synthetic lake of one kind of rows grows in a temporary folder. The code of `learn`
runs the job on it, with a real Spark session, and writes the resulting tables. A first run on a
small lake warms up Spark and is not counted.

The rate is the rows of the lake over the job's own seconds, as the median of the rounds. `learn`
also finds, checks and counts the files, once for all jobs; the report has the total time too. The
memory is the peak of the driver, that is Python and its Java process. In local mode Spark has no
other processes.

With a million rows and 2,000 groups, each group has 500 rows, and the models cost as much as the
rows. The bar on rows per second therefore holds from ten million rows on.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.core.text import format_size
from tidegate.pipeline.jobs import Job
from tidegate.pipeline.lake import LakeFolder
from tidegate.pipeline.learn import JOBS, LearnTask, learn_with
from tidegate.pipeline.session import SilentProgress, SparkOptions, spark_session
from tidegate.telemetry.models import LearningRun, ModelRegistry
from tidegate_lab.bench.compare import QUIET, MemoryPeak, Processors, describe_machine
from tidegate_lab.bench.compare_report import Bar, BarredReport, bar_table
from tidegate_lab.bench.synthetic_lake import LakeSize, LakeSizeRequest
from tidegate_lab.loadgen.processes import Child

GIB = 1024**3
MILLION = 1_000_000
# The kind of rows on which each job is measured.
KIND_OF_JOB = {
    "identification": "consumer_samples",
    "compliance": "queue_samples",
    "lifecycle": "lifecycles",
}
# Bytes of a row on disk, rounded up. The reserve is for Spark's temporary files and the results.
ROW_BYTES = 60
DISK_RESERVE_BYTES = 2 * GIB
WANTED_ROWS_PER_S = 1_000_000.0
PROMISED_FROM = 10 * MILLION
WANTED_RATIO = 0.9
MEMORY_GIB_MAX = 4.0
GROWING_SECONDS_MAX = 1_800.0
AGREEMENT = """\
name = "orders"
queue = "orders.*"
window = "10s"

[metrics.wait_p99]
breach = "50ms"

[metrics.throughput]
breach = 20
"""
Progress = Callable[[str], None]


class PipelineOptions(msgspec.Struct, frozen=True):
    """The sizes of the lakes, the jobs, and the number of rounds."""

    rows: Sequence[int] = (1 * MILLION, 10 * MILLION, 50 * MILLION)
    jobs: Sequence[str] = tuple(KIND_OF_JOB)
    subjects: int = 2_000
    warm_rows: int = 1 * MILLION
    rounds: int = 3
    # Spark properties in addition to Tidegate's defaults.
    properties: dict[str, str] = {}

    @staticmethod
    def quick() -> PipelineOptions:
        """Return options for a short run, whose figures are not meaningful."""
        return PipelineOptions(rows=(20_000, 40_000), subjects=100, warm_rows=10_000, rounds=1)


class PipelineBenchFailed(RuntimeError):
    """The disk is too small, a job is unknown, or a job failed or missed rows."""


class JobMeasurement(msgspec.Struct, frozen=True):
    """The result of one job on one lake; seconds are medians."""

    job: str
    rows: int
    job_s: float
    rows_per_s: float
    # The whole run of `learn` with this job, finding and checking its rows included.
    learn_s: float
    memory_gib: float
    rounds_s: list[float]


class PipelineReport(BarredReport, frozen=True):
    """The results of all jobs on all lakes."""

    measured: list[JobMeasurement]
    # By job: rows per second on the largest lake relative to the second largest.
    ratio: dict[str, float]
    taken_by_others: float
    environment: dict[str, str]


def parse_rows(text: str) -> list[int]:
    """Parse numbers of rows such as `1M,10M` or `500k`, or raise `ValueError`."""
    units = {"k": 1_000, "m": MILLION}
    found = []
    for part in text.split(","):
        number = part.strip().lower()
        unit = units.get(number[-1:], 1)
        try:
            rows = round(float(number[:-1] if unit > 1 else number) * unit)
        except ValueError:
            raise ValueError(f"{part.strip()!r} is no number of rows; say 500k or 10M") from None
        if rows < 1:
            raise ValueError(f"{part.strip()!r} is no number of rows; say 500k or 10M")
        found.append(rows)
    return found


def run_pipeline(
    options: PipelineOptions, progress: Progress = lambda line: None
) -> PipelineReport:
    """Measure all jobs on lakes of all sizes and return the report."""
    jobs = _jobs(options)
    check_disk(options, Path(tempfile.gettempdir()))
    measured: list[JobMeasurement] = []
    processors = Processors()
    with spark_session(SparkOptions(properties=options.properties)) as spark:
        for job in jobs:
            # Each lake is deleted before the next, so that the disk need hold only one.
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
                measured += measure(spark, job, Path(folder), options, progress)
    ratio = _ratios(measured)
    return PipelineReport(
        measured=measured,
        ratio=ratio,
        bars=_bars(measured, ratio),
        taken_by_others=processors.share_of_others(),
        environment=describe_machine(),
    )


def check_disk(options: PipelineOptions, folder: Path) -> None:
    """Raise `PipelineBenchFailed` if the largest lake does not fit on the disk of `folder`."""
    needed = max(options.rows) * ROW_BYTES + DISK_RESERVE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PipelineBenchFailed(
            f"{max(options.rows):,} rows need {format_size(needed)} in {folder}, where "
            f"{format_size(free)} are free: name another folder with TMPDIR, or fewer --rows"
        )


def _jobs(options: PipelineOptions) -> list[Job]:
    known = {job.name: job for job in JOBS if job.name in KIND_OF_JOB}
    missing = [name for name in options.jobs if name not in known]
    if missing:
        raise PipelineBenchFailed(
            f"the job {missing[0]} is not measured; these are: {', '.join(known)}"
        )
    return [known[name] for name in options.jobs]


def measure(
    spark: SparkSession, job: Job, folder: Path, options: PipelineOptions, progress: Progress
) -> list[JobMeasurement]:
    """Measure one job on lakes of every size; `folder` must be empty."""
    lake, kind = folder / "lake", KIND_OF_JOB[job.name]
    arguments = [str(lake), str(options.subjects)]
    agreements = [parse_agreement(AGREEMENT, "the benchmark's")]
    found: list[JobMeasurement] = []
    knowledge = ModelRegistry(folder / "knowledge")
    with Child("tidegate_lab.bench.synthetic_lake", arguments) as generator:

        def rounds(rows: int) -> tuple[int, list[LearningRun], MemoryPeak]:
            generator.say(LakeSizeRequest(kind, rows))
            grown = generator.hear(LakeSize, GROWING_SECONDS_MAX)
            with MemoryPeak(without=frozenset({generator.pid})).watched() as peak:
                runs = [
                    _learn(spark, job, lake, grown, agreements, knowledge)
                    for _ in range(options.rounds)
                ]
            return grown.rows, runs, peak

        rounds(min(options.warm_rows, *options.rows))
        progress(f"{job.name}: warm")
        for wanted in sorted(options.rows):
            rows, runs, peak = rounds(wanted)
            found.append(_summary(job, rows, runs, peak))
            progress(
                f"{job.name}: {rows:,} rows in {found[-1].job_s:.2f} s, "
                f"{found[-1].rows_per_s:,.0f} rows/s"
            )
    return found


def _learn(
    spark: SparkSession,
    job: Job,
    lake: Path,
    grown: LakeSize,
    agreements: Sequence[Agreement],
    knowledge: ModelRegistry,
) -> LearningRun:
    assignment = LearnTask(
        lake=LakeFolder.of(str(lake)),
        jobs=[job],
        agreements=agreements,
        since=grown.since,
        until=grown.until + timedelta(seconds=1),
    )
    run = learn_with(spark, assignment, knowledge, SilentProgress())
    (record,) = run.jobs
    if record.failure:
        raise PipelineBenchFailed(f"{job.name} failed: {record.failure}")
    read = run.reading[KIND_OF_JOB[job.name]]
    if read.rows != grown.rows:
        raise PipelineBenchFailed(f"{job.name} saw {read.rows:,} of {grown.rows:,} rows")
    return run


def _summary(job: Job, rows: int, runs: Sequence[LearningRun], peak: MemoryPeak) -> JobMeasurement:
    rounds_s = [run.jobs[0].seconds for run in runs]
    job_s = statistics.median(rounds_s)
    return JobMeasurement(
        job=job.name,
        rows=rows,
        job_s=job_s,
        rows_per_s=rows / job_s,
        learn_s=statistics.median(run.seconds for run in runs),
        memory_gib=peak.bytes_max / GIB,
        rounds_s=rounds_s,
    )


def _ratios(measured: Sequence[JobMeasurement]) -> dict[str, float]:
    ratios = {}
    for job in dict.fromkeys(one.job for one in measured):
        rates = [one.rows_per_s for one in measured if one.job == job]
        if len(rates) > 1:
            ratios[job] = rates[-1] / rates[-2]
    return ratios


def _bars(measured: Sequence[JobMeasurement], ratio: dict[str, float]) -> list[Bar]:
    bars = [
        Bar(
            f"{one.job}, {one.rows:,} rows",
            one.rows_per_s / MILLION,
            WANTED_ROWS_PER_S / MILLION,
            "M rows/s",
        )
        for one in measured
        if one.rows >= PROMISED_FROM
    ]
    bars += [
        Bar(
            f"{job}: rows/s on the largest lake, of those on the one before",
            figure,
            WANTED_RATIO,
            "×",
        )
        for job, figure in ratio.items()
    ]
    highest = max((one.memory_gib for one in measured), default=0.0)
    return [*bars, Bar("memory of the driver", highest, MEMORY_GIB_MAX, "GiB", at_most=True)]


def render(report: PipelineReport, console: Console) -> None:
    """Print the figures, then the bars."""
    table = Table(title="Telemetry to knowledge, medians")
    for column in ("job", "rows", "s", "rows/s", "s with reading", "GiB"):
        table.add_column(column, justify="left" if column == "job" else "right")
    for one in report.measured:
        table.add_row(
            one.job,
            f"{one.rows:,}",
            f"{one.job_s:.2f}",
            f"{one.rows_per_s:,.0f}",
            f"{one.learn_s:.2f}",
            f"{one.memory_gib:.2f}",
        )
    console.print(table)
    console.print(bar_table(report.bars))
    if report.taken_by_others > QUIET:
        console.print(
            f"Other processes took {100 * report.taken_by_others:.0f} % of the machine meanwhile.",
            style="yellow",
        )
