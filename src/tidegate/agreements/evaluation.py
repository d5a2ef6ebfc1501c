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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from tidegate.agreements import Metric, Unit, Worse
from tidegate.agreements.document import Agreement
from tidegate.agreements.problems import format_quantity
from tidegate.core.services import DoorSample
from tidegate.core.text import Term


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


def metric_verdict(
    metric: Metric, value: float | None, offered_per_s: float | None = None
) -> Verdict:
    """Return the verdict on one measurement; None and NaN are no data."""
    if value is None or math.isnan(value):
        return Verdict.NO_DATA
    if is_breached(metric, value, offered_per_s):
        return Verdict.BREACHED
    return Verdict.WARNED if is_warned(metric, value, offered_per_s) else Verdict.MET


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe verdict; no data if there are none."""
    return max(verdicts, key=SEVERITY.index, default=Verdict.NO_DATA)


@dataclass(frozen=True)
class VerdictCounts:
    """The number of windows per verdict."""

    met: int = 0
    warned: int = 0
    breached: int = 0
    no_data: int = 0

    @staticmethod
    def of(verdicts: Iterable[Verdict]) -> VerdictCounts:
        found = list(verdicts)
        return VerdictCounts(**{v.value: found.count(v) for v in Verdict})

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    def __add__(self, other: VerdictCounts) -> VerdictCounts:
        return VerdictCounts(
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


# From samples to verdicts: the evaluation of each window, with its evidence.
#
#     samples → windows_of → judge_window → WindowVerdict(verdict, findings)
#
# - wait, service, response: percentiles from added counts of durations (`evaluation.is_late`). A
#   request without an answer took longer than any promise. So did a request that still waits at the
#   end of the window and has waited for longer than the breaching point.
# - throughput: served / seconds with work, if the load was there. The load is all requests that
#   arrived, or what was served plus what still waits, whichever is larger.
# - availability: accepted / (accepted + refused).
# - oldest_age: the largest of the window. free_memory: the smallest.
#
# A value that no sample contains is not measured, and the finding is "no data". The pipeline
# applies the same rules to Spark Columns (pipeline/promises.py). The control loops and the
# simulation use this module.


# Pairs of a duration in seconds and the number of messages or requests that took it.
Durations = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class AgreementSample:
    """Measurements of one interval that ends at `at_s`. None means not measured."""

    at_s: float
    interval_s: float = 1.0
    # Messages or requests in the interval: accepted, served, and refused or failed.
    accepted: float | None = None
    served: float | None = None
    refused: float | None = None
    # Requests that arrived, with any result. None means accepted plus refused.
    came: float | None = None
    # At the end of the interval.
    waiting: float | None = None
    oldest_age_s: float | None = None
    free_memory_bytes: float | None = None
    # Requests whose client got no complete answer; they are part of `refused`.
    unanswered: float | None = None
    # At the end of the interval: requests that wait for an answer, as pairs of minimum waiting time
    # and count. Only the last sample of each source (door) counts, because a long wait is in many
    # samples.
    in_hand: Durations = ()
    source: str = ""
    # Keys are `wait`, `service` and `response`.
    times: Mapping[str, Durations] = field(default_factory=dict)


@dataclass(frozen=True)
class PromiseFinding:
    """The verdict of one window on one promise, with the evidence."""

    metric: Metric
    verdict: Verdict
    # In the metric's unit. None without data, and for a percentile that is a request without an
    # answer.
    value: float | None = None
    # For a percentile: the number of durations, and the fraction below the breaching point.
    count: float | None = None
    within: float | None = None
    # For a response: the number of requests without an answer, and the finding without them.
    unanswered: float = 0.0
    answered: PromiseFinding | None = None
    # For throughput, and for an excused breach: the offered load.
    offered_per_s: float | None = None
    # The agreed maximum load that was exceeded, which excused a breach. None if nothing was
    # excused.
    kept_up_to_per_s: float | None = None

    @property
    def of_answers(self) -> PromiseFinding:
        """The finding for answered requests only, which shows the speed of the instances."""
        return self if self.answered is None else self.answered

    def __str__(self) -> str:
        metric, unit = self.metric, self.metric.unit
        if self.value is None and not self.unanswered:
            return f"{metric.name}: nothing was measured"
        points = (
            f"warns at {format_quantity(unit, metric.warning)}, breaches at "
            f"{format_quantity(unit, metric.breach)}"
        )
        value = format_quantity(unit, math.inf if self.value is None else self.value)
        said = f"{metric.name} was {value} ({points})"
        if self.within is not None:
            said += f"; {self.within:.4%} of {self.count:g} were shorter than the breaching point"
        if self.unanswered:
            said += f"; {self.unanswered:g} got no answer"
        if self.offered_per_s is not None:
            said += f"; {self.offered_per_s:.4g}/s were offered"
        if self.kept_up_to_per_s is not None:
            said += f", and it is kept up to {self.kept_up_to_per_s:.4g}/s"
        return said


@dataclass(frozen=True)
class WindowVerdict:
    """The verdict of one window on an agreement; the worst finding decides."""

    begins_s: float
    ends_s: float
    verdict: Verdict
    findings: tuple[PromiseFinding, ...]
    samples: int

    @property
    def evidence(self) -> list[str]:
        """The texts of the findings that decided the verdict."""
        return [str(one) for one in self.findings if one.verdict is self.verdict]


def windows_of(
    agreement: Agreement, samples: Iterable[AgreementSample]
) -> Iterator[tuple[float, list[AgreementSample]]]:
    """Yield the start and the samples of each window that has samples, in time order.

    A sample belongs to the window in which its interval ends.
    """
    windows: dict[float, list[AgreementSample]] = {}
    for sample in samples:
        if math.isfinite(sample.at_s):
            begins_s = sample.at_s - sample.at_s % agreement.window_s
            windows.setdefault(begins_s, []).append(sample)
    yield from sorted(windows.items())


def judge_window(
    agreement: Agreement, begins_s: float, samples: Sequence[AgreementSample]
) -> WindowVerdict:
    """Return the verdict of one window from all samples that end in it."""
    findings = tuple(promise_finding(metric, samples) for metric in agreement.metrics)
    if (load_max := agreement.resources.load_max_per_s) is not None:
        findings = tuple(_excused(one, load_max, samples) for one in findings)
    return WindowVerdict(
        begins_s=begins_s,
        ends_s=begins_s + agreement.window_s,
        verdict=worst_verdict(one.verdict for one in findings),
        findings=findings,
        samples=len(samples),
    )


def _excused(
    found: PromiseFinding, load_max_per_s: float, samples: Sequence[AgreementSample]
) -> PromiseFinding:
    """Turn a breach into a warning if the offered load exceeded the agreed maximum."""
    flow = _flow(samples)
    if found.verdict is not Verdict.BREACHED or flow is None:
        return found
    if not is_excused(found.metric, load_max_per_s, flow.offered_per_s):
        return found
    return replace(
        found,
        verdict=Verdict.WARNED,
        offered_per_s=flow.offered_per_s,
        kept_up_to_per_s=load_max_per_s,
    )


def promise_finding(metric: Metric, samples: Sequence[AgreementSample]) -> PromiseFinding:
    """Return the verdict of samples on one promise."""
    if metric.percentile is not None:
        return _of_percentile(metric, metric.percentile, samples)
    match metric.name:
        case "throughput":
            return _of_throughput(metric, samples)
        case "availability":
            value = _availability(samples)
        case "oldest_age":
            value = max(_known(one.oldest_age_s for one in samples), default=None)
        case _:
            value = min(_known(one.free_memory_bytes for one in samples), default=None)
    return PromiseFinding(metric, metric_verdict(metric, value), value)


def _of_percentile(
    metric: Metric, percentile: float, samples: Sequence[AgreementSample]
) -> PromiseFinding:
    durations = [
        (duration_s, count)
        for sample in samples
        for duration_s, count in sample.times.get(metric.stem, ())
        if 0.0 < count < math.inf and not math.isnan(duration_s)
    ]
    found = _of_durations(metric, percentile, durations)
    # Only a response includes unanswered requests: their service time and wait are unknown.
    if metric.stem != "response":
        return found
    unanswered = math.fsum(_known(one.unanswered for one in samples))
    unanswered += _overdue(metric.breach, samples)
    if not 0.0 < unanswered < math.inf:
        return found
    whole = _of_durations(metric, percentile, [*durations, (math.inf, unanswered)])
    value = whole.value if whole.value is not None and math.isfinite(whole.value) else None
    return replace(whole, value=value, unanswered=unanswered, answered=found)


def _overdue(point_s: float, samples: Sequence[AgreementSample]) -> float:
    """Return the number of requests that wait at the window's end for at least `point_s`."""
    last: dict[str, AgreementSample] = {}
    for sample in samples:
        if sample.source not in last or sample.at_s >= last[sample.source].at_s:
            last[sample.source] = sample
    return math.fsum(
        count
        for sample in last.values()
        for waited_s, count in sample.in_hand
        if waited_s >= point_s and 0.0 < count < math.inf
    )


