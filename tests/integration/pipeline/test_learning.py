"""`learn` on lakes with something wrong in them: the rest is learned from, and all is counted."""

from __future__ import annotations

import json
import math
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake_of import NOON, LakeOf
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from tidegate.pipeline import lake as surveying
from tidegate.pipeline import lake as vetting
from tidegate.pipeline.jobs import Job, JobInputs, JobResult, queues
from tidegate.pipeline.lake import (
    LakeEmpty,
    LakeFolder,
    LakeMissing,
    count_rejected_small,
    read_lake,
    survey,
)
from tidegate.pipeline.learn import LearnTask, learn_with
from tidegate.pipeline.session import SilentProgress
from tidegate.telemetry.models import LearningRun, ModelRegistry, ReadCounts, StoredModel
from tidegate.telemetry.schemas import (
    EVENTS,
    QUEUE_SAMPLES,
    REPLACES_KEY,
    REQUESTS,
    VERSION_KEY,
)

SINCE, UNTIL = NOON - timedelta(days=1), NOON + timedelta(minutes=30)

COUNT = StructType([StructField("rows", LongType())])


def second(offset_s: float, **figures: Any) -> dict[str, Any]:
    return {"at": NOON + timedelta(seconds=offset_s), "queue": "orders", **figures}


def learned(
    spark: SparkSession, lake: LakeOf, knowledge: ModelRegistry, *jobs: Job, since: datetime = SINCE
) -> LearningRun:
    assignment = LearnTask(LakeFolder.of(str(lake.folder)), jobs, [], since, UNTIL)
    return learn_with(spark, assignment, knowledge, SilentProgress())


