"""From samples to verdicts: measure and judge the windows of agreements in Spark.

    samples.transform(measure_queues(agreements)).transform(judge_windows(agreements))

Theory of operation

An agreement promises metrics of a queue (or several, by wild cards) or of an HTTP service, per
window of time. Measuring and judging are separate transforms. `learn` applies them to the whole
history, `watch` to each batch of complete windows, so both reach the same verdicts.

1. `rows_by_agreement` joins each sample with every agreement about its subject, and computes the
   window that holds it. The agreements are a small broadcast table, so the samples are read once,
   however many agreements there are. A sample that two agreements govern becomes two rows.
2. `measure_queues` and `measure_doors` sum the rows of an agreement and window. All queues, or all
   doors, of an agreement are summed as one: their rates add up and their histograms merge.
3. `judge_windows` compares the sums with the promises. A window has the worst verdict of its
   promises.

Percentiles are never computed. "The 99th percentile is below T" is the same as "at least 99 % are
shorter than T", and counts of shorter durations add up. Each percentile promise therefore occupies
a `PercentilePromise`: a number n and two columns, the counts below its warning and its breaching
point. Agreements share these columns; the n-th promise of each about the same stem uses the n-th
pair.

Special cases

- A request without an answer counts in the total and below no point. It makes a percentile worse.
- A window whose percentile has no data, or whose metric is not recorded, gets `no_data`.
- A breach at a load above the agreement's `load_max` counts as a warning only.
- Throughput is judged only if there was work for at least half of the recorded time of a window;
  otherwise it counts as met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.agreements import Metric
from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import (
    LOADED_MIN,
    SEVERITY,
    Verdict,
    bad_requests,
    good_requests,
    is_breached,
    is_excused,
    is_late,
    is_warned,
)
from tidegate.pipeline.jobs import Transform, first_bucket_from

_RESPONSE = "response"
_STEMS = ("wait", "service", _RESPONSE)
# If any of them is above 0, there was work to do.
_COUNTS = ("accepted", "served", "refused", "came", "waiting")
_SUMS = ("accepted", "served", "refused", "came", "unanswered")
# The index of the agreement, and the start of its window.
_KEYS = ("number", "begins_us")


@dataclass(frozen=True)
class PercentilePromise:
    """The n-th percentile promise of each agreement about a stem such as `wait`."""

    stem: str
    number: int

    @property
    def warning(self) -> str:
        """The column that counts durations below the warning point."""
        return f"{self.stem}_{self.number}_before_warning"

    @property
    def breach(self) -> str:
        """The column that counts durations below the breaching point."""
        return f"{self.stem}_{self.number}_before_breach"


def measure_queues(
    agreements: Sequence[Agreement], lifecycles: DataFrame | None = None
) -> Transform:
    """Return a transform from `queue_samples` to sums per agreement and window.

    Response times are taken from `lifecycles`; with `None` they have no data.
    """

    def transform(samples: DataFrame) -> DataFrame:
        sums = samples.transform(_summed(agreements, QUEUES))
        if percentile_slots(agreements, _RESPONSE) and lifecycles is not None:
            responses = lifecycles.transform(_measured_responses(agreements))
            sums = sums.join(responses, [*_KEYS], "left")
        return sums.transform(_named(agreements))

    return transform


def measure_doors(agreements: Sequence[Agreement]) -> Transform:
    """Return a transform from `http_samples` to sums per agreement and window."""

    def transform(samples: DataFrame) -> DataFrame:
        return samples.transform(_summed(agreements, SERVICES)).transform(_named(agreements))

    return transform


def _summed(agreements: Sequence[Agreement], subjects: SubjectKind) -> Transform:
    """Return a transform that sums samples by index of the agreement and start of the window."""

    def transform(samples: DataFrame) -> DataFrame:
        rows = samples.transform(subjects.worded).transform(rows_by_agreement(agreements, subjects))
        begins_us = F.col("at_us") - F.col("interval_s") * 1e6
        counts = [F.coalesce(F.col(name), F.lit(0)) for name in _COUNTS]
        has_work = F.greatest(*counts) > 0
        sums = rows.groupBy(*_KEYS).agg(
            *(F.sum(name).alias(name) for name in _SUMS),
            F.sum(F.col("waiting") * F.col("interval_s")).alias("waiting_s"),
            F.max("oldest_age_s").alias("oldest_age_s"),
            F.min("free_memory_bytes").alias("free_memory_bytes"),
            # From the start of the first interval to the end of the last.
            ((F.max("at_us") - F.min(begins_us)) / 1e6).alias("seconds"),
            F.sum(F.when(has_work, F.col("interval_s")).otherwise(0.0)).alias("loaded_s"),
        )
        for stem in subjects.histograms:
            if slots := percentile_slots(agreements, stem):
                sums = sums.join(rows.transform(_counted(stem, slots)), [*_KEYS], "left")
        if _RESPONSE in subjects.histograms:
            sums = sums.transform(_with_unanswered(percentile_slots(agreements, _RESPONSE)))
        return sums

    return transform


def judge_windows(agreements: Sequence[Agreement]) -> Transform:
    """Return a transform from sums to the verdict on each window and on each promise in it."""

    def transform(sums: DataFrame) -> DataFrame:
        known = set(sums.columns)
        promises = _by_agreement(agreements, lambda one: F.array(*_promises(one, known)))
        severities = F.transform(
            "promises",
            lambda promise: reduce(
                lambda chain, verdict: chain.when(
                    promise["verdict"] == verdict.value, SEVERITY.index(verdict)
                ),
                SEVERITY[1:],
                F.when(promise["verdict"] == SEVERITY[0].value, 0),
            ),
        )
        names = F.array(*(F.lit(verdict.value) for verdict in SEVERITY))
        return (
            sums.withColumn("promises", promises)
            .withColumn("verdict", F.element_at(names, F.array_max(severities) + 1))
            .withColumn("window_s", _by_agreement(agreements, lambda one: F.lit(one.window_s)))
            .select("agreement", "window", "window_s", "verdict", "promises")
        )

    return transform


def rows_by_agreement(agreements: Sequence[Agreement], subjects: SubjectKind) -> Transform:
    """Return a transform that repeats each row for every agreement about its subject.

    The transform adds the index of the agreement, the start of the window, and the points of the
    agreement's percentile promises.
    """

    def transform(rows: DataFrame) -> DataFrame:
        names = _names(rows, agreements, subjects)
        slots = {stem: percentile_slots(agreements, stem) for stem in _STEMS}
        every = [slot for of_stem in slots.values() for slot in of_stem]
        table = [
            (name, number, round(one.window_s * 1e6), *_points(one, slots, subjects))
            for number, one in enumerate(agreements)
            for name in names
            if subjects.governs(one, name)
        ]
        points = "".join(f", {slot.warning} double, {slot.breach} double" for slot in every)
        schema = f"subject string, number int, window_us bigint{points}"
        terms = rows.sparkSession.createDataFrame(table, schema)
        at_us = F.unix_micros("at")
        return rows.join(F.broadcast(terms), "subject").withColumns(
            {"at_us": at_us, "begins_us": at_us - F.pmod(at_us, F.col("window_us"))}
        )

    return transform


def percentile_slots(agreements: Iterable[Agreement], stem: str) -> list[PercentilePromise]:
    """Return the columns that the agreement with the most promises about a stem needs."""
    most = max((len(_percentiles(one, stem)) for one in agreements), default=0)
    return [PercentilePromise(stem, number) for number in range(most)]


def _counted(stem: str, slots: Sequence[PercentilePromise]) -> Transform:
    """Return a transform that counts the entries of a histogram: in total, and below each point."""

    def transform(rows: DataFrame) -> DataFrame:
        points = [point for slot in slots for point in (slot.warning, slot.breach)]
        # Explode the histogram: Spark compiles this, but not higher-order functions on arrays.
        entries = rows.select(*_KEYS, *points, F.inline(stem))
        return entries.groupBy(*_KEYS).agg(
            F.sum("count").alias(f"{stem}_total"),
            *(
                F.sum(F.when(F.col("bucket") < F.col(point), F.col("count")).otherwise(0)).alias(
                    point
                )
                for point in points
            ),
        )

    return transform


def _with_unanswered(slots: Sequence[PercentilePromise]) -> Transform:
    """Return a transform that adds unanswered requests to the total of response times.

    They are below no point, so they count as longer than every point.
    """

    def transform(sums: DataFrame) -> DataFrame:
        counted = [point for slot in slots for point in (slot.warning, slot.breach)]
        if not counted:
            return sums
        known = {name: F.coalesce(F.col(name), F.lit(0)) for name in counted}
        total = F.col(f"{_RESPONSE}_total")
        unanswered = F.coalesce(F.col("unanswered"), F.lit(0))
        return sums.withColumns(
            {**known, f"{_RESPONSE}_total": F.coalesce(total, F.lit(0)) + unanswered}
        )

    return transform


def _measured_responses(agreements: Sequence[Agreement]) -> Transform:
    """Return a transform that sums the response times of sampled messages by weight."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        weight, response = F.col("weight"), F.col("response_us")
        sums = [F.sum(weight).alias(f"{_RESPONSE}_total")]
        for slot in percentile_slots(agreements, _RESPONSE):
            for name in (slot.warning, slot.breach):
                shorter = F.when(response < F.col(name), weight).otherwise(0.0)
                sums.append(F.sum(shorter).alias(name))
        rows = lifecycles.withColumnRenamed("queue", "subject")
        return rows.transform(rows_by_agreement(agreements, QUEUES)).groupBy(*_KEYS).agg(*sums)

    return transform