def _of_durations(metric: Metric, percentile: float, durations: Durations) -> PromiseFinding:
    durations = sorted(durations)
    total = math.fsum(count for _, count in durations)
    if not durations or not math.isfinite(total):
        return PromiseFinding(metric, Verdict.NO_DATA)

    def before(point_s: float) -> float:
        return math.fsum(count for duration_s, count in durations if duration_s < point_s)

    within = before(metric.breach)
    if is_late(within, total, percentile):
        says = Verdict.BREACHED
    elif is_late(before(metric.warning), total, percentile):
        says = Verdict.WARNED
    else:
        says = Verdict.MET
    value = _percentile(durations, total, percentile)
    return PromiseFinding(metric, says, value, count=total, within=within / total)


def _percentile(durations: Durations, total: float, percentile: float) -> float:
    """Return the shortest duration that the given fraction of all durations does not exceed."""
    so_far = 0.0
    for duration_s, count in durations:
        so_far += count
        if not is_late(so_far, total, percentile):
            return duration_s
    return durations[-1][0]


@dataclass(frozen=True)
class _Flow:
    """Served and offered load per second."""

    served_per_s: float
    offered_per_s: float
    # Whether there was work for long enough to judge the throughput.
    is_loaded: bool


def _of_throughput(metric: Metric, samples: Sequence[AgreementSample]) -> PromiseFinding:
    flow = _flow(samples)
    if flow is None:
        return PromiseFinding(metric, Verdict.NO_DATA)
    says = metric_verdict(metric, flow.served_per_s, flow.offered_per_s if flow.is_loaded else 0.0)
    return PromiseFinding(metric, says, flow.served_per_s, offered_per_s=flow.offered_per_s)


