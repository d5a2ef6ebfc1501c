"""`tidegate learn`: read the lake, run the jobs, store their tables and models.

Theory of operation

A `LearnTask` names a lake, a time span, jobs and agreements. `learn` runs it in four steps.

1. Survey. `survey_lake` finds the files with rows of the time span. Without any row it raises
   `LakeEmpty`, before Spark is started.
2. Read. `read_lake` turns the files into one frame per row kind, without unusable rows. Spark reads
   lazily: rows are read when a job's table is written.
3. Run. Each job receives the frames of the kinds it declares in `reads`, and returns tables and
   models. The columns of each table are compared with `writes` before Spark computes the rows.
4. Store. Tables go to the folder of the run, models to the registry.

On small lakes two jobs run at the same time, because Spark's planning uses one core. On large lakes
one job runs at a time, because each uses all cores and much memory.

Invariants

- Readers find a run only after `finish_run`, the last step. If the run fails or is interrupted
  before that, `abandon_run` removes its tables.
- Models are stored after all jobs have ended, so a run that is interrupted earlier leaves none.
- A job that fails does not stop the other jobs. Its tables are removed, and the run records the
  reason.
- `until` is the end of the span and also counts as the present time. A run over the same data gives
  the same result, no matter when it is made.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidegate.agreements.document import Agreement
from tidegate.core.errors import TidegateError
from tidegate.pipeline.jobs import (
    Job,
    JobInputs,
    agreements,
    forecast,
    identification,
    queues,
    services,
)
from tidegate.pipeline.lake import (
    LakeEmpty,
    LakeFolder,
    LakeFrames,
    Survey,
    checked,
    is_small,
    read_lake,
    survey,
)
from tidegate.pipeline.session import ProgressReporter, SparkOptions, spark_session
from tidegate.telemetry.models import (
    SCHEMA,
    JobRecord,
    LearningRun,
    ModelRegistry,
    ReadCounts,
    StoredModel,
)
from tidegate.telemetry.schemas import KINDS

_SMALL_JOBS_AT_ONCE = 2


@dataclass(frozen=True)
class LearnTask:
    """What to learn, from which lake and time span."""

    lake: LakeFolder
    jobs: Sequence[Job]
    agreements: Sequence[Agreement]
    since: datetime
    until: datetime


def learn(
    assignment: LearnTask, knowledge: ModelRegistry, options: SparkOptions, steps: ProgressReporter
) -> LearningRun:
    """Start a Spark, run all jobs on it, stop it, and return the run.

    Raise `LakeEmpty` without rows to learn from, and `SparkDidNotStart` if Spark does not start.
    """
    # Check before starting Spark, which takes seconds.
    surveys = survey_lake(assignment, steps)
    knowledge.check_writable()
    options = replace(options, brief=is_small(surveys.values()))
    with contextlib.ExitStack() as ending:
        with steps.step("starting Spark"):
            spark = ending.enter_context(spark_session(options))
        steps.watch(spark)
        return learn_with(spark, assignment, knowledge, steps, surveys)


def survey_lake(assignment: LearnTask, steps: ProgressReporter) -> Mapping[str, Survey]:
    """Return the files to learn from, by kind; raise `LakeEmpty` if they hold no rows."""
    kinds = dict.fromkeys(name for job in assignment.jobs for name in job.reads)
    with steps.step("looking at the lake"):
        surveys = survey(
            assignment.lake, [KINDS[name] for name in kinds], assignment.since, assignment.until
        )
    if not any(found.rows for found in surveys.values()):
        raise LakeEmpty(_nothing_there(assignment, surveys))
    return surveys


def learn_with(
    spark: SparkSession,
    assignment: LearnTask,
    knowledge: ModelRegistry,
    steps: ProgressReporter,
    surveys: Mapping[str, Survey] | None = None,
) -> LearningRun:
    """Run every job on a given Spark, store the results, and mark the run as the newest.

    `surveys` is the result of `survey_lake` for this task; `None` makes the survey now. Raise
    `LakeEmpty` if the lake has no usable row in the time span.
    """
    began_s = time.monotonic()
    surveys = surveys or survey_lake(assignment, steps)
    with steps.step("reading the lake"):
        lake = read_lake(
            spark,
            assignment.lake,
            surveys,
            assignment.since,
            assignment.until,
            now=assignment.until,
        )
    if not any(reading.rows for reading in lake.reading.values()):
        raise LakeEmpty(_nothing_there(assignment, surveys, lake.reading))
    # On little data most time goes into planning, which uses one core. On much data each job uses
    # all cores, and memory that two jobs would have to share.
    at_once = _SMALL_JOBS_AT_ONCE if is_small(surveys.values()) else 1
    run = knowledge.begin_run(assignment.until)
    try:
        folder = knowledge.run_folder(run)
        jobs = list(_run_jobs(spark, assignment, lake, folder, steps, at_once))
        finished = LearningRun(
            schema=SCHEMA,
            run=run,
            learned_at=assignment.until,
            since=lake.first,
            until=lake.last,
            seconds=time.monotonic() - began_s,
            lake=assignment.lake.path,
            agreements=[agreement.name for agreement in assignment.agreements],
            reading=dict(lake.reading),
            jobs=[_record(done) for done in jobs],
        )
        # Models last: an interrupted run must leave no models.
        for done in jobs:
            if done.models:
                kind = done.job.models or done.job.name
                knowledge.add_models(kind, run, assignment.until, done.models)
        knowledge.finish_run(finished)
    except BaseException:
        knowledge.abandon_run(run)
        raise
    return finished


@dataclass(frozen=True)
class _Done:
    """A finished job: its tables are stored, or `failure` says why not."""

    job: Job
    seconds: float
    tables: Mapping[str, int] = field(default_factory=dict)
    models: Sequence[StoredModel] = ()
    failure: str | None = None


def _run_jobs(
    spark: SparkSession,
    assignment: LearnTask,
    lake: LakeFrames,
    folder: Path,
    steps: ProgressReporter,
    at_once: int,
) -> Iterator[_Done]:
    """Yield each job when it has ended, in the order of the task.

    If the caller stops early or is interrupted, cancel the jobs that wait and those that Spark
    runs.
    """
    with ThreadPoolExecutor(at_once, "jobs") as threads:
        running = [
            threads.submit(_run_job, job, assignment, lake, folder, steps)
            for job in assignment.jobs
        ]
        try:
            for done in running:
                yield done.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            spark.sparkContext.cancelAllJobs()
            raise


def _run_job(
    job: Job, assignment: LearnTask, lake: LakeFrames, folder: Path, steps: ProgressReporter
) -> _Done:
    began_s = time.monotonic()
    inputs = JobInputs(
        {name: lake.frames[name] for name in job.reads},
        assignment.agreements,
        lake.first,
        lake.last,
    )
    try:
        with steps.step(job.name):
            outcome = job.run(inputs)
            for table, schema in job.writes.items():
                checked(outcome.tables[table], schema, f"the table {table} of the job {job.name}")
            tables = {table: _stored(outcome.tables[table], folder / table) for table in job.writes}
    except Exception as error:
        # Remove the tables that were written before the failure.
        for table in job.writes:
            shutil.rmtree(folder / table, ignore_errors=True)
        return _Done(job, time.monotonic() - began_s, failure=_reason(error))
    return _Done(job, time.monotonic() - began_s, tables, outcome.models)


def _record(done: _Done) -> JobRecord:
    return JobRecord(
        job=done.job.name,
        seconds=done.seconds,
        tables=dict(done.tables),
        models_accepted=sum(model.accepted for model in done.models),
        models_refused=dict(Counter(m.reason for m in done.models if not m.accepted)),
        failure=done.failure,
    )


def _stored(frame: DataFrame, folder: Path) -> int:
    """Write a table as Parquet files, and return its number of rows."""
    if SparkOptions(frame.sparkSession.sparkContext.master or "").is_local:
        # Adaptive execution merges small partitions; coalesce(1) would compute the last stage on
        # one core. Pass a path without URI encoding: Hadoop does not decode %20.
        frame.write.mode("overwrite").parquet(f"file://{folder.absolute()}")
    else:
        write_table(frame, folder)
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


def write_table(frame: DataFrame, folder: Path) -> None:
    """Collect a table and write it on this machine.

    The executors of a cluster would write it on their machines.
    """
    folder.mkdir(parents=True)
    pq.write_table(frame.toArrow(), folder / "part-0.parquet", compression="zstd")


def _reason(error: Exception) -> str:
    """Return the error as one line."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, TidegateError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}"


def _nothing_there(
    assignment: LearnTask,
    surveys: Mapping[str, Survey],
    reading: Mapping[str, ReadCounts] | None = None,
) -> str:
    left_out: Counter[str] = Counter()
    for found in surveys.values():
        left_out += Counter({f"files {why}": count for why, count in found.left_out.items()})
    for read in (reading or {}).values():
        left_out += Counter({f"rows {why}": count for why, count in read.rows_left_out.items()})
    but = "; left out: " + ", ".join(f"{n:,} {why}" for why, n in left_out.items())
    return (
        f"the lake at {assignment.lake.path} has no rows from {assignment.since:%Y-%m-%d %H:%M} to "
        f"{assignment.until:%Y-%m-%d %H:%M} UTC that can be used{but if left_out else ''}"
    )


JOBS: tuple[Job, ...] = (
    agreements.COMPLIANCE_JOB,
    queues.LIFECYCLE_JOB,
    queues.STABILITY_JOB,
    services.SERVICES_JOB,
    queues.PHASES_JOB,
    queues.CAPACITY_JOB,
    services.HTTP_CAPACITY_JOB,
    agreements.WARNINGS_JOB,
    identification.JOB,
    services.PROVISIONING_JOB,
    forecast.JOB,
)
