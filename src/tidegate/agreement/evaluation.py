"""Formulas of an agreement: verdicts, error budget and burn rate.

Theory of operation
-------------------

An `Agreement` promises one or more metrics. Each `Metric` has a breaching point and a warning point
before it. Time is divided into windows of equal length, aligned to multiples of the length. Each
window gets one verdict: no data, met, warned or breached.

    samples → windows_of → judge_window → WindowVerdict → AgreementLedger → burn rate, budget

1. A node or a door produces samples: counters, durations and levels of one interval.
2. `windows_of` groups samples by the window in which their interval ends.
3. `judge_window` gives a finding for each metric. The worst finding is the verdict of the window.
4. The ledger counts the verdicts, and raises an alarm when breaches use up the error budget too
   fast.

                  worse when larger     worse when smaller
    breached      value ≥ breach        value < breach
    warned        value ≥ warning       value < warning        and not breached
    met           otherwise

    budget left  = 1 − breached / ((1 − objective) · windows)    1 untouched, below 0 overdrawn
    burn rate    = (breached / judged) / (1 − objective)         1 uses it up exactly in its period

Invariants:

- Missing data is neither good nor bad. A window without data has the verdict "no data", counts
  separately, and costs no budget.
- Percentiles are compared by counts, never by averaging. A percentile p reaches a point if fewer
  than p · count durations lie below it. Counts of several nodes can be added; percentiles cannot.
- A low throughput is a breach only if the load was there. If clients offered less than the promised
  rate, serving all of it is enough. Throughput is measured over the time with work to do.
- If there was work for less than half a window, a low throughput is neither a breach nor a warning.
  Work that arrives at the end of a window is served after it.
- Above `load_max`, a breach that more load explains becomes a warning. The agreement did not
  promise anything for that load.
- A request without an answer counts as longer than any promise, so a service that hangs breaches
  its response time.

The formulas use only arithmetic and comparison. The same functions therefore accept numbers, arrays
and Spark Columns. A null in a Column gives neither a breach nor a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.agreement.metrics import Metric, Worse
from tidegate.core.term import Term


class Verdict(StrEnum):
    """The verdict of one window on one promise."""

    MET = "met"
    WARNED = "warned"
    BREACHED = "breached"
    NO_DATA = "no_data"


ROUNDING = 1e-12
# Fraction of a window that must have had work for its throughput to be judged.
LOADED_MIN = 0.5
# Metrics that more load makes worse. A throughput gets better with more load.
_WORSE_BY_LOAD = ("wait", "response", "oldest_age", "availability")
# From the weakest verdict to the strongest.
SEVERITY = (Verdict.NO_DATA, Verdict.MET, Verdict.WARNED, Verdict.BREACHED)


def is_breached(metric: Metric, value: Term, offered_per_s: Term | None = None) -> Term:
    """Return whether a value is a breach.

    `offered_per_s` is the offered load, for throughput only. None disables the check of the load.
    """
    if metric.worse is Worse.LARGER:
        return value >= metric.breach
    below = value < metric.breach
    return below if offered_per_s is None else below & (offered_per_s >= metric.breach)


def is_warned(metric: Metric, value: Term, offered_per_s: Term | None = None) -> Term:
    """Return whether a value is a warning, and not a breach."""
    if metric.worse is Worse.LARGER:
        return (value >= metric.warning) & (value < metric.breach)
    below = (value < metric.warning) & (value >= metric.breach)
    return below if offered_per_s is None else below & (offered_per_s >= metric.warning)


def is_late(before: Term, total: Term, percentile: float) -> Term:
    """Return whether a percentile reaches a point.

    That is the case if fewer than `percentile` of `total` lie before the point.
    """
    # The tolerance absorbs rounding: 55 % of 100 is 55.00000000000001 in floating point.
    return before < total * (percentile - ROUNDING)


def is_excused(metric: Metric, load_max_per_s: float | None, offered_per_s: Term) -> Term:
    """Return whether a breach does not count, because the load exceeds the agreed maximum."""
    if load_max_per_s is None or metric.stem not in _WORSE_BY_LOAD:
        return False
    return offered_per_s > load_max_per_s * (1.0 + ROUNDING)


def verdict(metric: Metric, value: float | None, offered_per_s: float | None = None) -> Verdict:
    """Return the verdict on one measurement; None and NaN are no data."""
    if value is None or math.isnan(value):
        return Verdict.NO_DATA
    if is_breached(metric, value, offered_per_s):
        return Verdict.BREACHED
    return Verdict.WARNED if is_warned(metric, value, offered_per_s) else Verdict.MET


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe verdict; no data if there are none."""
    return max(verdicts, key=SEVERITY.index, default=Verdict.NO_DATA)


@dataclass(frozen=True)
class Counts:
    """The number of windows per verdict."""

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
    """Return the fraction of the error budget that is left.

    `windows` is the number of windows in the whole period.
    """
    return 1.0 - breached / ((1.0 - objective) * windows)


def burn_rate(breached: Term, judged: Term, objective: Term) -> Term:
    """Return how many times faster than allowed the budget is used; `judged` is at least 1."""
    return breached / judged / (1.0 - objective)


def burn_rate_over(
    span_s: float, breached: int, judged: int, window_s: float, objective: float
) -> float:
    """Return the burn rate of a time span; missing windows count as met."""
    # After a start or a gap, one breached window may be the only window. Without this divisor it
    # would always raise an alarm.
    return float(burn_rate(breached, max(span_s / window_s, judged, 1.0), objective))


@dataclass(frozen=True)
class BurnAlarm:
    """A burn rate that raises an alarm if a long and a short time span both exceed it.

    The long span ignores a short disturbance. The short span ends the alarm soon after the cause
    ends.
    """

    long_s: float
    short_s: float
    rate: float

    def rings(self, burn_long: Term, burn_short: Term) -> Term:
        return (burn_long >= self.rate) & (burn_short >= self.rate)


# 2 % of a budget of 28 days within one hour, and 5 % within six hours.
FAST_BURN = BurnAlarm(long_s=3600.0, short_s=300.0, rate=13.44)
SLOW_BURN = BurnAlarm(long_s=21600.0, short_s=1800.0, rate=5.6)