def _flow(samples: Sequence[AgreementSample]) -> _Flow | None:
    """Return the load over the time with work to do; None if nothing was measured."""
    measured = [one for one in samples if one.served is not None and one.interval_s > 0.0]
    # Several queues may be sampled at the same time. Count the time from the first start to the
    # last end.
    begins_s = min((one.at_s - one.interval_s for one in measured), default=0.0)
    whole_s = max((one.at_s for one in measured), default=0.0) - begins_s
    loaded_s = min(whole_s, sum(one.interval_s for one in measured if _has_work(one)))
    is_loaded = loaded_s >= LOADED_MIN * whole_s
    seconds = loaded_s if is_loaded else whole_s
    served = math.fsum(_known(one.served for one in measured))
    served_per_s = served / seconds if seconds > 0.0 else math.nan
    if not math.isfinite(served_per_s):
        return None
    # Refused requests, and requests that still wait inside an instance, are part of the load.
    ended = math.fsum(_known(n for one in measured for n in (one.accepted, one.refused)))
    came = max(ended, math.fsum(_known(one.came for one in measured))) / seconds
    waited_s = math.fsum(_known((one.waiting or 0.0) * one.interval_s for one in measured))
    # The offered load is what arrived, or what was served plus what still waited.
    offered = max(came, served_per_s + waited_s / seconds / seconds)
    return _Flow(served_per_s, offered, is_loaded)


def _has_work(sample: AgreementSample) -> bool:
    """Return whether there was anything to serve in the sample's interval."""
    counts = (sample.accepted, sample.served, sample.refused, sample.came, sample.waiting)
    return any(count > 0.0 for count in _known(counts))


def _availability(samples: Sequence[AgreementSample]) -> float | None:
    accepted = math.fsum(_known(one.accepted for one in samples))
    asked = accepted + math.fsum(_known(one.refused for one in samples))
    return accepted / asked if 0.0 < asked < math.inf else None


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None and not math.isnan(value))


# The measurements of doors as samples of an HTTP service's agreement.
#
#     good       = answered − server errors      an answer of 500 or above is not a good answer
#     bad        = refused + server errors       refused by the door, or a server error
#     availability = good / (good + bad)
#
# - `came` counts all requests that arrived. Load must not depend on answers: an instance that hangs
#   answers no request.
# - `unanswered` are the refused requests. They count as longer than any response time.
# - `in_hand` are the requests that still wait, with their waiting time so far. At the end of a
# window
#   those that have waited beyond the breaching point count as unanswered, too.
#
# Response times are those of clients, with the wait in the door. Service times begin when the door
# sends the request to an instance. The formulas use plain arithmetic and accept numbers and Spark
# Columns. The control loops make samples with them; the pipeline applies them to recorded rows.


