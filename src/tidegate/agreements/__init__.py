"""Agreements on service levels: documents, their evaluation, and the metrics they promise.

A metric has a unit, and a direction in which it gets worse. The margin moves the warning point:

    warning point = breach · (1 − margin)            worse when larger: 6 s and 20 % give 4.8 s
    warning point = breach · (1 + margin)            worse when smaller: 100 msg/s give 120
    warning point = 1 − (1 − breach)·(1 − margin)    a fraction: 0.99 gives 0.992

The margin of a fraction applies to the part that may be missing, 1 − breach.

A duration percentile is written as in `wait_p99`. The digits 999 mean 99.9 %.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

_PERCENTILE = re.compile(r"(?P<stem>[a-z]+)_p(?P<digits>\d{2,5})")


class Worse(StrEnum):
    """The direction in which a metric gets worse."""

    LARGER = "larger"
    SMALLER = "smaller"


class Unit(StrEnum):
    """The unit of a metric."""

    SECONDS = "s"
    PER_SECOND = "per_s"
    BYTES = "bytes"
    FRACTION = "fraction"


@dataclass(frozen=True)
class MetricKind:
    """The unit and direction of a metric, and the kinds of service that have it."""

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
    # If `learned` is set, this is the default warning point until a measured one replaces it.
    warning: float
    learned: bool = False
    # The fastest worsening, in the metric's unit per second; None means unknown.
    slope_per_s: float | None = None

    @property
    def margin(self) -> float:
        """The distance from the warning point to the breaching point, in the metric's unit."""
        return abs(self.breach - self.warning)

    @property
    def room(self) -> float:
        """The limit that every margin stays below: the breach, or 1 − breach for a fraction."""
        return 1.0 - self.breach if self.unit is Unit.FRACTION else self.breach

    @property
    def stem(self) -> str:
        """The name without its percentile: `wait` for `wait_p99`."""
        match = _PERCENTILE.fullmatch(self.name)
        return match["stem"] if match else self.name

    @property
    def percentile(self) -> float | None:
        """The percentile as a fraction: 0.99 for `wait_p99`; None if the metric has none."""
        match = _PERCENTILE.fullmatch(self.name)
        return int(match["digits"]) / 10 ** len(match["digits"]) if match else None


def metric_kind(name: str) -> MetricKind | None:
    """Return the kind of a metric by its name; None if the metric does not exist."""
    match = _PERCENTILE.fullmatch(name)
    if match is None:
        return PLAIN.get(name)
    return BY_PERCENTILE.get(match["stem"]) if is_percentile(match["digits"]) else None


def is_percentile(digits: str) -> bool:
    """Return whether digits denote a percentile: 50, 99, 999 (99.9 %); not 0, 100 or 150."""
    # Three digits must start with 9: 150 would mean 15.0 %, but a user may mean 150 %. They must
    # not end with 0, so that each percentile has exactly one name.
    is_fine = digits.startswith("9") and not digits.endswith("0")
    return int(digits) > 0 and (len(digits) == 2 or is_fine)


def percentile_name(stem: str, percentile: float) -> str:
    """Return the name of a percentile metric: `wait_p99` for `wait` and 0.99."""
    return f"{stem}_p{format(Decimal(repr(percentile)), 'f').removeprefix('0.').ljust(2, '0')}"


def refused_percentile(name: str) -> str | None:
    """Return why a percentile name is invalid; None if the name does not look like one."""
    match = re.fullmatch(r"(?P<stem>[a-z]+)_p(?P<digits>\d+)(?P<rest>[._]\d*)?", name)
    if match is None or match["stem"] not in BY_PERCENTILE:
        return None
    stem, digits = match["stem"], match["digits"]
    said = f"write {stem}_p99 of 99 %, {stem}_p999 of 99.9 %"
    if match["rest"]:
        return f"a percentile is written without a point: {said}"
    if len(digits) < 2 or not int(digits):
        return f"is no percentile: {said}"
    if len(digits) > 5:
        return f"is finer than anybody can measure: {said}"
    if digits.startswith("9"):
        return f"the same is shorter: write {stem}_p{digits.rstrip('0').ljust(2, '0')}"
    return (
        f"percentile {int(digits)} is over 100: {said}"
        if int(digits) > 100
        else f"the 100th percentile is the one worst case, which no number can promise: {said}"
    )


def metric_names(*, on_http: bool) -> list[str]:
    """Return the metric names to suggest, with the usual percentiles."""
    stems = [s for s, kind in BY_PERCENTILE.items() if kind.of_http or not on_http]
    plain = [name for name, kind in PLAIN.items() if kind.of_http or not on_http]
    return [f"{stem}_p{digits}" for stem in stems for digits in ("50", "95", "99")] + plain


def warning_point(kind: MetricKind, breach: float, margin: float) -> float:
    """Return the point that lies a margin, from 0 to 1, before the breaching point."""
    if kind.unit is Unit.FRACTION:
        return 1.0 - (1.0 - breach) * (1.0 - margin)
    if kind.unit is Unit.BYTES:
        # Bytes are whole numbers.
        return float(math.ceil(breach * (1.0 + margin)))
    return breach * (1.0 - margin if kind.worse is Worse.LARGER else 1.0 + margin)


# Agreements: what a service promises, and whether it keeps the promises.
#
# The package is pure: it does no I/O except reading agreement files, and it uses no clock.
#
#     document     the TOML document            contradictions    promises that exclude each other
#     windows      samples to verdicts          violations        begin and end of violations
#     history      burn rates, error budget     learned_warnings  warning points from measurements
#     ledger       all of these, incrementally
#     openslo_*    OpenSLO import and export    tapas             TAPAS XML import
#
# `evaluation` has the formulas. Capacity planning for an agreement is in `control`, because it
# needs
# control laws. The control loops and doors that act on agreements are in `control` and `cli`.
