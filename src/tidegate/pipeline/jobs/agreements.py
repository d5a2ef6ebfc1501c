"""Job `warnings`: where to put the warning points that agreements ask to learn.

    samples → readings → steepest          the largest slope of each promise, window to window
    events reconfigured → took             the mean of a few, the 95th percentile from 20 on
    (driver) agreement.learned_warnings    margin = 1.25 · slope · time to reconfigure

A warning must come early enough that a reconfiguration ends before the breach. The job therefore
learns how fast each promise got worse at most, and how long reconfigurations took.

Two metrics have no slope. Throughput falls whenever the load does. Response times of queues are
sampled, so that the slope between two windows is mostly chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from tidegate.agreement.document import Agreement
from tidegate.agreement.learned_warnings import Lesson, with_learned_warnings, worsening_per_s
from tidegate.agreement.metrics import PLAIN, Worse
from tidegate.laws.provisioning import boot_time_s
from tidegate.pipeline.agreed_samples import QUEUES, SERVICES, Subjects
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.local_table import frame_of
from tidegate.pipeline.percentiles import percentiles
from tidegate.pipeline.promises import governed
from tidegate.pipeline.transform import Transform
from tidegate.telemetry.knowledge import Model

# With fewer windows the largest slope says little.
WINDOWS_MIN = 10
_KEYS = ("number", "begins_us")

SCHEMA = StructType(
    [
        StructField("agreement", StringType(), False),
        StructField("metric", StringType(), False),
        # The largest slope, in the metric's unit per second, and in how many windows it was looked
        # for.
        StructField("slope_per_s", DoubleType()),
        StructField("windows", LongType(), False),
        StructField("reconfiguration_s", DoubleType()),
        StructField("breach", DoubleType(), False),
        # The warning in force, and the learned one. Null means that none was learned.
        StructField("warning", DoubleType(), False),
        StructField("learned", DoubleType()),
        StructField("says", StringType(), False),
    ]
)


def readings(agreements: Sequence[Agreement], subjects: Subjects) -> Transform:
    """Return a transform to the value of every promise in every window.

    The columns are the index of the agreement, the start of the window, metric and value.
    """

    def transform(samples: DataFrame) -> DataFrame:
        rows = samples.transform(subjects.worded).transform(governed(agreements, subjects))
        plain = rows.groupBy(*_KEYS).agg(
            F.max("oldest_age_s").alias("oldest_age"),
            F.min("free_memory_bytes").alias("free_memory"),
            F.try_divide(F.sum("accepted"), F.sum("accepted") + F.sum("refused")).alias(
                "availability"
            ),
        )
        parts = [plain.transform(_by_metric("oldest_age", "free_memory", "availability"))]
        for stem in subjects.histograms:
            promised = {
                metric.name: metric.percentile
                for one in agreements
                for metric in one.metrics
                if metric.stem == stem and metric.percentile is not None
            }
            if promised:
                found = rows.transform(percentiles(stem, _KEYS, promised))
                parts.append(found.transform(_by_metric(*promised)))
        return reduce(DataFrame.unionByName, parts)

    return transform


def _by_metric(*names: str) -> Transform:
    def transform(windows: DataFrame) -> DataFrame:
        found = F.explode(
            F.array(
                *(
                    F.struct(F.lit(name).alias("metric"), F.col(name).alias("value"))
                    for name in names
                )
            )
        )
        return windows.select(*_KEYS, found.alias("found")).select(*_KEYS, "found.*")

    return transform


def steepest(values: DataFrame) -> DataFrame:
    """Return the largest slope of each promise between successive windows that have data."""
    over = Window.partitionBy("number", "metric").orderBy("begins_us")
    before, before_us = F.lag("value").over(over), F.lag("begins_us").over(over)
    seconds = (F.col("begins_us") - before_us) / 1e6
    return (
        values.where(F.col("value").isNotNull())
        .withColumn("slope_per_s", _worsening(before, seconds))
        .groupBy("number", "metric")
        .agg(
            F.greatest(F.max("slope_per_s"), F.lit(0.0)).alias("slope_per_s"),
            F.count("*").alias("windows"),
        )
    )


def _worsening(before: Column, seconds: Column) -> Column:
    smaller = [name for name, kind in PLAIN.items() if kind.worse is Worse.SMALLER]
    value = F.col("value")
    falls: Column = worsening_per_s(Worse.SMALLER, before, value, seconds)
    rises: Column = worsening_per_s(Worse.LARGER, before, value, seconds)
    return F.when(F.col("metric").isin(smaller), falls).otherwise(rises)


def took(events: DataFrame) -> DataFrame:
    """Return how long each reconfiguration took, with its subject."""
    took_s = F.col("duration_s")
    return (
        events.where((F.col("event") == "reconfigured") & (took_s >= 0))
        # A new leader may record the reconfigurations before its time again.
        .dropDuplicates(["subject", "at", "duration_s"])
        .select("subject", "duration_s")
    )


def run(inputs: Inputs) -> Outcome:
    """Return a model for each agreement with a warning to learn, and a table of slopes."""
    frames = inputs.frames
    spark = frames["queue_samples"].sparkSession
    agreements = [one for one in inputs.agreements if any(m.learned for m in one.metrics)]
    if not agreements:
        return Outcome({"learned_warnings": spark.createDataFrame([], SCHEMA)})
    times_s: dict[str, list[float]] = {}
    for row in frames["events"].transform(took).toArrow().to_pylist():
        times_s.setdefault(row["subject"], []).append(row["duration_s"])
    slopes = _slopes(frames["queue_samples"], agreements, QUEUES)
    slopes |= _slopes(frames["http_samples"], agreements, SERVICES)
    rows: list[tuple[object, ...]] = []
    models = []
    for one in agreements:
        of_it = {metric: seen for (name, metric), seen in slopes.items() if name == one.name}
        helped_s, how = reconfiguration(one, times_s)
        known = {m: slope for m, (slope, windows) in of_it.items() if windows >= WINDOWS_MIN}
        lessons = [] if helped_s is None else with_learned_warnings(one, known, helped_s)[1]
        rows += _rows(one, of_it, helped_s, {lesson.metric: lesson for lesson in lessons})
        models.append(_model(one, known, of_it, helped_s, how, lessons, inputs))
    columns = {name: [row[place] for row in rows] for place, name in enumerate(SCHEMA.names)}
    return Outcome({"learned_warnings": frame_of(spark, SCHEMA, columns)}, models)


def _slopes(
    samples: DataFrame, agreements: Sequence[Agreement], subjects: Subjects
) -> dict[tuple[str, str], tuple[float, int]]:
    """Return the slope and the number of windows, by agreement and metric."""
    about = [one for one in agreements if subjects.said(one) is not None]
    if not about:
        return {}
    found = samples.transform(readings(about, subjects)).transform(steepest).toArrow().to_pylist()
    return {
        (about[row["number"]].name, row["metric"]): (row["slope_per_s"], row["windows"])
        for row in found
        if row["windows"] > 1
    }


def reconfiguration(
    one: Agreement, times_s: Mapping[str, Sequence[float]]
) -> tuple[float | None, str]:
    """Return how long a reconfiguration takes, and how that is known.

    Recorded reconfigurations take precedence over the value in the agreement. Without either the
    time is `None`.
    """
    subjects = QUEUES if one.http is None else SERVICES
    seen = [
        took_s
        for name, of_name in times_s.items()
        if subjects.governs(one, name)
        for took_s in of_name
    ]
    if seen:
        found = boot_time_s(seen)
        return found.boot_s, f"{found.kind} of {found.n} reconfiguration(s)"
    if one.resources.reconfiguration_s is not None:
        return one.resources.reconfiguration_s, "as the agreement says"
    return None, "no reconfiguration was recorded, and the agreement says no `reconfiguration`"


def _rows(
    one: Agreement,
    slopes: Mapping[str, tuple[float, int]],
    helped_s: float | None,
    lessons: Mapping[str, Lesson],
) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for metric in one.metrics:
        slope, windows = slopes.get(metric.name, (None, 0))
        lesson = lessons.get(metric.name)
        says = (
            lesson.because
            if lesson
            else "nothing was measured"
            if slope is None
            else "it is not to be learned"
            if not metric.learned
            else "too little was seen to learn it"
        )
        learned = lesson.warning if lesson and lesson.warning != metric.warning else None
        seen = (slope, windows, helped_s)
        points = (metric.breach, metric.warning, learned)
        found.append((one.name, metric.name, *seen, *points, says))
    return found


def _model(
    one: Agreement,
    known: Mapping[str, float],
    slopes: Mapping[str, tuple[float, int]],
    helped_s: float | None,
    how: str,
    lessons: Sequence[Lesson],
    inputs: Inputs,
) -> Model:
    wanted = [metric.name for metric in one.metrics if metric.learned]
    missing = [name for name in wanted if name not in known]
    reasons = [f"{lesson.metric}: {lesson.because}" for lesson in lessons]
    if helped_s is None:
        reasons = [how]
    elif missing:
        reasons.append(f"{', '.join(missing)}: not seen in {WINDOWS_MIN} windows")
    parameters = {f"slope_{name}": slope for name, slope in known.items() if name in wanted}
    if helped_s is not None:
        parameters["reconfiguration_s"] = helped_s
    parameters |= {f"warning_{lesson.metric}": lesson.warning for lesson in lessons}
    return Model(
        subject=one.name,
        # A model of some of the promises is useful without the others.
        accepted=bool(lessons),
        reason="; ".join(reasons) + (f" ({how})" if helped_s is not None else ""),
        parameters=parameters,
        quality={f"windows_{name}": slopes[name][1] for name in wanted if name in slopes},
        rows=sum(windows for _, windows in slopes.values()),
        from_s=inputs.since.timestamp(),
        to_s=inputs.until.timestamp(),
    )


JOB = Job(
    name="warnings",
    says="How fast promises got worse, how long help took, and where to warn",
    reads=("queue_samples", "http_samples", "events"),
    writes={"learned_warnings": SCHEMA},
    run=run,
)
