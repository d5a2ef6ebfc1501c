"""The identification job on rows whose model is known."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from lake_of import NOON, frame_of
from pyspark.sql import DataFrame, SparkSession

from tidegate.pipeline.jobs import JobInputs, identification
from tidegate.pipeline.lake import checked
from tidegate.telemetry.schemas import CONSUMER_SAMPLES
from tidegate_lab.bench.synthetic_lake import SyntheticLake, SyntheticOptions

SINCE, UNTIL = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def inputs(samples: DataFrame) -> JobInputs:
    return JobInputs({"consumer_samples": samples}, [], SINCE, UNTIL)


def samples_of(spark: SparkSession, *rows: tuple[float, int, float]) -> DataFrame:
    """y(k), u(k), y(k+1), one a second."""
    return frame_of(
        spark,
        CONSUMER_SAMPLES,
        [
            {
                "at": NOON + timedelta(seconds=second),
                "group": "orders/billing",
                "arrival_before_per_s": y,
                "prefetch_before": u,
                "arrival_per_s": y_next,
                "prefetch": u,
                "unacknowledged": u,
            }
            for second, (y, u, y_next) in enumerate(rows)
        ],
    )


def test_sums_of_a_dozen_rows_by_hand(spark: SparkSession) -> None:
    rows = [(10.0, 1, 20.0), (20.0, 1, 30.0), (30.0, 2, 40.0)] * 4
    samples = samples_of(spark, *rows)
    plain = {
        "group": "orders/billing",
        "arrival_per_s": 7.0,
        "arrival_before_per_s": 7.0,
        "prefetch_before": 7,
        "prefetch": 7,
        "unacknowledged": 7,
    }
    silent = frame_of(
        spark,
        CONSUMER_SAMPLES,
        [
            plain | {"arrival_before_per_s": None, "prefetch_before": None},
            plain | {"automatic": True},
            # Its prefetch changed on the way; it had nothing to do.
            plain | {"prefetch": 8},
            plain | {"unacknowledged": 0},
        ],
    )

    found = (
        samples.union(silent)
        .transform(identification.with_held_out)
        .transform(identification.by_level)
        .collect()
    )

    # All of it lies in one block of half a minute.
    assert len(found) == 2
    one, two = sorted((row.asDict() for row in found), key=lambda row: row["prefetch_before"])
    assert (one["prefetch_before"], two["prefetch_before"]) == (1, 2)
    assert (one["n"], two["n"]) == (8, 4)
    assert (one["y"], two["y"]) == (120.0, 120.0)
    assert (one["y_next"], two["y_next"]) == (200.0, 160.0)
    assert (one["s1"], two["s1"]) == (2_000.0, 3_600.0)
    assert (one["s4"], two["s4"]) == (4 * (200.0 + 600.0), 4_800.0)
    assert (one["y_next2"], two["y_next2"]) == (4 * (400.0 + 900.0), 6_400.0)
    assert (one["interval"], one["interval2"]) == (8.0, 8.0)


def test_a_quarter_of_the_time_is_held_out_in_blocks(spark: SparkSession) -> None:
    rows = [(10.0, 1, 10.0)] * (40 * identification.BLOCK_S)

    held_out = [
        row["held_out"]
        for row in samples_of(spark, *rows)
        .transform(identification.with_held_out)
        .orderBy("at")
        .collect()
    ]

    assert sum(held_out) / len(held_out) == pytest.approx(identification.HELD_OUT, abs=0.03)
    changes = sum(1 for before, after in pairwise(held_out) if before != after)
    # Whole blocks: ten of them held out, each with two ends.
    assert changes <= 20


def test_of_little_time_something_is_held_out_too(spark: SparkSession) -> None:
    block_s = identification.block_s_for(100.0)
    # Wherever two minutes begin.
    for begin_s in range(0, 600, 50):
        rows = [(10.0, 1, 10.0)] * (begin_s + 100)
        held_out = [
            row["held_out"]
            for row in samples_of(spark, *rows)
            .transform(identification.with_held_out, block_s)
            .orderBy("at")
            .collect()
        ][begin_s:]
        assert 0.1 <= sum(held_out) / len(held_out) <= 0.45
    assert identification.block_s_for(3600.0) == identification.BLOCK_S


def test_a_and_b_are_those_of_numpy(spark: SparkSession) -> None:
    # Given noisy samples of a plant that is linear all the way.
    dice = random.Random(3)
    rows, y = [], 100.0
    for second in range(600):
        u = 1 + (second // 7 * 5) % 11
        y_next = 0.4 * y + 12.0 * u + dice.gauss(0.0, 4.0)
        rows.append((y, u, y_next))
        y = y_next
    samples = samples_of(spark, *rows)

    outcome = identification.run(inputs(samples))

    (model,) = outcome.models
    assert model.accepted, model.reason
    train = (
        samples.transform(identification.with_held_out)
        .where("not held_out")
        .select("arrival_before_per_s", "prefetch_before", "arrival_per_s")
        .collect()
    )
    matrix = np.array([(row[0], row[1], 1.0) for row in train])
    (a, b, offset), *_ = np.linalg.lstsq(matrix, np.array([row[2] for row in train]), rcond=None)
    assert model.parameters["a"] == pytest.approx(a, rel=1e-6)
    assert model.parameters["b"] == pytest.approx(b, rel=1e-6)
    assert model.parameters["offset_per_s"] == pytest.approx(offset, rel=1e-4)
    assert model.quality["r2_test"] > 0.95


def test_known_plants_are_recovered_within_two_percent(spark: SparkSession, tmp_path: Path) -> None:
    lake = SyntheticLake(tmp_path, SyntheticOptions(subjects=50, rows_per_file=100_000))
    lake.grow_to("consumer_samples", 50 * 8_000)
    samples = spark.read.parquet(str(tmp_path / "consumer_samples"))

    outcome = identification.run(inputs(samples))

    models = {model.subject: model for model in outcome.models}
    for number, group in enumerate(lake.names("group")):
        model = models[group]
        assert model.accepted, model.reason
        assert model.parameters["a"] == pytest.approx(lake.plants.a[number], rel=0.02)
        assert model.parameters["b"] == pytest.approx(lake.plants.b[number], rel=0.02)
        # The knee of the plant is known; one level off costs nothing.
        assert model.parameters["prefetch_high"] == pytest.approx(lake.plants.knee[number], abs=1)
    tables = outcome.tables
    checked(tables["identification"], identification.IDENTIFICATION, "identification")
    levels = checked(tables["prefetch_levels"], identification.PREFETCH_LEVELS, "levels").collect()
    assert len(levels) == 50 * 30
    beyond = [row for row in levels if row["group"] == lake.names("group")[0]]
    assert [row["in_linear_range"] for row in beyond].count(True) == models[
        lake.names("group")[0]
    ].parameters["prefetch_high"]


def test_identification_without_excitation_is_refused_with_a_reason(spark: SparkSession) -> None:
    outcome = identification.run(inputs(samples_of(spark, *[(10.0, 5, 10.0)] * 300)))

    (model,) = outcome.models
    assert not model.accepted
    assert "the prefetch never changed" in model.reason
    (row,) = outcome.tables["identification"].collect()
    assert row["a"] is None
    assert row["reason"] == model.reason


def test_samples_of_two_intervals_are_no_model(spark: SparkSession) -> None:
    rows = [
        {
            "at": NOON + timedelta(seconds=second),
            "group": "orders/billing",
            "interval_s": 1.0 if second % 2 else 10.0,
            "arrival_before_per_s": float(second % 13),
            "prefetch_before": 1 + second % 5,
            "prefetch": 1 + second % 5,
            "unacknowledged": 1,
            "arrival_per_s": float(second % 5),
        }
        for second in range(300)
    ]

    (model,) = identification.run(inputs(frame_of(spark, CONSUMER_SAMPLES, rows))).models

    assert not model.accepted
    assert "one interval" in model.reason


def test_no_samples_are_no_models(spark: SparkSession) -> None:
    outcome = identification.run(inputs(frame_of(spark, CONSUMER_SAMPLES, [])))

    assert not outcome.models
    assert outcome.tables["identification"].count() == 0