def _named(agreements: Sequence[Agreement]) -> Transform:
    """Return a transform that replaces numeric keys by the agreement's name and the window's time.

    Spark groups by numbers faster than by text.
    """

    def transform(sums: DataFrame) -> DataFrame:
        names = F.array(*(F.lit(one.name) for one in agreements))
        return sums.withColumns(
            {
                "agreement": F.element_at(names, F.col("number") + 1),
                "window": F.timestamp_micros("begins_us"),
            }
        ).drop(*_KEYS)

    return transform


def _names(rows: DataFrame, agreements: Sequence[Agreement], subjects: SubjectKind) -> list[str]:
    """Return the names of all subjects that agreements can govern.

    Without wild cards these are the names in the agreements; with wild cards Spark reads the
    subjects.
    """
    patterns = [said for one in agreements if (said := subjects.said(one)) is not None]
    if not any(wild in pattern for pattern in patterns for wild in "*?"):
        return sorted(set(patterns))
    return [row["subject"] for row in rows.select("subject").distinct().collect()]


def _points(
    one: Agreement, slots: dict[str, list[PercentilePromise]], subjects: SubjectKind
) -> list[float | None]:
    """Return warning and breaching point of each percentile promise, `None` for promises it lacks.

    Points are bucket numbers if the times are recorded as histograms, else microseconds.
    """
    points: list[float | None] = []
    for stem, of_stem in slots.items():
        promised = _percentiles(one, stem)
        for slot in of_stem:
            if slot.number >= len(promised):
                points += [None, None]
                continue
            metric = promised[slot.number]
            for point_s in (metric.warning, metric.breach):
                points.append(
                    float(first_bucket_from(point_s))
                    if stem in subjects.histograms
                    else 1e6 * point_s
                )
    return points


