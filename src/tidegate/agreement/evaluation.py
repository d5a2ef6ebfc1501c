"""Whether an agreement is kept: met, warned or breached, and what is left of the error budget.

                 worse when larger     worse when smaller
    breached     value ≥ breach        value < breach
    warned       value ≥ warning       value < warning        and not breached
    met          otherwise

    budget left  = 1 − breached / ((1 − objective) · windows)    1 untouched, below 0 overdrawn
    burn rate    = (breached / judged) / (1 − objective)         1 uses it up just in its period

A percentile is at or beyond a point when too few were shorter: count(< point) < p · count. So
counts are all that is needed, and counts add up where percentiles do not.

A window without data is neither met nor breached: it is counted apart and costs no budget. Low
throughput breaches only if the load was there: when less was offered than is promised, serving all
of it is all that can be done. It is the throughput of the time in which there was something to do;
of less than half a window of it nothing can be told, for what comes now is served a while later.
Beyond the load up to which an agreement is kept (`load_max`), what more load makes worse is warned
of and breaches nothing: it was not offered. All of it is plain arithmetic and comparison, so that
the same functions take numbers, arrays and Spark Columns (where null, too, is neither).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.agreement.metrics import Metric, Worse
from tidegate.core.term import Term


class Verdict(StrEnum):
    """What one window says about one promise."""

    MET = "met"
    WARNED = "warned"
    BREACHED = "breached"
    NO_DATA = "no_data"


ROUNDING = 1e-12
# Of a window: how long there must have been something to do for its throughput to be judged.
LOADED_MIN = 0.5
# What more load makes worse; a throughput is kept all the more.
_WORSE_BY_LOAD = ("wait", "response", "oldest_age", "availability")
# From what decides least to what decides most.
SEVERITY = (Verdict.NO_DATA, Verdict.MET, Verdict.WARNED, Verdict.BREACHED)


def is_breached(metric: Metric, value: Term, offered_per_s: Term | None = None) -> Term:
    """Whether a value is a breach; `offered_per_s` is the load that was there, for throughput."""
    if metric.worse is Worse.LARGER:
        return value >= metric.breach
    below = value < metric.breach
    return below if offered_per_s is None else below & (offered_per_s >= metric.breach)


def is_warned(metric: Metric, value: Term, offered_per_s: Term | None = None) -> Term:
    """Whether a value is a warning, and not yet a breach."""
    if metric.worse is Worse.LARGER:
        return (value >= metric.warning) & (value < metric.breach)
    below = (value < metric.warning) & (value >= metric.breach)
    return below if offered_per_s is None else below & (offered_per_s >= metric.warning)


def is_late(before: Term, total: Term, percentile: float) -> Term:
    """Whether too few of all lie before a point for the percentile to do so."""
    # Just enough is enough: 55 % of 100 are 55, and 55.00000000000001 to a computer.
    return before < total * (percentile - ROUNDING)


def is_excused(metric: Metric, load_max_per_s: float | None, offered_per_s: Term) -> Term:
    """Whether so much was there that a breach is none: more than the promise was made for."""
    if load_max_per_s is None or metric.stem not in _WORSE_BY_LOAD:
        return False
    return offered_per_s > load_max_per_s * (1.0 + ROUNDING)


def verdict(metric: Metric, value: float | None, offered_per_s: float | None = None) -> Verdict:
    """The verdict on one measurement; NaN and None are no data."""
    if value is None or math.isnan(value):
        return Verdict.NO_DATA
    if is_breached(metric, value, offered_per_s):
        return Verdict.BREACHED
    return Verdict.WARNED if is_warned(metric, value, offered_per_s) else Verdict.MET


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a window by those on each of its metrics."""
    return max(verdicts, key=SEVERITY.index, default=Verdict.NO_DATA)


@dataclass(frozen=True)
class Counts:
    """How many windows had which verdict."""

    met: int = 0
    warned: int = 0
    breached: int = 0
    no_data: int = 0

    @staticmethod
    def of(verdicts: Iterable[Verdict]) -> Counts:
        found = list(verdicts)
        return Counts(**{v.value: found.count(v) for v in Verdict})

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            met=self.met + other.met,
            warned=self.warned + other.warned,
            breached=self.breached + other.breached,
            no_data=self.no_data + other.no_data,
        )


def budget_left(breached: Term, windows: Term, objective: Term) -> Term:
    """The fraction of the error budget that is left; `windows` are those of the whole period."""
    return 1.0 - breached / ((1.0 - objective) * windows)


def burn_rate(breached: Term, judged: Term, objective: Term) -> Term:
    """How many times faster than allowed the budget is used, by one judged window or more."""
    return breached / judged / (1.0 - objective)


def burn_rate_over(
    span_s: float, breached: int, judged: int, window_s: float, objective: float
) -> float:
    """The burn rate of a span in which windows may be missing: those count as met."""
    # Shortly after the start, or after a silence, one breach is all there is: it would always ring.
    return float(burn_rate(breached, max(span_s / window_s, judged, 1.0), objective))


@dataclass(frozen=True)
class BurnAlarm:
    """Burning this fast over a long and over a short window: still going on, and no mere blip."""

    long_s: float
    short_s: float
    rate: float

    def rings(self, burn_long: Term, burn_short: Term) -> Term:
        return (burn_long >= self.rate) & (burn_short >= self.rate)


# 2 % of a budget of 28 days within an hour, and 5 % within six.
FAST_BURN = BurnAlarm(long_s=3600.0, short_s=300.0, rate=13.44)
SLOW_BURN = BurnAlarm(long_s=21600.0, short_s=1800.0, rate=5.6)
