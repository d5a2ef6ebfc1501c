"""`learn`: reads the lake once, runs the jobs one after the other, and writes down what they found.

A job that fails leaves the others alone; its reason is part of the run. What a job returns is
checked against what it promised before any of it is stored.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidegate.agreement.document import Agreement
from tidegate.core.errors import TidegateError
from tidegate.pipeline.job import Inputs, Job
from tidegate.pipeline.lake import LakeEmpty, LakeFrames, read_lake
from tidegate.pipeline.progress import Steps
from tidegate.pipeline.schema import checked
from tidegate.pipeline.session import SparkOptions, spark_session
from tidegate.pipeline.survey import Place, check_there
from tidegate.telemetry.knowledge import SCHEMA, JobRecord, Knowledge, Model, Run
from tidegate.telemetry.schemas import KINDS


@dataclass(frozen=True)
class Assignment:
    """What to learn from which data."""

    lake: Place
    jobs: Sequence[Job]
    agreements: Sequence[Agreement]
    since: datetime
    until: datetime


def learn(assignment: Assignment, knowledge: Knowledge, options: SparkOptions, steps: Steps) -> Run:
    """Learn in a Spark of its own."""
    # Before Spark is started, which takes its time.
    check_there(assignment.lake)
    knowledge.check_writable()
    with contextlib.ExitStack() as ending:
        with steps.step("starting Spark"):
            spark = ending.enter_context(spark_session(options))
        steps.watch(spark)
        return learn_with(spark, assignment, knowledge, steps)


def learn_with(
    spark: SparkSession, assignment: Assignment, knowledge: Knowledge, steps: Steps
) -> Run:
    """Run every job, store what it found, and mark the run as the newest."""
    began_s = time.monotonic()
    names = dict.fromkeys(name for job in assignment.jobs for name in job.reads)
    with steps.step("reading the lake"):
        lake = read_lake(
            spark,
            assignment.lake,
            [KINDS[name] for name in names],
            assignment.since,
            assignment.until,
            now=assignment.until,
        )
    if not any(reading.rows for reading in lake.reading.values()):
        raise LakeEmpty(_nothing_there(assignment))
    run = knowledge.begin_run(assignment.until)
    try:
        records, models = [], []
        for job in assignment.jobs:
            record, found = _run_job(job, assignment, lake, knowledge.run_folder(run), steps)
            records.append(record)
            models.append((job.models or job.name, found))
        finished = Run(
            schema=SCHEMA,
            run=run,
            learned_at=assignment.until,
            since=lake.first,
            until=lake.last,
            seconds=time.monotonic() - began_s,
            lake=assignment.lake.path,
            agreements=[agreement.name for agreement in assignment.agreements],
            reading=dict(lake.reading),
            jobs=records,
        )
        # Last: who interrupts a run leaves no models of it.
        for kind, found in models:
            if found:
                knowledge.add_models(kind, run, assignment.until, found)
        knowledge.finish_run(finished)
    except BaseException:
        knowledge.abandon_run(run)
        raise
    return finished


def _run_job(
    job: Job,
    assignment: Assignment,
    lake: LakeFrames,
    folder: Path,
    steps: Steps,
) -> tuple[JobRecord, Sequence[Model]]:
    """Store the tables of a job; what became of it, and its models."""
    began_s = time.monotonic()
    inputs = Inputs(
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
        # Half of its tables are none.
        for table in job.writes:
            shutil.rmtree(folder / table, ignore_errors=True)
        return JobRecord(job.name, time.monotonic() - began_s, failure=_reason(error)), ()
    accepted = [model for model in outcome.models if model.accepted]
    refused = Counter(model.reason for model in outcome.models if not model.accepted)
    record = JobRecord(
        job=job.name,
        seconds=time.monotonic() - began_s,
        tables=tables,
        models_accepted=len(accepted),
        models_refused=dict(refused),
    )
    return record, outcome.models


def _stored(frame: DataFrame, folder: Path) -> int:
    """Write a table; how many rows it has."""
    if SparkOptions(frame.sparkSession.sparkContext.master or "").is_local:
        # What jobs make is small beside what they read: one file, not one for each partition. A
        # path and no URI: Hadoop takes %20 for three letters.
        frame.coalesce(1).write.mode("overwrite").parquet(f"file://{folder.absolute()}")
    else:
        store_here(frame, folder)
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


def store_here(frame: DataFrame, folder: Path) -> None:
    """Write a table on this machine, where the folder is: a cluster's would write on theirs."""
    folder.mkdir(parents=True)
    pq.write_table(frame.toArrow(), folder / "part-0.parquet", compression="zstd")


def _reason(error: Exception) -> str:
    """What went wrong, in a line."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, TidegateError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}"


def _nothing_there(assignment: Assignment) -> str:
    return (
        f"the lake at {assignment.lake.path} has no rows from {assignment.since:%Y-%m-%d %H:%M} to "
        f"{assignment.until:%Y-%m-%d %H:%M} UTC that can be used"
    )