def good_requests(answered: Term, server_errors: Term) -> Term:
    """Return the number of requests with a good answer."""
    return answered - server_errors


def bad_requests(refused: Term, server_errors: Term) -> Term:
    """Return the number of requests with a server error or without an answer."""
    return refused + server_errors


def agreement_sample(
    between: DoorSample, interval_s: float, free_memory_bytes: Iterable[float | None] = ()
) -> AgreementSample:
    """Return one door's measurements of one interval as a sample.

    `between` is a difference of counters (`core.services.sample_delta`). The free memory of the
    sample is the smallest of all instances; None entries are not measured.
    """
    server_errors = sum(one.server_errors for one in between.instances)
    known = [one for one in free_memory_bytes if one is not None]
    return AgreementSample(
        at_s=between.at,
        interval_s=interval_s,
        accepted=good_requests(between.answered, server_errors),
        served=good_requests(between.answered, server_errors),
        refused=bad_requests(between.refused, server_errors),
        came=between.accepted,
        waiting=between.waiting,
        free_memory_bytes=min(known, default=None),
        unanswered=between.refused,
        in_hand=between.unanswered,
        source=between.door,
        times={
            "response": between.response,
            "service": [pair for one in between.instances for pair in one.response],
        },
    )


# Learned warning points: the margin is the worsening during one reconfiguration.
#
#     margin = 1.25 · slope · reconfiguration time        at least 5 % of the breaching point
#
# The slope is the fastest worsening that was measured. The reconfiguration time comes from recorded
# reconfigurations. The factor of 1.25 leaves room for a faster worsening than was measured.
#
# If the margin would reach the breaching point (for a fraction: 1 − breach), no warning can be in
# time. The default warning point then stays, and the lesson says so. Otherwise the warning of a
# metric that is worse when smaller would lie far above the breach and would never end.


SAFETY = 1.25
MARGIN_MIN = 0.05


@dataclass(frozen=True)
class WarningLesson:
    """The learned warning point of one metric, with the reason."""

    metric: str
    warning: float
    because: str


def worsening_per_s(worse: Worse, before: Term, value: Term, seconds: Term) -> Term:
    """Return how fast a metric got worse between two values; negative if it got better."""
    grown = value - before if worse is Worse.LARGER else before - value
    return grown / seconds


def slope_seen(metric: Metric, readings: Iterable[tuple[float, float]]) -> float | None:
    """Return the fastest worsening in (at, value) readings in time order; None without pairs."""
    slopes = [
        worsening_per_s(metric.worse, before, value, at_s - before_s)
        for (before_s, before), (at_s, value) in pairwise(readings)
        if at_s > before_s and math.isfinite(value) and math.isfinite(before)
    ]
    return max(0.0, *slopes) if slopes else None


def with_learned_warnings(
    agreement: Agreement, slopes_per_s: Mapping[str, float], reconfiguration_s: float
) -> tuple[Agreement, list[WarningLesson]]:
    """Return the agreement with its learned warning points, and a lesson for each of them."""
    lessons = [
        _lesson(metric, slopes_per_s[metric.name], reconfiguration_s)
        for metric in agreement.metrics
        if metric.learned and metric.name in slopes_per_s
    ]
    points = {lesson.metric: lesson.warning for lesson in lessons}
    metrics = tuple(
        replace(metric, warning=points.get(metric.name, metric.warning))
        for metric in agreement.metrics
    )
    return replace(agreement, metrics=metrics), lessons


def _lesson(metric: Metric, slope_per_s: float, reconfiguration_s: float) -> WarningLesson:
    margin = max(SAFETY * slope_per_s * reconfiguration_s, MARGIN_MIN * metric.room)
    took = (
        f"in the {format_quantity(Unit.SECONDS, reconfiguration_s)} that a reconfiguration "
        f"takes it got "
        f"worse by {format_quantity(metric.unit, slope_per_s * reconfiguration_s)}"
    )
    if not math.isfinite(margin) or margin >= metric.room:
        because = f"{took}: no warning is in time, the one by default stays"
        return WarningLesson(metric.name, metric.warning, because)
    point = metric.breach - margin if metric.worse is Worse.LARGER else metric.breach + margin
    return WarningLesson(
        metric.name, point, f"{took}: warned of at {format_quantity(metric.unit, point)}"
    )