@pytest.fixture
def knowledge(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry(tmp_path / "knowledge")


def test_files_that_cannot_be_used_are_counted_and_the_others_read(
    spark: SparkSession, lake_of: LakeOf, knowledge: ModelRegistry
) -> None:
    lake_of.write(QUEUE_SAMPLES, [second(s, put=10) for s in range(10)], file_id="good")
    cut = lake_of.write(QUEUE_SAMPLES, [second(20)])
    cut.write_bytes(cut.read_bytes()[:-20])
    cut.with_name("empty.parquet").write_bytes(b"")
    lake_of.write(QUEUE_SAMPLES, [second(21)], metadata={VERSION_KEY: b"2"})
    fewer = QUEUE_SAMPLES.columns.remove(5)
    lake_of.write(QUEUE_SAMPLES, [second(22)], schema=fewer)
    index = QUEUE_SAMPLES.columns.get_field_index("put")
    texts = QUEUE_SAMPLES.columns.set(index, pa.field("put", pa.float64()))
    lake_of.write(QUEUE_SAMPLES, [second(23)], schema=texts)
    copy = lake_of.write(QUEUE_SAMPLES, [second(24)], file_id="original")
    shutil.copy(copy, copy.with_name("copied.parquet"))
    lake_of.write(QUEUE_SAMPLES, [second(25)], file_id="part 1")
    lake_of.write(QUEUE_SAMPLES, [second(26)], file_id="part 2")
    lake_of.write(
        QUEUE_SAMPLES,
        [second(25), second(26)],
        metadata={REPLACES_KEY: json.dumps(["part 1", "part 2"]).encode()},
    )
    # Of another kind, in this kind's folder; and one that is not there yet.
    stray = lake_of.write(REQUESTS, [{"at": NOON}])
    shutil.move(stray, copy.with_name("stray.parquet"))
    shutil.copy(copy, copy.with_name("_unfinished.parquet"))
    # One more column is no harm.
    more = QUEUE_SAMPLES.columns.append(pa.field("mood", pa.string()))
    lake_of.write(QUEUE_SAMPLES, [second(27)], schema=more)

    run = learned(spark, lake_of, knowledge, queues.STABILITY_JOB)

    reading = run.reading["queue_samples"]
    assert reading.files_left_out == {
        surveying.UNREADABLE: 2,
        surveying.OTHER_VERSION: 1,
        surveying.OTHER_COLUMNS: 2,
        surveying.DUPLICATE: 1,
        surveying.REPLACED: 2,
        surveying.OTHER_KIND: 1,
    }
    assert (reading.files, reading.rows) == (4, 10 + 1 + 2 + 1)
    assert run.jobs[0].failure is None
    assert run.jobs[0].tables["stability"] > 0


@pytest.mark.parametrize("by_spark", [True, False], ids=["by Spark", "before Spark"])
def test_rows_that_cannot_be_true_are_counted_by_reason(
    spark: SparkSession, lake_of: LakeOf, by_spark: bool
) -> None:
    lake_of.write(
        QUEUE_SAMPLES,
        [
            second(0),
            second(1, wait_s_sum=math.nan),
            second(2, oldest_age_s=math.inf),
            second(3, oldest_age_s=-math.inf),
            second(4, put=-1),
            second(5, wait_s_sum=-0.1),
            second(6, interval_s=0.0),
            second(-20 * 3600),
            second(-25 * 3600),
            second(34.9 * 60),
            second(36 * 60),
        ],
        partition=NOON,
    )
    # Of events the value may be missing and negative.
    lake_of.write(EVENTS, [{"at": NOON, "value": -3.0}, {"at": NOON, "value": math.nan}])
    place = LakeFolder.of(str(lake_of.folder))
    kinds = (QUEUE_SAMPLES, EVENTS)
    surveys = survey(place, kinds, SINCE, UNTIL)

    if by_spark:
        raw = {kind: _opened(spark, place, surveys[kind.name]) for kind in kinds}
        tallies = vetting.count_rejected(raw, SINCE, UNTIL, now=UNTIL)
    else:
        tallies = count_rejected_small(place, surveys.values(), SINCE, UNTIL, now=UNTIL)

    counts = {
        kind: {reason: tally.rows for reason, tally in reasons.items()}
        for kind, reasons in tallies.items()
    }
    assert counts["queue_samples"] == {
        None: 1,
        vetting.NOT_A_NUMBER: 3,
        vetting.NEGATIVE: 2,
        vetting.NO_TIME: 1,
        vetting.CLOCK_JUMP: 2,
        vetting.OUT_OF_RANGE: 1,
        vetting.FUTURE: 1,
    }
    assert counts["events"] == {None: 1, vetting.NOT_A_NUMBER: 1}
    good = tallies["queue_samples"][None]
    assert good.first_s == good.last_s == NOON.timestamp()


def test_rejected_rows_are_not_in_the_frames(spark: SparkSession, lake_of: LakeOf) -> None:
    lake_of.write(QUEUE_SAMPLES, [second(0, put=7), second(1, put=-7), second(-90_000, put=3)])
    place = LakeFolder.of(str(lake_of.folder))
    surveys = survey(place, (QUEUE_SAMPLES, REQUESTS), SINCE, UNTIL)

    lake = read_lake(spark, place, surveys, SINCE, UNTIL, now=UNTIL)

    assert [row.put for row in lake.frames["queue_samples"].collect()] == [7]
    # Of what there is nothing, there is a frame without rows.
    assert lake.frames["requests"].collect() == []
    assert lake.frames["requests"].columns == REQUESTS.columns.names
    assert lake.reading["requests"] == ReadCounts()


def test_learning_works_with_one_row(
    spark: SparkSession, lake_of: LakeOf, knowledge: ModelRegistry
) -> None:
    lake_of.write(QUEUE_SAMPLES, [second(0, put=1)])

    run = learned(spark, lake_of, knowledge, queues.STABILITY_JOB)

    assert run.jobs[0].tables == {"stability": 1}
    assert run.reading["queue_samples"].rows == 1


def test_an_empty_lake_and_a_missing_one_say_so(
    spark: SparkSession, lake_of: LakeOf, knowledge: ModelRegistry, tmp_path: Path
) -> None:
    with pytest.raises(LakeEmpty, match="has no rows from 2026-03-13 12:30 to 2026-03-14 13:00"):
        learned(spark, lake_of, knowledge, queues.STABILITY_JOB)
    lake_of.write(QUEUE_SAMPLES, [second(0, put=-1)])
    with pytest.raises(LakeEmpty, match="left out: 1 rows negative"):
        learned(spark, lake_of, knowledge, queues.STABILITY_JOB)
    with pytest.raises(LakeMissing, match="there is no lake at"):
        survey(LakeFolder.of(str(tmp_path / "nowhere")), (QUEUE_SAMPLES,), SINCE, UNTIL)
    # Nothing came of them.
    assert knowledge.latest() is None
    assert not (knowledge.folder / "runs").exists() or not list(knowledge.folder.glob("runs/*"))


def test_a_job_that_fails_leaves_the_others_alone(
    spark: SparkSession, lake_of: LakeOf, knowledge: ModelRegistry
) -> None:
    def falls_over(inputs: JobInputs) -> JobResult:
        raise ZeroDivisionError("of its own making")

    def breaks_its_promise(inputs: JobInputs) -> JobResult:
        return JobResult({"counts": inputs.frames["queue_samples"].select("put")})

    def fails_in_spark(inputs: JobInputs) -> JobResult:
        samples = inputs.frames["queue_samples"]
        return JobResult({"late": samples.selectExpr("raise_error('too late') as rows")})

    lake_of.write(QUEUE_SAMPLES, [second(0)])
    reads = ("queue_samples",)

    run = learned(
        spark,
        lake_of,
        knowledge,
        Job("falls", "", reads, {}, falls_over),
        Job("breaks", "", reads, {"counts": COUNT}, breaks_its_promise),
        Job("late", "", reads, {"late": COUNT}, fails_in_spark),
        queues.STABILITY_JOB,
    )

    falls, breaks, late, whole = run.jobs
    assert falls.failure == "ZeroDivisionError: of its own making"
    assert breaks.failure is not None
    assert "promised (rows bigint)" in breaks.failure
    assert late.failure is not None
    assert whole.tables == {"stability": 1}
    stored = knowledge.run()
    assert stored == run
    assert {folder.name for folder in knowledge.run_folder(run.run).iterdir()} == {
        "run.json",
        "stability",
    }


def test_models_are_kept_with_their_verdict(
    spark: SparkSession, lake_of: LakeOf, knowledge: ModelRegistry
) -> None:
    def models(inputs: JobInputs) -> JobResult:
        good = StoredModel("orders", True, "fits", {"a": 0.5}, {"r2": 0.9}, 1, 0.0, 1.0)
        poor = StoredModel("mail", False, "does not fit", {"a": math.nan}, {"r2": 0.1}, 1, 0.0, 1.0)
        return JobResult(models=[good, poor])

    lake_of.write(QUEUE_SAMPLES, [second(0)])

    run = learned(spark, lake_of, knowledge, Job("plant", "", ("queue_samples",), {}, models))

    assert (run.jobs[0].models_accepted, run.jobs[0].models_refused) == (1, {"does not fit": 1})
    assert set(knowledge.accepted("plant")) == {"orders"}
    file = knowledge.model_file("plant", 1)
    assert file is not None
    assert [(model.subject, model.parameters) for model in file.models] == [
        ("orders", {"a": 0.5}),
        ("mail", {}),
    ]
    assert file.run == run.run
    assert file.learned_at.tzinfo == UTC


def _opened(spark: SparkSession, place: LakeFolder, found: Any) -> Any:
    from tidegate.pipeline import lake

    return lake._opened(spark, place, found)
