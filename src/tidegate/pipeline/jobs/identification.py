"""How prefetch drives the arrival rate, for every consumer group in one pass.

    samples → with_held_out → by_level → (driver) laws.identification.identify

Strategy: Spark adds up. A sample carries u(k), y(k) and y(k+1), so the sums of least squares are
plain aggregates per group, prefetch and part, and nothing is sorted or joined. Some dozens of
sums per group remain; from them the law finds the knee, fits below it, and judges the fit on the
held-out part. Within one level the prefetch is a constant, so of S1–S5 only those without u are
added up, and the others follow.

Held out is a quarter of the time, in blocks of half a minute: neighbouring seconds resemble each
other, and a second between two that were fitted would be no test.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that everyone knows
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

from tidegate.laws.identification import Identified, Sums, identify
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.local_table import finite, frame_of, numbers
from tidegate.telemetry.knowledge import Model

MODELS = "prefetch"
BLOCK_S = 30
HELD_OUT = 0.25
# Multiples of it, modulo 1, are spread evenly and repeat no pattern: blocks that are held out fall
# into step with no regular change of the prefetch.
GOLDEN = 0.618033988749895
# a and b are those of one sampling interval; samples of several are of several models.
INTERVAL_VARIATION_MAX = 0.25

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
# The open loop: what was measured at each prefetch, and what the model says of it.
PREFETCH_LEVELS = StructType(
    [
        StructField("group", StringType(), False),
        StructField("prefetch", IntegerType(), False),
        StructField("rows", LongType(), False),
        StructField("arrival_per_s", DoubleType(), False),
        StructField("arrival_per_s_stddev", DoubleType()),
        # Where the model's rate settles at this prefetch.
        StructField("settled_per_s", DoubleType()),
        StructField("in_linear_range", BooleanType(), False),
    ]
)


def with_held_out(samples: DataFrame) -> DataFrame:
    """Samples that say what was before them, and whether they are for fitting or for judging."""
    block = F.floor(F.unix_seconds("at") / F.lit(BLOCK_S))
    known = F.col("arrival_before_per_s").isNotNull() & F.col("prefetch_before").isNotNull()
    # Without acknowledgements there is no prefetch to speak of.
    return samples.where(known & ~F.col("automatic")).withColumn(
        "held_out", (block * F.lit(GOLDEN)) % F.lit(1.0) < F.lit(HELD_OUT)
    )


def by_level(samples: DataFrame) -> DataFrame:
    """The sums of each group, prefetch and part."""
    y, y_next, interval = (
        F.col(name) for name in ("arrival_before_per_s", "arrival_per_s", "interval_s")
    )
    # A u of 1 stands for the level, which is put in when the sums are few.
    sums = Sums.of(y=y, u=F.lit(1.0), y_next=y_next)
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


def run(inputs: Inputs) -> Outcome:
    """The model of every group that the samples speak of."""
    samples = inputs.frames["consumer_samples"]
    session = samples.sparkSession
    groups = groups_of(samples.transform(with_held_out).transform(by_level).toArrow())
    return Outcome(
        tables={
            "identification": frame_of(session, IDENTIFICATION, _identification(groups)),
            "prefetch_levels": frame_of(session, PREFETCH_LEVELS, _prefetch_levels(groups)),
        },
        models=[group.model() for group in groups],
    )


JOB = Job(
    name="identification",
    says="How prefetch drives the arrival rate",
    reads=("consumer_samples",),
    writes={"identification": IDENTIFICATION, "prefetch_levels": PREFETCH_LEVELS},
    run=run,
)


@dataclass(frozen=True)
class Group:
    """One consumer group: the sums of its levels, and what the law made of them."""

    name: str
    rows: int
    # By prefetch, over both parts.
    levels: Mapping[float, Sums]
    found: Identified
    interval_s: float
    first_s: float
    last_s: float

    def model(self) -> Model:
        found = self.found
        return Model(
            subject=self.name,
            accepted=found.accepted,
            reason=found.reason,
            parameters=finite(
                {
                    "a": found.a,
                    "b": found.b,
                    "offset_per_s": found.offset_per_s,
                    "prefetch_low": found.linear_range.low,
                    "prefetch_high": found.linear_range.high,
                    "interval_s": self.interval_s,
                }
            ),
            quality=finite(
                {
                    "r2_train": found.r2_train,
                    "r2_test": found.r2_test,
                    "rmse_train_per_s": found.rmse_train_per_s,
                    "rmse_test_per_s": found.rmse_test_per_s,
                    "rows_train": found.n_train,
                    "rows_test": found.n_test,
                }
            ),
            rows=self.rows,
            from_s=self.first_s,
            to_s=self.last_s,
        )


def groups_of(levels: pa.Table) -> list[Group]:
    """Every group with its model, by name, from the table that `by_level` makes."""
    levels = levels.sort_by([("group", "ascending"), ("prefetch_before", "ascending")])
    names = levels.column("group").combine_chunks().dictionary_encode()
    bounds = np.flatnonzero(np.diff(names.indices.to_numpy(), prepend=-1, append=-1))
    n, u = numbers(levels, "n"), numbers(levels, "prefetch_before")
    y, y_next = numbers(levels, "y"), numbers(levels, "y_next")
    columns = {
        "n": n,
        "y": y,
        "u": u * n,
        "y_next": y_next,
        "y_next2": numbers(levels, "y_next2"),
        "s1": numbers(levels, "s1"),
        "s2": u * y,
        "s3": u * u * n,
        "s4": numbers(levels, "s4"),
        "s5": u * y_next,
    }
    # Plain numbers: laws that take one group at a time are faster with them.
    sums = [Sums(*row) for row in zip(*(columns[f].tolist() for f in FIELDS), strict=True)]
    whole = _Whole(levels, bounds[:-1], n)
    prefetches, held_out = u.tolist(), levels.column("held_out").to_pylist()
    return [
        _group(
            str(name),
            prefetches[begin:end],
            held_out[begin:end],
            sums[begin:end],
            whole,
            number,
        )
        for number, (name, begin, end) in enumerate(
            zip(names.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True)
        )
    ]
