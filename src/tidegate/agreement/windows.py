"""From samples to verdicts: what a service did in each window, judged, with the evidence.

    samples → windows_of → judged → WindowVerdict(verdict, findings)

    wait, service, response by percentile    counts of durations, added up     evaluation.is_late
                    a request that got no answer has taken longer than any promise, and so has one
                    that waits at the end of the window for longer than was promised
    throughput      served / seconds with something to do, if the load was there: what came, whether
                    or not it was let in or answered, or was served and waited
    availability    accepted / (accepted + refused)
    oldest_age      the largest                free_memory    the smallest

What a sample does not say is not measured, and no data is neither met nor breached. The pipeline
says the same of Spark's columns (pipeline/promises.py); live loops and the simulation use this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import LOADED_MIN, Verdict, is_excused, is_late, verdict, worst
from tidegate.agreement.metrics import Metric
from tidegate.agreement.quantity_words import worded

# How long something took, in seconds, and of how many.
Durations = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Sample:
    """What was measured in one interval, which ends at `at_s`; None is what was not measured."""

    at_s: float
    interval_s: float = 1.0
    # Messages or requests in the interval: taken in, done, turned away or failed.
    accepted: float | None = None
    served: float | None = None
    refused: float | None = None
    # Requests that came in it, whatever became of them; None: those taken in and turned away.
    came: float | None = None
    # At its end.
    waiting: float | None = None
    oldest_age_s: float | None = None
    free_memory_bytes: float | None = None
    # Requests whose client was left without a whole answer; part of those refused.
    unanswered: float | None = None
    # At its end: requests that wait for an answer, by how long they have done so at least. Of each
    # source (a door) the last word counts: who waits for long is in many samples.
    in_hand: Durations = ()
    source: str = ""
    # By `wait`, `service` and `response`.
    times: Mapping[str, Durations] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What a window says about one promise, and by what evidence."""

    metric: Metric
    verdict: Verdict
    # In the metric's unit; None without data, and of a percentile that got no answer.
    value: float | None = None
    # Of a percentile: of how many, and the fraction of them that kept the breaching point.
    count: float | None = None
    within: float | None = None
    # Of a response: how many of them got no answer, and what the others say by themselves.
    unanswered: float = 0.0
    answered: Finding | None = None
    # Of throughput, and where more came than was agreed: what could have been served.
    offered_per_s: float | None = None
    # No breach: more came than this; None: what came is no excuse.
    kept_up_to_per_s: float | None = None

    @property
    def of_answers(self) -> Finding:
        """Of those alone that were answered: how quick the instances are."""
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
    """What one window says about an agreement; its worst promise decides."""

    begins_s: float
    ends_s: float
    verdict: Verdict
    findings: tuple[Finding, ...]
    samples: int

    @property
    def evidence(self) -> list[str]:
        """Why it is what it is: the promises that decided."""
        return [str(one) for one in self.findings if one.verdict is self.verdict]


def windows_of(
    agreement: Agreement, samples: Iterable[Sample]
) -> Iterator[tuple[float, list[Sample]]]:
    """Each window that has samples, by where it begins, in the order of time."""
    windows: dict[float, list[Sample]] = {}
    for sample in samples:
        if math.isfinite(sample.at_s):
            begins_s = sample.at_s - sample.at_s % agreement.window_s
            windows.setdefault(begins_s, []).append(sample)
    yield from sorted(windows.items())


def judged(agreement: Agreement, begins_s: float, samples: Sequence[Sample]) -> WindowVerdict:
    """The verdict on one window by all samples that end in it."""
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
    """The same, and no breach where more came than it is kept up to."""
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
    """What samples say about one promise."""
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
    # A service has not begun with what it did not answer: its time says nothing about it.
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
    """Requests that have waited for so long when the window ended, and wait still."""
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
    """The shortest duration that so many of all do not exceed."""
    so_far = 0.0
    for duration_s, count in durations:
        so_far += count
        if not is_late(so_far, total, percentile):
            return duration_s
    return durations[-1][0]


@dataclass(frozen=True)
class _Flow:
    """What was served, and what could have been."""

    served_per_s: float
    offered_per_s: float
    # Whether there was something to do for long enough.
    is_loaded: bool


def _of_throughput(metric: Metric, samples: Sequence[Sample]) -> Finding:
    flow = _flow(samples)
    if flow is None:
        return Finding(metric, Verdict.NO_DATA)
    says = verdict(metric, flow.served_per_s, flow.offered_per_s if flow.is_loaded else 0.0)
    return Finding(metric, says, flow.served_per_s, offered_per_s=flow.offered_per_s)


def _flow(samples: Sequence[Sample]) -> _Flow | None:
    """Of the time in which there was something to do; None: nothing was measured."""
    measured = [one for one in samples if one.served is not None and one.interval_s > 0.0]
    # Several queues are sampled at a time: from where the first interval begins to the last end.
    begins_s = min((one.at_s - one.interval_s for one in measured), default=0.0)
    whole_s = max((one.at_s for one in measured), default=0.0) - begins_s
    loaded_s = min(whole_s, sum(one.interval_s for one in measured if _has_work(one)))
    is_loaded = loaded_s >= LOADED_MIN * whole_s
    seconds = loaded_s if is_loaded else whole_s
    served = math.fsum(_known(one.served for one in measured))
    served_per_s = served / seconds if seconds > 0.0 else math.nan
    if not math.isfinite(served_per_s):
        return None
    # Who was turned away would have been served, too; and so would who waits inside a server.
    ended = math.fsum(_known(n for one in measured for n in (one.accepted, one.refused)))
    came = max(ended, math.fsum(_known(one.came for one in measured))) / seconds
    waited_s = math.fsum(_known((one.waiting or 0.0) * one.interval_s for one in measured))
    # What could have been served: what came, or what was served and what still waited.
    offered = max(came, served_per_s + waited_s / seconds / seconds)
    return _Flow(served_per_s, offered, is_loaded)


def _has_work(sample: Sample) -> bool:
    """Whether there was something to do in its interval."""
    counts = (sample.accepted, sample.served, sample.refused, sample.came, sample.waiting)
    return any(count > 0.0 for count in _known(counts))


def _availability(samples: Sequence[Sample]) -> float | None:
    accepted = math.fsum(_known(one.accepted for one in samples))
    asked = accepted + math.fsum(_known(one.refused for one in samples))
    return accepted / asked if 0.0 < asked < math.inf else None


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None and not math.isnan(value))
