"""One queue under its agreement: samples in; verdicts, learned warnings and a wait target out.

    sample → agreements.ledger → windows, events, status
    windows → how fast promises get worse → agreements.evaluation → warning points
    warning points → `WaitTarget` of laws.scaling.wait, the nearest of all promised waits

It is synchronous and has no clock, so the queue's loop and the simulation both use it. The capacity
of a replica and the time of a reconfiguration are facts: a measured value wins over the document
(docs/decisions/0008-whose-word-counts.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from tidegate.agreements import Metric
from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import (
    AgreementSample,
    Verdict,
    WarningLesson,
    slope_seen,
    with_learned_warnings,
)
from tidegate.agreements.ledger import (
    AgreementHistory,
    AgreementLedger,
    LedgerEntry,
    StoredAgreementStatus,
)
from tidegate.control.learned import learned_slopes
from tidegate.laws.scaling.wait import WaitTarget
from tidegate.telemetry.models import StoredModel

# Metrics that grow with what waits. A response time includes the service time too.
_WAITS = ("wait", "response", "oldest_age")
# The age of the oldest message has no percentile, so the law plans for this one.
_AGE_PERCENTILE = 0.999
# Part of a response's warning point that is left to waiting at least, however long the service
# takes.
_WAIT_PART_MIN = 0.05
# Windows from which slopes are learned, and the reconfiguration times that are kept.
_WINDOWS_MAX = 360
_RECONFIGURATIONS_MAX = 8
_DANGER = (Verdict.WARNED, Verdict.BREACHED)


class QueueAgreement:
    """The state of one agreement for one queue; `kept` is its stored status."""

    def __init__(
        self, agreement: Agreement, queue: str, kept: StoredAgreementStatus | None = None
    ) -> None:
        # The document. A learned warning may move, but the promise stays: it is one history.
        self.said = agreement
        self.queue = queue
        is_ours = kept is not None and kept.is_of(agreement)
        history = kept.history if kept is not None and is_ours else AgreementHistory.of(agreement)
        self._ledger = AgreementLedger(agreement, history)
        if kept is not None and is_ours:
            # A violation that continues must not begin a second time.
            self._ledger.resume(kept.stands)
        self._seen: dict[str, deque[tuple[float, float]]] = {
            metric.name: deque(maxlen=_WINDOWS_MAX)
            for metric in agreement.metrics
            # Throughput falls as fast as producers stop, and more replicas do not help then.
            if metric.learned and metric.name != "throughput"
        }
        slopes = kept.slopes_per_s if kept is not None and is_ours else {}
        self._slopes = {name: slope for name, slope in slopes.items() if name in self._seen}
        self._reconfigured_s: deque[float] = deque(maxlen=_RECONFIGURATIONS_MAX)
        self._lead_s: float | None = None
        self._service_s = 0.0
        self.lessons: list[WarningLesson] = []
        # The last closed window; None if none has closed yet.
        self.last: LedgerEntry | None = None

    @property
    def agreement(self) -> Agreement:
        """The agreement with its warnings where they are now."""
        return self._ledger.agreement

    def add_sample(self, sample: AgreementSample) -> list[LedgerEntry]:
        """Add a sample and return the windows that it closes."""
        self._feel_service(sample)
        self._ledger.set_clock(sample.at_s)
        entries = self._ledger.add_sample(sample)
        for entry in entries:
            self.last = entry
            self._learn(entry)
        return entries

    def reconfigured(self, lead_s: float | None) -> bool:
        """Record the time from a replica's order until it served; return whether it is new."""
        is_new = lead_s is not None and lead_s != self._lead_s
        if is_new and lead_s is not None:
            self._reconfigured_s.append(lead_s)
        self._lead_s = lead_s
        return is_new

    def reconfiguration_s(
        self, boot_s: float | None = None, learned: StoredModel | None = None
    ) -> float | None:
        """Return the seconds from a warning until its remedy works; None if unknown.

        The first known of these counts: measured here, learned for this agreement, learned boot
        time, value of the document.
        """
        seen = max(self._reconfigured_s, default=None)
        learned_s = None if learned is None else learned.parameters.get("reconfiguration_s")
        written = self.said.resources.reconfiguration_s
        return next((one for one in (seen, learned_s, boot_s, written) if one), None)

    def wait_target(self, sla_delta: float | None) -> WaitTarget:
        """Return the target for the law, from the current warning points."""
        waits = [
            (self._wait_of(metric), metric)
            for metric in self.agreement.metrics
            if metric.stem in _WAITS
        ]
        nearest = min(waits, key=lambda one: one[0], default=None)
        throughput = next((one for one in self.agreement.metrics if one.name == "throughput"), None)
        promised = None if throughput is None else throughput.warning
        if nearest is None:
            return WaitTarget(
                throughput_per_s=promised, growth_per_s2=sla_delta, endangered=self.is_endangered
            )
        wait_s, metric = nearest
        return WaitTarget(
            wait_s=wait_s,
            metric=metric.name,
            percentile=metric.percentile or _AGE_PERCENTILE,
            throughput_per_s=promised,
            growth_per_s2=sla_delta,
            endangered=self.is_endangered,
        )

    @property
    def is_endangered(self) -> bool:
        """Whether the last window was warned of or breached; False without data."""
        return self.last is not None and self.last.window.verdict in _DANGER

    def learn_warnings(
        self, boot_s: float | None = None, learned: StoredModel | None = None
    ) -> None:
        """Move the learned warnings to where they belong now.

        `learned` is the model from the lake; the larger slope of the model and of this node counts.
        """
        took_s = self.reconfiguration_s(boot_s, learned)
        if not self._seen or took_s is None:
            return
        slopes = {} if learned is None else learned_slopes(learned)
        for name, slope in self._slopes.items():
            slopes[name] = max(slope, slopes.get(name, 0.0))
        agreement, self.lessons = with_learned_warnings(self.said, slopes, took_s)
        if agreement != self._ledger.agreement:
            self._ledger.agreement = agreement

    def standing(self, doing: str, lacks: str = "") -> StoredAgreementStatus | None:
        """Return the status for the next leader and `tidegate sla`; None at first."""
        if self.last is None:
            return None
        about = replace(self.agreement, queue=self.queue)
        kept = StoredAgreementStatus.of(about, self.last, self._ledger.history, doing, lacks)
        return msgspec.structs.replace(kept, slopes_per_s=dict(self._slopes))

    @property
    def key(self) -> str:
        """The key of the stored status.

        It names the queue too: an HTTP service, or another queue, may have an agreement of that
        name.
        """
        return f"{self.said.name}/{self.queue}"

    def _wait_of(self, metric: Metric) -> float:
        if metric.stem != "response":
            return metric.warning
        return max(metric.warning - self._service_s, _WAIT_PART_MIN * metric.warning)

    def _feel_service(self, sample: AgreementSample) -> None:
        """Update the average service time of handlers."""
        mean_s = _mean(sample.times.get("service", ()))
        if mean_s is not None:
            self._service_s += (0.1 if self._service_s else 1.0) * (mean_s - self._service_s)

    def _learn(self, entry: LedgerEntry) -> None:
        for finding in entry.window.findings:
            readings = self._seen.get(finding.metric.name)
            if readings is None or finding.value is None:
                continue
            readings.append((entry.window.ends_s, finding.value))
            slope = slope_seen(finding.metric, readings)
            if slope is not None:
                # Keep the largest slope, including the slopes of earlier leaders.
                name = finding.metric.name
                self._slopes[name] = max(slope, self._slopes.get(name, 0.0))

    @property
    def slopes_per_s(self) -> Mapping[str, float]:
        return self._slopes


def _mean(durations: Sequence[tuple[float, float]]) -> float | None:
    count = sum(times for _, times in durations)
    return sum(one_s * times for one_s, times in durations) / count if count > 0.0 else None