def _percentiles(one: Agreement, stem: str) -> list[Metric]:
    return [metric for metric in one.metrics if metric.percentile and metric.stem == stem]


def _by_agreement(
    agreements: Sequence[Agreement], expression: Callable[[Agreement], Column]
) -> Column:
    """Return a column that evaluates the expression of the row's agreement."""
    chain: Column | None = None
    for one in agreements:
        is_it = F.col("agreement") == one.name
        says = expression(one)
        chain = F.when(is_it, says) if chain is None else chain.when(is_it, says)
    assert chain is not None, "nobody judges without agreements"
    return chain


def _promises(one: Agreement, known: set[str]) -> list[Column]:
    found = []
    for metric in one.metrics:
        if metric.percentile is None:
            found.append(_plain_promise(metric, one))
            continue
        slot = PercentilePromise(metric.stem, _percentiles(one, metric.stem).index(metric))
        if slot.breach in known:
            found.append(_percentile_promise(metric, metric.percentile, slot, one))
        else:
            found.append(_unknown_metric(metric))
    return found


def _percentile_promise(
    metric: Metric, percentile: float, slot: PercentilePromise, agreement: Agreement
) -> Column:
    count = F.col(f"{slot.stem}_total")
    verdict = (
        F.when(count.isNull() | (count <= 0), Verdict.NO_DATA.value)
        .when(is_late(F.col(slot.breach), count, percentile), Verdict.BREACHED.value)
        .when(is_late(F.col(slot.warning), count, percentile), Verdict.WARNED.value)
        .otherwise(Verdict.MET.value)
    )
    within = F.when(count > 0, F.col(slot.breach) / count)
    return _promise(metric, F.lit(None), within, _excused(metric, agreement, verdict))


def _excused(metric: Metric, agreement: Agreement, verdict: Column) -> Column:
    """Return the verdict, with a breach reduced to a warning if the load exceeded `load_max`."""
    _, _, offered = _flow()
    excused = is_excused(metric, agreement.resources.load_max_per_s, offered)
    if excused is False:
        return verdict
    is_breach = verdict == Verdict.BREACHED.value
    return F.when(is_breach & excused, Verdict.WARNED.value).otherwise(verdict)


def _flow() -> tuple[Column, Column, Column]:
    """Return whether throughput can be judged, over how many seconds, and the offered rate."""
    whole_s = F.when(F.col("seconds") > 0, F.col("seconds"))
    loaded_s = F.least(F.col("loaded_s"), whole_s)
    is_judged = loaded_s >= whole_s * LOADED_MIN
    seconds = F.when(is_judged, loaded_s).otherwise(whole_s)
    # The offered load is the larger of two estimates. The first is all that came: accepted, refused
    # or unanswered. The second is what was served plus what still waited.
    ended = F.col("accepted") + F.coalesce(F.col("refused"), F.lit(0))
    came = F.greatest(ended, F.col("came"))
    offered = F.greatest(came / seconds, (F.col("served") + F.col("waiting_s") / seconds) / seconds)
    return is_judged, seconds, offered


