"""Lakes, folders and sessions as nobody wants them: the rest of the data is learned from still."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_of import NOON, LakeOf
from pyspark.sql import SparkSession

from tidegate.pipeline.lake import (
    CLOCK_JUMP,
    FUTURE,
    NO_TIME,
    NOT_PARTITIONED,
    UNREADABLE,
    LakeFolder,
)
from tidegate.pipeline.learn import JOBS, LearnTask, learn_with, write_table
from tidegate.pipeline.session import SilentProgress
from tidegate.telemetry.models import LearningRun, ModelRegistry
from tidegate.telemetry.schemas import QUEUE_SAMPLES, REPLACES_KEY

ODD_NAME = "a\"b'c%d\\e\nf ü<script>$x$"
SECONDS = 90

Learn = Callable[..., LearningRun]


@pytest.fixture
def lake(lake_of: LakeOf) -> LakeOf:
    """A minute and a half of two replicas of one queue, and of one with an odd name."""
    replicas = (("orders", "one", 0), ("orders", "two", 1), (ODD_NAME, "one", 0))
    lake_of.write(
        QUEUE_SAMPLES,
        [
            {
                "at": NOON + timedelta(seconds=second),
                "queue": queue,
                "node": node,
                "replica": replica,
                "put": 10,
                "acked": 10,
                "wait": [{"bucket": 100, "count": 10}],
            }
            for second in range(SECONDS)
            for queue, node, replica in replicas
        ],
    )
    return lake_of


@pytest.fixture
def learn(spark: SparkSession, tmp_path: Path) -> Learn:
    def learned(lake: Path, *jobs: str, knowledge: Path | None = None) -> LearningRun:
        assignment = LearnTask(
            LakeFolder.of(str(lake)),
            [job for job in JOBS if job.name in jobs],
            [],
            since=NOON - timedelta(days=7),
            until=NOON + timedelta(hours=1),
        )
        run = learn_with(
            spark, assignment, ModelRegistry(knowledge or tmp_path / "k"), SilentProgress()
        )
        assert [job.failure for job in run.jobs] == [None] * len(jobs)
        return run

    return learned


def test_folders_may_be_called_anything(lake: LakeOf, learn: Learn, tmp_path: Path) -> None:
    odd_lake = lake.folder.rename(tmp_path / "lake ü%20[x]")
    knowledge = ModelRegistry(tmp_path / "what we know ü 1%")

    learn(odd_lake, "stability", knowledge=knowledge.folder)

    folder = knowledge.table_folder("stability")
    assert folder is not None
    rows = pq.read_table(folder).to_pylist()
    # Rates of replicas add up, and a name is a name.
    assert {row["queue"]: row["produced_per_s"] for row in rows} == {"orders": 20.0, ODD_NAME: 10.0}


def test_a_table_of_a_cluster_is_stored_here_as_one_of_this_machine(
    spark: SparkSession, lake: LakeOf, learn: Learn, tmp_path: Path
) -> None:
    learn(lake.folder, "stability")
    folder = ModelRegistry(tmp_path / "k").table_folder("stability")
    assert folder is not None

    write_table(spark.read.parquet(str(folder)), tmp_path / "here")

    order = [("queue", "ascending"), ("window", "ascending")]
    here, spark_s = (
        pq.read_table(place).sort_by(order).to_pylist() for place in (tmp_path / "here", folder)
    )
    assert here == spark_s


def test_a_sample_of_no_time_is_left_out_and_no_job_divides_by_it(
    lake: LakeOf, learn: Learn
) -> None:
    lake.write(QUEUE_SAMPLES, [{"queue": "still", "interval_s": 0.0, "put": 3}])

    run = learn(lake.folder, "stability", "capacity", "provisioning", "forecast")

    assert run.reading["queue_samples"].rows_left_out == {NO_TIME: 1}


def test_clocks_far_off_neither_stop_a_run_nor_stretch_its_time(lake: LakeOf, learn: Learn) -> None:
    lake.write(QUEUE_SAMPLES, [{"at": NOON - timedelta(days=3)}], partition=NOON)
    for number, at_us in enumerate((2**62, -(2**62))):
        path = lake.write(QUEUE_SAMPLES, [{}])
        table = pq.read_table(path, partitioning=None)
        at = pa.array([at_us]).cast(table.schema.field("at").type)
        says = QUEUE_SAMPLES.file_metadata(f"far-off-{number}")
        pq.write_table(table.set_column(0, "at", at).replace_schema_metadata(says), path)

    run = learn(lake.folder, "stability")

    assert run.reading["queue_samples"].rows_left_out == {CLOCK_JUMP: 2, FUTURE: 1}
    assert (run.since, run.until) == (NOON, NOON + timedelta(seconds=SECONDS - 1))


def test_files_that_lie_about_themselves_are_left_out(lake: LakeOf, learn: Learn) -> None:
    stray = lake.write(QUEUE_SAMPLES, [{}])
    no_day = lake.folder / "queue_samples" / "date=2026-13-45" / "hour=99"
    no_day.mkdir(parents=True)
    stray.rename(no_day / stray.name)
    lake.write(QUEUE_SAMPLES, [{}], metadata={REPLACES_KEY: b"5"})

    run = learn(lake.folder, "stability")

    assert run.reading["queue_samples"].files_left_out == {NOT_PARTITIONED: 1, UNREADABLE: 1}


def test_a_file_that_is_spoiled_within_is_left_out(lake: LakeOf, learn: Learn) -> None:
    spoiled = lake.write(QUEUE_SAMPLES, [{"put": number} for number in range(500)])
    content = bytearray(spoiled.read_bytes())
    content[40:400] = b"\xff" * 360
    spoiled.write_bytes(content)

    run = learn(lake.folder, "stability")

    assert run.reading["queue_samples"].files_left_out == {UNREADABLE: 1}
    assert run.reading["queue_samples"].rows == 3 * SECONDS


def test_the_time_zone_of_a_session_moves_no_row(
    spark: SparkSession, lake: LakeOf, learn: Learn
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        run = learn(lake.folder, "stability")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")

    assert run.reading["queue_samples"].rows == 3 * SECONDS
    assert run.since == NOON
