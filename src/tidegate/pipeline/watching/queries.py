"""What is asked of the lake: a window's rows in, tables out.

compliance-10s    the agreements whose windows are ten seconds long; one query for each length
rates             anomalies in what goes into and out of queues
phases            anomalies in where the time of requests goes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.agreement.document import Agreement
from tidegate.pipeline.watching import anomalies
from tidegate.telemetry.schemas import KINDS, QUEUE_SAMPLES, REQUESTS

# Rows of complete windows, and what the batch before carried over; tables, and what to carry on.
Answer = Callable[[DataFrame, bytes | None], tuple[Mapping[str, pa.Table], bytes]]


@dataclass(frozen=True)
class Query:
    """One stream and what is made of it."""

    name: str
    kind: str
    window_s: float
    columns: tuple[str, ...]
    answer: Answer


def queries_of(agreements: Sequence[Agreement]) -> list[Query]:
    """All that is asked, for these agreements."""
    return [
        _query("rates", QUEUE_SAMPLES.name, anomalies.WINDOW_S, _odd_rates),
        _query("phases", REQUESTS.name, anomalies.WINDOW_S, _odd_phases),
    ]


def _query(name: str, kind: str, window_s: float, answer: Answer) -> Query:
    return Query(name, kind, window_s, tuple(KINDS[kind].columns.names), answer)


def _odd_rates(samples: DataFrame, carried: bytes | None) -> tuple[Mapping[str, pa.Table], bytes]:
    return _odd(samples.transform(anomalies.rates_by_window), carried, anomalies.RATES)


def _odd_phases(requests: DataFrame, carried: bytes | None) -> tuple[Mapping[str, pa.Table], bytes]:
    return _odd(requests.transform(anomalies.phases_by_window), carried, anomalies.PHASES)


def _odd(
    windows: DataFrame, carried: bytes | None, figures: Sequence[anomalies.Figure]
) -> tuple[Mapping[str, pa.Table], bytes]:
    before = (
        anomalies.Carried()
        if carried is None
        else msgspec.json.decode(carried, type=anomalies.Carried)
    )
    found, after = anomalies.follow(before, windows.toArrow().to_pylist(), figures)
    return {"anomalies": found}, msgspec.json.encode(after)