def _plain_promise(metric: Metric, agreement: Agreement) -> Column:
    is_judged, seconds, offered = _flow()
    values = {
        "throughput": F.col("served") / seconds,
        "oldest_age": F.col("oldest_age_s"),
        "free_memory": F.col("free_memory_bytes"),
        "availability": F.try_divide(F.col("accepted"), F.col("accepted") + F.col("refused")),
    }
    value = values[metric.name]
    load = F.when(is_judged, offered).otherwise(0.0) if metric.name == "throughput" else None
    verdict = (
        F.when(value.isNull(), Verdict.NO_DATA.value)
        .when(is_breached(metric, value, load), Verdict.BREACHED.value)
        .when(is_warned(metric, value, load), Verdict.WARNED.value)
        .otherwise(Verdict.MET.value)
    )
    return _promise(metric, value, F.lit(None), _excused(metric, agreement, verdict))


def _unknown_metric(metric: Metric) -> Column:
    """Return the result of a promise whose metric is not recorded."""
    return _promise(metric, F.lit(None), F.lit(None), F.lit(Verdict.NO_DATA.value))


def _promise(metric: Metric, value: Column, within: Column, verdict: Column) -> Column:
    return F.struct(
        F.lit(metric.name).alias("metric"),
        value.cast("double").alias("value"),
        within.cast("double").alias("within"),
        verdict.alias("verdict"),
    )


# Samples of queues and doors, converted to the columns of `agreements.evaluation.AgreementSample`.
#
#     column               of a queue               of an HTTP service
#     accepted             put                      answered − server errors
#     served               acked                    answered − server errors
#     refused              refused                  refused + server errors
#     came                 –                        all that came
#     unanswered           –                        refused
#     waiting              waiting                  waiting in the door
#     oldest_age_s         of the oldest            –
#     free_memory_bytes    –                        of an instance
#     wait                 histogram                –
#     service              histogram                histogram, of instances
#     response             of sampled messages      histogram, of doors
#
# One set of transforms (`pipeline.promises`) can therefore judge both. The rows of `http_samples`
# belong either to a door or to an instance. Each has 0 in the columns of the other, so sums over
# all rows are correct.


@dataclass(frozen=True)
class SubjectKind:
    """A kind of agreement subject, queues or HTTP services, and how its samples are read."""

    # Converts samples to the columns above.
    worded: Callable[[DataFrame], DataFrame]
    # Histograms of all requests or messages, as opposed to times of a sample of them.
    histograms: tuple[str, ...]
    governs: Callable[[Agreement, str], bool]
    # The agreement's subject as written, with wild cards; `None` if the agreement is about the
    # other kind.
    said: Callable[[Agreement], str | None]


def queue_agreement_samples(samples: DataFrame) -> DataFrame:
    """Convert `queue_samples` to agreement columns."""
    return samples.select(
        "at",
        "interval_s",
        F.col("queue").alias("subject"),
        F.col("put").alias("accepted"),
        F.col("acked").alias("served"),
        *("refused", "waiting", "oldest_age_s"),
        _unknown_agreement("free_memory_bytes"),
        *(_unknown_agreement("unanswered"), _unknown_agreement("came")),
        *("wait", "service"),
    )


def door_agreement_samples(samples: DataFrame) -> DataFrame:
    """Convert `http_samples` to agreement columns."""
    server_errors = F.col("server_errors")
    return samples.select(
        "at",
        "interval_s",
        F.col("service").alias("subject"),
        good_requests(F.col("answered"), server_errors).alias("accepted"),
        good_requests(F.col("answered"), server_errors).alias("served"),
        bad_requests(F.col("refused"), server_errors).alias("refused"),
        F.col("refused").alias("unanswered"),
        F.col("accepted").alias("came"),
        "waiting",
        _unknown_agreement("oldest_age_s"),
        "free_memory_bytes",
        F.col("service_time").alias("service"),
        "response",
    )


def _unknown_agreement(name: str) -> Column:
    return F.lit(None).cast("double").alias(name)


QUEUES = SubjectKind(
    queue_agreement_samples, ("wait", "service"), Agreement.governs_queue, lambda one: one.queue
)
SERVICES = SubjectKind(
    door_agreement_samples,
    ("service", "response"),
    lambda one, service: one.http == service,
    lambda one: one.http,
)
