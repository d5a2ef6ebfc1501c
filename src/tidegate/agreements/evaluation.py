"""From samples to verdicts: the evaluation of each window, with its evidence.

    samples → windows_of → judge_window → WindowVerdict(verdict, findings)

- wait, service, response: percentiles from added counts of durations (`evaluation.is_late`). A
  request without an answer took longer than any promise. So did a request that still waits at the
  end of the window and has waited for longer than the breaching point.
- throughput: served / seconds with work, if the load was there. The load is all requests that
  arrived, or what was served plus what still waits, whichever is larger.
- availability: accepted / (accepted + refused).
- oldest_age: the largest of the window. free_memory: the smallest.

A value that no sample contains is not measured, and the finding is "no data". The pipeline applies
the same rules to Spark Columns (pipeline/promises.py). The control loops and the simulation use
this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import LOADED_MIN, Verdict, is_excused, is_late, verdict, worst
from tidegate.agreement.metrics import Metric
from tidegate.agreement.quantity_words import worded

# Pairs of a duration in seconds and the number of messages or requests that took it.
Durations = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Sample:
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
class Finding:
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
    answered: Finding | None = None
    # For throughput, and for an excused breach: the offered load.
    offered_per_s: float | None = None
    # The agreed maximum load that was exceeded, which excused a breach. None if nothing was
    # excused.
    kept_up_to_per_s: float | None = None

    @property
    def of_answers(self) -> Finding:
        """The finding for answered requests only, which shows the speed of the instances."""
        return self if self.answered is None else self.answered

    def __str__(self) -> str:
        metric, unit = self.metric, self.metric.unit
        if self.value is None and not self.unanswered:
            return f"{metric.name}: nothing was measured"
        points = (
            f"warns at {worded(unit, metric.warning)}, breaches at {worded(unit, metric.breach)}"
        )
        value = worded(unit, math.inf if self.value is None else self.value)
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
    findings: tuple[Finding, ...]
    samples: int

    @property
    def evidence(self) -> list[str]:
        """The texts of the findings that decided the verdict."""
        return [str(one) for one in self.findings if one.verdict is self.verdict]


def windows_of(
    agreement: Agreement, samples: Iterable[Sample]
) -> Iterator[tuple[float, list[Sample]]]:
    """Yield the start and the samples of each window that has samples, in time order.

    A sample belongs to the window in which its interval ends.
    """
    windows: dict[float, list[Sample]] = {}
    for sample in samples:
        if math.isfinite(sample.at_s):
            begins_s = sample.at_s - sample.at_s % agreement.window_s
            windows.setdefault(begins_s, []).append(sample)
    yield from sorted(windows.items())


def judged(agreement: Agreement, begins_s: float, samples: Sequence[Sample]) -> WindowVerdict:
    """Return the verdict of one window from all samples that end in it."""
    findings = tuple(finding(metric, samples) for metric in agreement.metrics)
    if (load_max := agreement.resources.load_max_per_s) is not None:
        findings = tuple(_excused(one, load_max, samples) for one in findings)
    return WindowVerdict(
        begins_s=begins_s,
        ends_s=begins_s + agreement.window_s,
        verdict=worst(one.verdict for one in findings),
        findings=findings,
        samples=len(samples),
    )


def _excused(found: Finding, load_max_per_s: float, samples: Sequence[Sample]) -> Finding:
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


def finding(metric: Metric, samples: Sequence[Sample]) -> Finding:
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
    return Finding(metric, verdict(metric, value), value)


def _of_percentile(metric: Metric, percentile: float, samples: Sequence[Sample]) -> Finding:
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


def _overdue(point_s: float, samples: Sequence[Sample]) -> float:
    """Return the number of requests that wait at the window's end for at least `point_s`."""
    last: dict[str, Sample] = {}
    for sample in samples:
        if sample.source not in last or sample.at_s >= last[sample.source].at_s:
            last[sample.source] = sample
    return math.fsum(
        count
        for sample in last.values()
        for waited_s, count in sample.in_hand
        if waited_s >= point_s and 0.0 < count < math.inf
    )


def _of_durations(metric: Metric, percentile: float, durations: Durations) -> Finding:
    durations = sorted(durations)
    total = math.fsum(count for _, count in durations)
    if not durations or not math.isfinite(total):
        return Finding(metric, Verdict.NO_DATA)

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
    return Finding(metric, says, value, count=total, within=within / total)


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


def _of_throughput(metric: Metric, samples: Sequence[Sample]) -> Finding:
    flow = _flow(samples)
    if flow is None:
        return Finding(metric, Verdict.NO_DATA)
    says = verdict(metric, flow.served_per_s, flow.offered_per_s if flow.is_loaded else 0.0)
    return Finding(metric, says, flow.served_per_s, offered_per_s=flow.offered_per_s)


def _flow(samples: Sequence[Sample]) -> _Flow | None:
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


def _has_work(sample: Sample) -> bool:
    """Return whether there was anything to serve in the sample's interval."""
    counts = (sample.accepted, sample.served, sample.refused, sample.came, sample.waiting)
    return any(count > 0.0 for count in _known(counts))


def _availability(samples: Sequence[Sample]) -> float | None:
    accepted = math.fsum(_known(one.accepted for one in samples))
    asked = accepted + math.fsum(_known(one.refused for one in samples))
    return accepted / asked if 0.0 < asked < math.inf else None


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None and not math.isnan(value))
