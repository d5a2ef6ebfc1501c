"""Job `compliance`: whether agreements were kept, per window and over the newest period of each.

    samples.transform(measure_queues(agreements)).transform(judge_windows(agreements))

The table `compliance` has a row per agreement and window, `promises` a row per agreement, window
and metric. `service_levels` has a row per agreement with its error budget. A budget belongs to a
period. It counts the windows that ended less than a period before the last one, even if `learn`
looks further back. The verdicts come from `pipeline.promises`, which `watch` uses too; the budget
is computed by `agreements.evaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.agreements import PLAIN, Worse
from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import (
    Verdict,
    WarningLesson,
    budget_left,
    burn_rate,
    with_learned_warnings,
    worsening_per_s,
)
from tidegate.laws.estimation import boot_time_s
from tidegate.pipeline.jobs import Job, JobInputs, JobResult, Transform, percentiles
from tidegate.pipeline.lake import frame_of
from tidegate.pipeline.promises import (
    QUEUES,
    SERVICES,
    SubjectKind,
    judge_windows,
    measure_doors,
    measure_queues,
    rows_by_agreement,
)
from tidegate.telemetry.models import StoredModel

COMPLIANCE = StructType(
    [
        StructField("agreement", StringType()),
        StructField("window", TimestampType()),
        StructField("window_s", DoubleType()),
        StructField("verdict", StringType()),
    ]
)
PROMISES = StructType(
    [
        StructField("agreement", StringType()),
        StructField("window", TimestampType()),
        StructField("metric", StringType()),
        # A percentile has `within`, the fraction below the breaching point; other metrics have
        # `value`.
        StructField("value", DoubleType()),
        StructField("within", DoubleType()),
        StructField("verdict", StringType()),
    ]
)
SERVICE_LEVELS = StructType(
    [
        StructField("agreement", StringType()),
        StructField("from", TimestampType()),
        StructField("to", TimestampType()),
        StructField("window_s", DoubleType()),
        StructField("objective", DoubleType()),
        StructField("met", LongType()),
        StructField("warned", LongType()),
        StructField("breached", LongType()),
        StructField("no_data", LongType()),
        StructField("budget_left", DoubleType()),
        StructField("burn_rate", DoubleType()),
    ]
)


def each_promise(windows: DataFrame) -> DataFrame:
    """Return a row for every promise in every window."""
    return windows.select("agreement", "window", F.inline("promises"))


def service_levels(agreements: Sequence[Agreement]) -> Transform:
    """Return a transform to one row per agreement, also for agreements without any data."""

    def transform(windows: DataFrame) -> DataFrame:
        declared = windows.sparkSession.createDataFrame(
            [
                (one.name, one.window_s, one.objective, one.period_s, one.windows_in_period)
                for one in agreements
            ],
            "agreement string, window_s double, objective double, period_s double, "
            "windows_in_period double",
        )
        counts = (
            windows.transform(_newest_period(declared))
            .groupBy("agreement")
            .agg(
                F.min("window").alias("from"),
                F.max("window").alias("last"),
                F.count("*").alias("windows"),
                *(F.count_if(F.col("verdict") == v.value).alias(v.value) for v in Verdict),
            )
        )
        # Windows without any sample are absent between the first and the last; count them as no
        # data.
        missing = F.round(
            (F.unix_micros("last") - F.unix_micros("from")) / 1e6 / F.col("window_s")
            + 1
            - F.col("windows")
        )
        breached = F.coalesce("breached", F.lit(0))
        seen = F.col("met") + F.col("warned") + F.col("breached")
        return declared.join(counts, "agreement", "left").select(
            "agreement",
            "from",
            F.timestamp_micros(
                F.unix_micros("last") + (F.col("window_s") * 1e6).cast("bigint")
            ).alias("to"),
            "window_s",
            "objective",
            *(F.coalesce(v, F.lit(0)).alias(v) for v in ("met", "warned", "breached")),
            F.coalesce(F.col("no_data") + missing, F.lit(0)).cast("bigint").alias("no_data"),
            budget_left(breached, F.col("windows_in_period"), F.col("objective")).alias(
                "budget_left"
            ),
            F.when(seen > 0, burn_rate(F.col("breached"), seen, F.col("objective"))).alias(
                "burn_rate"
            ),
        )

    return transform


def _newest_period(declared: DataFrame) -> Transform:
    """Return a transform that keeps the windows of each agreement's newest period.

    These are the windows that end less than a period before the agreement's last window ends.
    """

    def transform(windows: DataFrame) -> DataFrame:
        newest = windows.groupBy("agreement").agg(F.max("window").alias("newest"))
        periods = declared.select("agreement", "period_s").join(newest, "agreement")
        age_s = (F.unix_micros("newest") - F.unix_micros("window")) / 1e6
        return windows.join(F.broadcast(periods), "agreement").where(age_s < F.col("period_s"))

    return transform


def run_compliance(inputs: JobInputs) -> JobResult:
    frames = inputs.frames
    spark = frames["queue_samples"].sparkSession
    if not inputs.agreements:
        return _nothing(spark)
    parts = []
    if queues := [one for one in inputs.agreements if one.queue is not None]:
        sums = frames["queue_samples"].transform(measure_queues(queues, frames["lifecycles"]))
        parts.append(sums.transform(judge_windows(queues)))
    if services := [one for one in inputs.agreements if one.http is not None]:
        sums = frames["http_samples"].transform(measure_doors(services))
        parts.append(sums.transform(judge_windows(services)))
    # Compute the windows once: three tables use them.
    windows = reduce(DataFrame.unionByName, parts).localCheckpoint()
    return JobResult(
        {
            "compliance": windows.select(*COMPLIANCE.names),
            "promises": windows.transform(each_promise),
            "service_levels": windows.transform(service_levels(inputs.agreements)),
        }
    )


def _nothing(spark: SparkSession) -> JobResult:
    return JobResult({name: spark.createDataFrame([], schema) for name, schema in _WRITES.items()})


_WRITES = {"compliance": COMPLIANCE, "promises": PROMISES, "service_levels": SERVICE_LEVELS}

COMPLIANCE_JOB = Job(
    "compliance",
    "Met, warned or breached, per agreement and window; error budgets",
    reads=("queue_samples", "lifecycles", "http_samples"),
    writes=_WRITES,
    run=run_compliance,
)


# Job `warnings`: where to put the warning points that agreements ask to learn.
#
#     samples → readings → steepest          the largest slope of each promise, window to window
#     events reconfigured → took             the mean of a few, the 95th percentile from 20 on
#     (driver) agreements.evaluation         margin = 1.25 · slope · time to reconfigure
#
# A warning must come early enough that a reconfiguration ends before the breach. The job therefore
# learns how fast each promise got worse at most, and how long reconfigurations took.
#
# Two metrics have no slope. Throughput falls whenever the load does. Response times of queues are
# sampled, so that the slope between two windows is mostly chance.


# With fewer windows the largest slope says little.
WINDOWS_MIN = 10
_KEYS = ("number", "begins_us")

WARNINGS_SCHEMA = StructType(
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


def readings(agreements: Sequence[Agreement], subjects: SubjectKind) -> Transform:
    """Return a transform to the value of every promise in every window.

    The columns are the index of the agreement, the start of the window, metric and value.
    """

    def transform(samples: DataFrame) -> DataFrame:
        rows = samples.transform(subjects.worded).transform(rows_by_agreement(agreements, subjects))
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


def run_warnings(inputs: JobInputs) -> JobResult:
    """Return a model for each agreement with a warning to learn, and a table of slopes."""
    frames = inputs.frames
    spark = frames["queue_samples"].sparkSession
    agreements = [one for one in inputs.agreements if any(m.learned for m in one.metrics)]
    if not agreements:
        return JobResult({"learned_warnings": spark.createDataFrame([], WARNINGS_SCHEMA)})
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
    columns = {
        name: [row[place] for row in rows] for place, name in enumerate(WARNINGS_SCHEMA.names)
    }
    return JobResult({"learned_warnings": frame_of(spark, WARNINGS_SCHEMA, columns)}, models)


def _slopes(
    samples: DataFrame, agreements: Sequence[Agreement], subjects: SubjectKind
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
    lessons: Mapping[str, WarningLesson],
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
    lessons: Sequence[WarningLesson],
    inputs: JobInputs,
) -> StoredModel:
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
    return StoredModel(
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


WARNINGS_JOB = Job(
    name="warnings",
    says="How fast promises got worse, how long help took, and where to warn",
    reads=("queue_samples", "http_samples", "events"),
    writes={"learned_warnings": WARNINGS_SCHEMA},
    run=run_warnings,
)
