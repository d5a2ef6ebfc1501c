"""The queries that `watch` runs: from the rows of complete windows to tables.

    compliance-10s              agreements whose windows are ten seconds long
    compliance-10s-response     of these, agreements that promise response times (sampled)
    compliance-10s-http         agreements about HTTP services
    rates                       anomalies of the rates into and out of queues
    phases                      anomalies of the phases of requests

Each query is a stream of its own, because the first batch fixes what a stream gathers and for how
long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.core.quantities import format_duration
from tidegate.pipeline.promises import judged, measured, measured_http
from tidegate.pipeline.watching import anomalies, service_level
from tidegate.telemetry.schemas import HTTP_SAMPLES, LIFECYCLES, QUEUE_SAMPLES, REQUESTS

# Rows by kind.
Frames = Mapping[str, DataFrame]
# Tables by name, and the state for the next batch.
Found = tuple[Mapping[str, pa.Table], bytes]


@dataclass(frozen=True)
class Query:
    """One stream: its row kinds, its window, and the function that computes its tables.

    `answer` receives the rows of a batch and the query's state (`None` in the first batch). It
    returns tables and the new state.
    """

    name: str
    kinds: tuple[str, ...]
    window_s: float
    answer: Callable[[Frames, bytes | None], Found]


def queries_of(agreements: Sequence[Agreement]) -> list[Query]:
    """Return all queries for these agreements."""
    return [
        *_compliance(agreements),
        Query("rates", (QUEUE_SAMPLES.name,), anomalies.WINDOW_S, _odd_rates),
        Query("phases", (REQUESTS.name,), anomalies.WINDOW_S, _odd_phases),
    ]


def _compliance(agreements: Sequence[Agreement]) -> list[Query]:
    """Return a query for each width of windows and set of row kinds."""
    alike: dict[tuple[float, str], list[Agreement]] = {}
    for one in agreements:
        responds = any(metric.stem == "response" for metric in one.metrics)
        of = "-http" if one.queue is None else "-response" if responds else ""
        alike.setdefault((one.window_s, of), []).append(one)
    kinds = {
        "": (QUEUE_SAMPLES.name,),
        "-response": (QUEUE_SAMPLES.name, LIFECYCLES.name),
        "-http": (HTTP_SAMPLES.name,),
    }
    return [
        Query(
            f"compliance-{format_duration(window_s)}{of}",
            kinds[of],
            window_s,
            partial(_judged, judged_together),
        )
        for (window_s, of), judged_together in sorted(alike.items(), key=lambda group: group[0])
    ]


def _judged(agreements: Sequence[Agreement], frames: Frames, carried: bytes | None) -> Found:
    doors = frames.get(HTTP_SAMPLES.name)
    sums = (
        frames[QUEUE_SAMPLES.name].transform(measured(agreements, frames.get(LIFECYCLES.name)))
        if doors is None
        else doors.transform(measured_http(agreements))
    )
    windows = sums.transform(judged(agreements)).select("agreement", "window", "verdict")
    verdicts = [
        (row["agreement"], row["window"], Verdict(row["verdict"]))
        for row in windows.toArrow().to_pylist()
    ]
    before = (
        service_level.Carried()
        if carried is None
        else msgspec.json.decode(carried, type=service_level.Carried)
    )
    found, after = service_level.slide(before, verdicts, agreements)
    return {"compliance": found}, msgspec.json.encode(after)


def _odd_rates(frames: Frames, carried: bytes | None) -> Found:
    windows = frames[QUEUE_SAMPLES.name].transform(anomalies.rates_by_window)
    return _odd(windows, carried, anomalies.RATES)


def _odd_phases(frames: Frames, carried: bytes | None) -> Found:
    windows = frames[REQUESTS.name].transform(anomalies.phases_by_window)
    return _odd(windows, carried, anomalies.PHASES)


def _odd(windows: DataFrame, carried: bytes | None, figures: Sequence[anomalies.Figure]) -> Found:
    before = (
        anomalies.Carried()
        if carried is None
        else msgspec.json.decode(carried, type=anomalies.Carried)
    )
    found, after = anomalies.follow(before, windows.toArrow().to_pylist(), figures)
    return {"anomalies": found}, msgspec.json.encode(after)
