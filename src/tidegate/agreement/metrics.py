"""What can be promised: the metrics, their units, and in which direction they get worse.

    warning point = breach · (1 − margin)            worse when larger: 6 s and 20 % give 4.8 s
    warning point = breach · (1 + margin)            worse when smaller: 100 msg/s give 120
    warning point = 1 − (1 − breach)·(1 − margin)    a fraction: 0.99 gives 0.992, since what
                                                     is promised is how much may be missing

A time by percentile is written `wait_p99`, `response_p50`, `service_p999` (99.9 %).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_PERCENTILE = re.compile(r"(?P<stem>[a-z]+)_p(?P<digits>\d{2,5})")


class Worse(StrEnum):
    """In which direction a metric gets worse."""

    LARGER = "larger"
    SMALLER = "smaller"


class Unit(StrEnum):
    """What a metric is measured in."""

    SECONDS = "s"
    PER_SECOND = "per_s"
    BYTES = "bytes"
    FRACTION = "fraction"


@dataclass(frozen=True)
class MetricKind:
    """What is known of a metric before anything is promised of it."""

    unit: Unit
    worse: Worse
    of_queues: bool = True
    of_http: bool = True


BY_PERCENTILE: dict[str, MetricKind] = {
    "wait": MetricKind(Unit.SECONDS, Worse.LARGER, of_http=False),
    "service": MetricKind(Unit.SECONDS, Worse.LARGER),
    "response": MetricKind(Unit.SECONDS, Worse.LARGER),
}
PLAIN: dict[str, MetricKind] = {
    "throughput": MetricKind(Unit.PER_SECOND, Worse.SMALLER),
    "free_memory": MetricKind(Unit.BYTES, Worse.SMALLER),
    "oldest_age": MetricKind(Unit.SECONDS, Worse.LARGER, of_http=False),
    "availability": MetricKind(Unit.FRACTION, Worse.SMALLER),
}


@dataclass(frozen=True)
class Metric:
    """One promise: the breaching point, and the warning point before it."""

    name: str
    worse: Worse
    unit: Unit
    breach: float
    # Follows from the default margin until one is learned, when `learned`.
    warning: float
    learned: bool = False

    @property
    def stem(self) -> str:
        """The name without its percentile: `wait` of wait_p99."""
        match = _PERCENTILE.fullmatch(self.name)
        return match["stem"] if match else self.name

    @property
    def percentile(self) -> float | None:
        """0.99 of wait_p99; None if it is no percentile."""
        match = _PERCENTILE.fullmatch(self.name)
        return int(match["digits"]) / 10 ** len(match["digits"]) if match else None


def kind_of(name: str) -> MetricKind | None:
    """What is known of a metric by its name; None if there is no such."""
    match = _PERCENTILE.fullmatch(name)
    if match is None:
        return PLAIN.get(name)
    return BY_PERCENTILE.get(match["stem"]) if int(match["digits"]) else None


def metric_names(*, on_http: bool) -> list[str]:
    """Names to suggest, with the usual percentiles."""
    stems = [s for s, kind in BY_PERCENTILE.items() if kind.of_http or not on_http]
    plain = [name for name, kind in PLAIN.items() if kind.of_http or not on_http]
    return [f"{stem}_p{digits}" for stem in stems for digits in ("50", "95", "99")] + plain


def warning_point(kind: MetricKind, breach: float, margin: float) -> float:
    """The point that lies a margin, from 0 to 1, before the breaching point."""
    if kind.unit is Unit.FRACTION:
        return 1.0 - (1.0 - breach) * (1.0 - margin)
    return breach * (1.0 - margin if kind.worse is Worse.LARGER else 1.0 + margin)
