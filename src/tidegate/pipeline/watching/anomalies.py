"""Anomalies of rates and phases, window by window.

Rates come from samples of queues, phases from sampled requests. Spark sums them by window. The few
values that remain per subject and window are judged in the order of time by `laws.anomaly`. Only
changes are reported, each with the expected value: an anomaly begins, it ends, or the new value
has become normal. A report per window would hide the important ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.laws.anomaly import Change, Sensitivity, Track, step
from tidegate.pipeline.jobs.stability import stability_by_window
from tidegate.pipeline.windows import window_start

WINDOW_S = 60.0
# A queue or node without data for this long is removed, with its anomaly.
FORGOTTEN_S = 3600.0

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC")),  # end of the window in which it was found
        pa.field("subject", pa.string()),
        pa.field("what", pa.string()),
        pa.field("change", pa.string()),
        pa.field("since", pa.timestamp("us", "UTC")),
        pa.field("expected", pa.float64()),
        pa.field("seen", pa.float64()),
        pa.field("score", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Figure:
    """A value that is watched for each queue or each node."""

    name: str
    column: str
    unit: str
    sensitivity: Sensitivity


_PHASES = ("parse", "store", "respond")
RATES = (
    Figure("rate in", "produced_per_s", "/s", Sensitivity(absolute=1.0)),
    Figure("rate out", "consumed_per_s", "/s", Sensitivity(absolute=1.0)),
)
PHASES = (
    # Deviations below 0.1 ms are noise, even if they are a multiple of the usual value.
    Figure("time in node", "in_node_us", "µs", Sensitivity(absolute=100.0)),
    *(
        Figure(f"share of {phase}", f"{phase}_share", "", Sensitivity(absolute=0.02))
        for phase in _PHASES
    ),
)
FIGURES = {figure.name: figure for figure in (*RATES, *PHASES)}


class _Followed(msgspec.Struct):
    """The history of one metric of one subject, and the time of its last value."""

    track: Track
    last_s: float


class Carried(msgspec.Struct):
    """The state for the next batch: the history of each metric, by subject and metric."""

    tracks: dict[str, dict[str, _Followed]] = {}


def rates_by_window(samples: DataFrame) -> DataFrame:
    """Return the rates into and out of each queue, per window."""
    return (
        samples.transform(stability_by_window(WINDOW_S))
        .withColumn("subject", F.concat(F.lit("queue "), "queue"))
        .select("subject", "window", *(figure.column for figure in RATES))
    )


def phases_by_window(requests: DataFrame) -> DataFrame:
    """Return mean time and shares of the phases within each node, per window.

    Waiting for clients and for messages is excluded.
    """
    sums = {phase: F.sum(F.col("weight") * F.col(f"{phase}_us")) for phase in _PHASES}
    in_node = sum((F.col(phase) for phase in _PHASES), start=F.lit(0.0))
    return (
        requests.groupBy(
            F.concat(F.lit("node "), "node").alias("subject"),
            window_start(WINDOW_S).alias("window"),
        )
        .agg(*(total.alias(phase) for phase, total in sums.items()), F.sum("weight").alias("n"))
        .filter((in_node > 0) & (F.col("n") > 0))
        .select(
            "subject",
            "window",
            (in_node / F.col("n")).alias("in_node_us"),
            *((F.col(phase) / in_node).alias(f"{phase}_share") for phase in _PHASES),
        )
    )


def follow(
    carried: Carried, windows: Iterable[dict[str, object]], figures: Iterable[Figure]
) -> tuple[pa.Table, Carried]:
    """Judge windows in the order of time; return the changes, and the new state."""
    tracks = {subject: dict(each) for subject, each in carried.tracks.items()}
    reports: list[dict[str, object]] = []
    chosen = list(figures)
    ordered = sorted(windows, key=lambda row: (row["window"], str(row["subject"])))
    newest_s = 0.0
    for row in ordered:
        subject, start = str(row["subject"]), row["window"]
        assert isinstance(start, datetime)
        at_s = start.timestamp()
        newest_s = max(newest_s, at_s)
        for figure in chosen:
            value = row[figure.column]
            if not isinstance(value, float):
                continue
            known = tracks.setdefault(subject, {}).get(figure.name)
            judged = step(known.track if known else Track(), at_s, value, figure.sensitivity)
            tracks[subject][figure.name] = _Followed(judged.track, at_s)
            if judged.change is not None:
                reports.append(
                    {
                        "at": _time(at_s + WINDOW_S),
                        "subject": subject,
                        "what": figure.name,
                        "change": judged.change.value,
                        "since": _time(judged.since_s),
                        "expected": judged.expected,
                        "seen": judged.seen,
                        "score": judged.score,
                    }
                )
    kept = {
        subject: alive
        for subject, each in tracks.items()
        if (alive := {k: one for k, one in each.items() if one.last_s > newest_s - FORGOTTEN_S})
    }
    return pa.Table.from_pylist(reports, SCHEMA), Carried(kept)


def sentence(row: dict[str, object]) -> str:
    """Describe an anomaly in one line."""
    unit = FIGURES[str(row["what"])].unit
    expected, seen = f"{row['expected']:.4g}{unit}", f"{row['seen']:.4g}{unit}"
    match row["change"]:
        case Change.BEGAN:
            rest = f"{seen} instead of {expected}"
        case Change.ENDED:
            rest = f"back at {seen}"
        case _:
            rest = f"{seen} is the new normal, it was {expected}"
    since = row["since"]
    assert isinstance(since, datetime)
    return f"{row['subject']}: {row['what']} {rest} (since {since:%H:%M})"


def _time(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
