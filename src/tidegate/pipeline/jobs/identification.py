"""Job `identification`: how prefetch affects the arrival rate of every consumer group.

    samples → with_held_out → by_level → (driver) laws.estimation.identify

Spark only aggregates. A sample holds u(k), y(k) and y(k+1). The sums of least squares are therefore
plain aggregates per group, prefetch and part, without a sort or a join. Some dozens of sums per
group remain. From them the law finds the knee, fits the model below it, and evaluates it on the
held-out part. The prefetch u is constant within a level. Spark therefore computes only the sums
without u; the others follow from them.

A quarter of the time is held out, in blocks of 30 s. Neighbouring seconds resemble each other, so a
single held-out second between fitted ones would be no test. Over a short time, blocks of 30 s could
hold out nothing, or all samples of a level. The block length therefore shrinks, down to 5 s, to
give about twenty blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.laws.estimation import IdentifiedModel, LevelSums, Shape, identify_levels
from tidegate.laws.prefetch.fit import FIELDS, RegressionSums
from tidegate.pipeline.jobs import Job, JobInputs, JobResult
from tidegate.pipeline.lake import Numbers, column_numbers, column_seconds, frame_of
from tidegate.telemetry.models import StoredModel

# Consumer groups: sums by prefetch, and the model that the law identifies from them.
#
# The input is a table of some dozens of rows per group, into which Spark has aggregated the
# samples.


# The standard deviation of the sampling interval, relative to its mean. a and b belong to one
# interval, so samples of several intervals give no valid model.
INTERVAL_VARIATION_MAX = 0.25


@dataclass(frozen=True)
class ConsumerGroup:
    """A consumer group and its identified model."""

    name: str
    rows: int
    found: IdentifiedModel
    interval_s: float
    first_s: float
    last_s: float

    def model(self) -> StoredModel:
        found = self.found
        return StoredModel(
            subject=self.name,
            accepted=found.accepted,
            reason=found.reason,
            parameters={
                "a": found.a,
                "b": found.b,
                "offset_per_s": found.offset_per_s,
                "prefetch_low": found.linear_range.low,
                "prefetch_high": found.linear_range.high,
                "interval_s": self.interval_s,
            },
            quality={
                "r2_train": found.r2_train,
                "r2_test": found.r2_test,
                "rmse_train_per_s": found.rmse_train_per_s,
                "rmse_test_per_s": found.rmse_test_per_s,
                "rows_train": found.n_train,
                "rows_test": found.n_test,
            },
            rows=self.rows,
            from_s=self.first_s,
            to_s=self.last_s,
        )


@dataclass(frozen=True)
class PrefetchLevels:
    """The measured arrival rate at each prefetch of each group, over all samples."""

    # The index of the group.
    group: NDArray[np.int64]
    prefetch: Numbers
    n: Numbers
    mean_per_s: Numbers
    variance: Numbers


def consumer_groups(sums: pa.Table) -> tuple[list[ConsumerGroup], PrefetchLevels]:
    """Return every group with its model, in the order of names, and the levels of all groups.

    `sums` is the result of `by_level`: a row per group, prefetch and part (fitted or held out).
    """
    sums = sums.sort_by([("group", "ascending"), ("prefetch_before", "ascending")])
    names = sums.column("group").combine_chunks().dictionary_encode()
    of_group = names.indices.to_numpy().astype(np.int64)
    begins = np.flatnonzero(np.diff(of_group, prepend=-1))
    prefetch, held_out = (
        column_numbers(sums, "prefetch_before"),
        column_numbers(sums, "held_out") > 0.0,
    )
    whole = _sums(sums)
    levels = _levels(whole, of_group, prefetch)
    if not len(begins):
        return [], levels
    values = np.stack(_parts(whole), axis=1)
    n = np.add.reduceat(whole.n, begins)
    interval_s = np.add.reduceat(column_numbers(sums, "interval"), begins) / n
    interval2 = np.add.reduceat(column_numbers(sums, "interval2"), begins) / n
    variation_s = np.sqrt(np.maximum(interval2 - interval_s**2, 0.0))
    first_s = np.minimum.reduceat(column_seconds(sums, "first_at"), begins)
    last_s = np.maximum.reduceat(column_seconds(sums, "last_at"), begins)
    found = []
    for number, (name, begin, end) in enumerate(
        zip(names.dictionary.to_pylist(), begins, [*begins[1:], len(values)], strict=True)
    ):
        u, part, test = prefetch[begin:end], values[begin:end], held_out[begin:end]
        identified = identify_levels(
            LevelSums(u[~test], part[~test]), LevelSums(u[test], part[test])
        )
        found.append(
            ConsumerGroup(
                name=name,
                rows=int(n[number]),
                found=_of_one_interval(
                    identified, float(interval_s[number]), float(variation_s[number])
                ),
                interval_s=float(interval_s[number]),
                first_s=float(first_s[number]),
                last_s=float(last_s[number]),
            )
        )
    return found, levels


def _sums(sums: pa.Table) -> RegressionSums:
    """Return the sums of least squares, one element per row.

    The prefetch u is constant within a row, so the sums that contain u follow from the other sums.
    """
    n, u = column_numbers(sums, "n"), column_numbers(sums, "prefetch_before")
    y, y_next = column_numbers(sums, "y"), column_numbers(sums, "y_next")
    return RegressionSums(
        n=n,
        y=y,
        u=u * n,
        y_next=y_next,
        y_next2=column_numbers(sums, "y_next2"),
        s1=column_numbers(sums, "s1"),
        s2=u * y,
        s3=u * u * n,
        s4=column_numbers(sums, "s4"),
        s5=u * y_next,
    )


def _parts(sums: RegressionSums) -> list[Numbers]:
    return [getattr(sums, name) for name in FIELDS]


def _levels(sums: RegressionSums, of_group: NDArray[np.int64], prefetch: Numbers) -> PrefetchLevels:
    new = (np.diff(of_group, prepend=-1) != 0) | (np.diff(prefetch, prepend=np.nan) != 0)
    begins = np.flatnonzero(new)
    if not len(begins):
        return PrefetchLevels(of_group, *(prefetch for _ in range(4)))
    together = RegressionSums(*(np.add.reduceat(part, begins) for part in _parts(sums)))
    return PrefetchLevels(
        group=of_group[begins],
        prefetch=prefetch[begins],
        n=together.n,
        mean_per_s=together.y_next / together.n,
        variance=np.maximum(together.y_next_spread() / together.n, 0.0),
    )


def _of_one_interval(
    found: IdentifiedModel, interval_s: float, variation_s: float
) -> IdentifiedModel:
    if variation_s <= INTERVAL_VARIATION_MAX * interval_s:
        return found
    return replace(
        found,
        accepted=False,
        reason=f"samples are {interval_s:.3g} s apart on average but vary by {variation_s:.3g} s: "
        "a and b belong to one interval; learn from a time in which it did not change",
    )


BLOCK_S = 30
BLOCK_S_MIN = 5.0
BLOCKS = 20
HELD_OUT = 0.25
# The multiples of the golden ratio, modulo 1, are spread evenly and never repeat. The held-out
# blocks can therefore not coincide with periodic changes of the prefetch.
GOLDEN = 0.618033988749895

IDENTIFICATION = StructType(
    [
        StructField("group", StringType(), False),
        StructField("accepted", BooleanType(), False),
        StructField("reason", StringType(), False),
        StructField("a", DoubleType()),
        StructField("b", DoubleType()),
        StructField("offset_per_s", DoubleType()),
        StructField("shape", StringType(), False),
        StructField("prefetch_low", DoubleType()),
        StructField("prefetch_high", DoubleType()),
        StructField("r2_train", DoubleType()),
        StructField("r2_test", DoubleType()),
        StructField("rmse_train_per_s", DoubleType()),
        StructField("rmse_test_per_s", DoubleType()),
        StructField("rows_train", LongType(), False),
        StructField("rows_test", LongType(), False),
        StructField("interval_s", DoubleType(), False),
        StructField("first_at", TimestampType(), False),
        StructField("last_at", TimestampType(), False),
    ]
)
# The open loop: the measured rate at each prefetch, and the rate that the model predicts.
PREFETCH_LEVELS = StructType(
    [
        StructField("group", StringType(), False),
        StructField("prefetch", IntegerType(), False),
        StructField("rows", LongType(), False),
        StructField("arrival_per_s", DoubleType(), False),
        StructField("arrival_per_s_stddev", DoubleType()),
        # The rate at which the model settles at this prefetch.
        StructField("settled_per_s", DoubleType()),
        StructField("in_linear_range", BooleanType(), False),
    ]
)


def block_s_for(span_s: float) -> float:
    """Return the length of blocks in seconds for a time span in seconds."""
    return min(max(span_s / BLOCKS, BLOCK_S_MIN), BLOCK_S)


def with_held_out(samples: DataFrame, block_s: float = BLOCK_S) -> DataFrame:
    """Keep the samples from which prefetch can be learned, and mark those that are held out."""
    block = F.floor(F.unix_seconds("at") / F.lit(block_s))
    known = F.col("arrival_before_per_s").isNotNull() & F.col("prefetch_before").isNotNull()
    # A sample in whose interval the prefetch changed belongs to neither value.
    is_steady = F.col("prefetch") == F.col("prefetch_before")
    # An idle consumer waits for messages, so its rate is that of the producers.
    is_busy = F.col("unacknowledged") > 0
    # With automatic acknowledgement, prefetch has no effect.
    speaking = known & ~F.col("automatic") & is_steady & is_busy
    return samples.where(speaking).withColumn(
        "held_out", (block * F.lit(GOLDEN)) % F.lit(1.0) < F.lit(HELD_OUT)
    )


def by_level(samples: DataFrame) -> DataFrame:
    """Return the sums of each group, prefetch and part (fitted or held out)."""
    y, y_next, interval = (
        F.col(name) for name in ("arrival_before_per_s", "arrival_per_s", "interval_s")
    )
    # Use u = 1; the sums are multiplied by the prefetch later, when they are few.
    sums = RegressionSums.of(y=y, u=F.lit(1.0), y_next=y_next)
    added: dict[str, Column] = {
        name: F.sum(getattr(sums, name)) for name in ("y", "y_next", "y_next2", "s1", "s4")
    }
    return samples.groupBy("group", "prefetch_before", "held_out").agg(
        F.count("*").alias("n"),
        *(column.alias(name) for name, column in added.items()),
        F.sum(interval).alias("interval"),
        F.sum(interval * interval).alias("interval2"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
    )


def run(inputs: JobInputs) -> JobResult:
    """Return the model of every group that has usable samples."""
    samples = inputs.frames["consumer_samples"]
    session = samples.sparkSession
    block_s = block_s_for((inputs.until - inputs.since).total_seconds())
    parts = samples.transform(with_held_out, block_s)
    groups, levels = consumer_groups(parts.transform(by_level).toArrow())
    return JobResult(
        tables={
            "identification": frame_of(session, IDENTIFICATION, _identification(groups)),
            "prefetch_levels": frame_of(session, PREFETCH_LEVELS, _prefetch_levels(groups, levels)),
        },
        models=[group.model() for group in groups],
    )


def _identification(groups: Sequence[ConsumerGroup]) -> dict[str, list[Any]]:
    found = [group.found for group in groups]
    return {
        "group": [group.name for group in groups],
        "accepted": [one.accepted for one in found],
        "reason": [one.reason for one in found],
        "a": [one.a for one in found],
        "b": [one.b for one in found],
        "offset_per_s": [one.offset_per_s for one in found],
        "shape": [str(one.linear_range.shape) for one in found],
        "prefetch_low": [one.linear_range.low for one in found],
        "prefetch_high": [one.linear_range.high for one in found],
        "r2_train": [one.r2_train for one in found],
        "r2_test": [one.r2_test for one in found],
        "rmse_train_per_s": [one.rmse_train_per_s for one in found],
        "rmse_test_per_s": [one.rmse_test_per_s for one in found],
        "rows_train": [one.n_train for one in found],
        "rows_test": [one.n_test for one in found],
        "interval_s": [group.interval_s for group in groups],
        "first_at": [_at(group.first_s) for group in groups],
        "last_at": [_at(group.last_s) for group in groups],
    }


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _prefetch_levels(groups: Sequence[ConsumerGroup], levels: PrefetchLevels) -> dict[str, Any]:
    def of_each(value: Callable[[IdentifiedModel], float]) -> Numbers:
        """Return the value of each level's group."""
        return np.array([value(group.found) for group in groups], dtype=np.float64)[levels.group]

    a, b = of_each(lambda found: found.a), of_each(lambda found: found.b)
    offset_per_s = of_each(lambda found: found.offset_per_s)
    low = of_each(lambda found: found.linear_range.low)
    high = of_each(lambda found: found.linear_range.high)
    grows = of_each(lambda found: found.linear_range.shape in (Shape.LINEAR, Shape.KNEE)) > 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        # y = a·y + b·u + offset
        settled_per_s = (b * levels.prefetch + offset_per_s) / (1.0 - a)
    names = np.array([group.name for group in groups], dtype=object)
    return {
        "group": names[levels.group],
        "prefetch": levels.prefetch.astype(np.int32),
        "rows": levels.n.astype(np.int64),
        "arrival_per_s": levels.mean_per_s,
        "arrival_per_s_stddev": np.sqrt(levels.variance),
        "settled_per_s": np.where(np.abs(a) < 1.0, settled_per_s, np.nan),
        "in_linear_range": grows & (levels.prefetch >= low) & (levels.prefetch <= high),
    }


JOB = Job(
    name="identification",
    says="How prefetch drives the arrival rate",
    reads=("consumer_samples",),
    writes={"identification": IDENTIFICATION, "prefetch_levels": PREFETCH_LEVELS},
    models="prefetch",
    run=run,
)
