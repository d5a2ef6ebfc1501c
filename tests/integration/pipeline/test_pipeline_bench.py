"""The pipeline's benchmark on a small lake: what it counts is what there is."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tidegate.pipeline.jobs import identification
from tidegate_lab.bench.pipeline import PipelineOptions, measure


def test_every_size_is_measured_on_a_lake_that_grows(spark: SparkSession, tmp_path: Path) -> None:
    options = PipelineOptions(rows=(4_000, 2_000), subjects=20, warm_rows=1_000, rounds=1)
    said: list[str] = []

    found = measure(spark, identification.JOB, tmp_path, options, said.append)

    assert [one.rows for one in found] == [2_000, 4_000]
    for one in found:
        assert one.rows_per_s == one.rows / one.job_s
        assert one.learn_s > one.job_s > 0.0
        assert one.memory_gib > 0.1
    assert said[0] == "identification: warm"
