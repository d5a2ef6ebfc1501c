"""The incremental evaluation of one agreement: windows are closed and judged as samples arrive.

Theory of operation
-------------------

    sample → open window → (window ends) → WindowVerdict → transitions, status

The ledger has no clock. Its owner, a control loop or the simulation, passes in time and samples:

1. `set_clock` gives the clock that stamps the samples. Call it before each sample.
2. `add_sample` adds a sample to its window, and closes the windows that end before the sample.
3. `advance` closes windows when no sample comes.

A window closes when time is `lateness_s` past its end. Closing it does three things. It judges the
samples, it computes the transitions of each promise (`violations`), and it charges the error budget
(`history`). The result is one `LedgerEntry` per window, in time order.

Invariants and failures:

- A window is judged once. A sample of a closed window is counted in `late_samples` and dropped,
  because the control loops may already have acted on the verdict.
- A window without samples does not exist. It costs no budget.
- A clock that was ahead may be set back. The ledger then drops the windows that began in the wrong
  future, and removes their counts from the history. Otherwise it would judge nothing until the
  clock reached that time again.
- The ledger is not persistent. After each window the owner stores the history and the verdicts of
  the promises (`StoredAgreementStatus`). The next leader passes the history to the constructor and
  the verdicts to `resume`. A change of leader thus neither restores budget nor repeats an alert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tidegate.agreements import Worse
from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import (
    FAST_BURN,
    SLOW_BURN,
    AgreementSample,
    BurnAlarm,
    PromiseFinding,
    Verdict,
    VerdictCounts,
    WindowVerdict,
    budget_left,
    burn_rate,
    burn_rate_over,
    judge_window,
)


@dataclass(frozen=True)
class LedgerEntry:
    """One closed window: its verdict, the transitions it caused, and the status after it."""

    window: WindowVerdict
    events: list[TransitionEvent]
    standing: AgreementStatus
    # The verdict of each promise in the last window with data for it, which may be an earlier
    # window.
    stands: Mapping[str, Verdict]


class AgreementLedger:
    """The evaluation state of one agreement: open windows, transitions and history."""

    def __init__(
        self,
        agreement: Agreement,
        history: AgreementHistory | None = None,
        *,
        lateness_s: float = 0.0,
    ) -> None:
        self._agreement = agreement
        self._lateness_s = lateness_s
        self._open: dict[float, list[AgreementSample]] = {}
        self._closed_until_s = -math.inf
        self._clock_s = -math.inf
        self._violations = Violations(agreement)
        # The owner stores it, so that the error budget survives a restart.
        self.history = history or AgreementHistory.of(agreement)
        self.late_samples = 0

    @property
    def agreement(self) -> Agreement:
        return self._agreement

    @agreement.setter
    def agreement(self, agreement: Agreement) -> None:
        """Replace the agreement by one with the same promises and other warning points."""
        self._agreement = agreement

    def set_clock(self, now_s: float) -> None:
        """Set the clock that stamps the samples; call it before each sample.

        If the clock was set back by more than a window, drop the windows that lie in the future.
        Otherwise the ledger would judge nothing until the clock reached its former value.
        """
        window_s = self._agreement.window_s
        was_ahead = now_s < self._clock_s - window_s - self._lateness_s
        self._clock_s = now_s
        if not was_ahead:
            return
        begins_s = now_s - now_s % window_s
        # A window that was judged is not judged again.
        next_s = begins_s if begins_s in self._open else begins_s + window_s
        self._open = {begin: found for begin, found in self._open.items() if begin <= begins_s}
        self._closed_until_s = min(self._closed_until_s, next_s)
        self.history.forget_after(next_s)

    def add_sample(self, sample: AgreementSample) -> list[LedgerEntry]:
        """Add a sample, and return an entry for each window that it closes, in time order.

        A sample of a closed window is counted and ignored. A sample without a finite time is
        ignored.
        """
        if not math.isfinite(sample.at_s):
            return []
        begins_s = sample.at_s - sample.at_s % self._agreement.window_s
        if begins_s < self._closed_until_s:
            self.late_samples += 1
            return []
        self._open.setdefault(begins_s, []).append(sample)
        return self.advance(sample.at_s)

    def advance(self, now_s: float) -> list[LedgerEntry]:
        """Return an entry for each open window that is over at `now_s`, in time order."""
        over = [
            begins_s
            for begins_s in sorted(self._open)
            if begins_s + self._agreement.window_s + self._lateness_s <= now_s
        ]
        return [self._close(begins_s) for begins_s in over]

    def so_far(self) -> WindowVerdict | None:
        """Return the verdict of the newest open window so far; None if there is no open window."""
        if not self._open:
            return None
        begins_s = max(self._open)
        return judge_window(self._agreement, begins_s, self._open[begins_s])

    def resume(self, verdicts: Mapping[str, Verdict]) -> None:
        """Take over the verdicts of a previous owner, so that no violation begins twice."""
        self._violations.resume(verdicts)

    def _close(self, begins_s: float) -> LedgerEntry:
        window = judge_window(self._agreement, begins_s, self._open.pop(begins_s))
        self._closed_until_s = window.ends_s
        return LedgerEntry(
            window=window,
            events=self._violations.add_window(window),
            standing=self.history.add_window(self._agreement, window.ends_s, window.verdict),
            stands=self._violations.last_verdicts,
        )


# The history of one agreement: verdict counts, burn rates and the error budget.
#
#     alarm     the burn rates over a long and a short span are both high     evaluation.BurnAlarm
#     budget    over the whole period
#
# Windows arrive in time order. Counts are kept per minute for the spans of the alarms, and per hour
# for the budget. The history therefore stays small for any period.


_MINUTE_S = 60
_HOUR_S = 3600
_FINE_S = max(FAST_BURN.long_s, SLOW_BURN.long_s)
SLIDING_S = 3600.0
ALARMS = {"fast": FAST_BURN, "slow": SLOW_BURN}


@dataclass(frozen=True)
class AgreementStatus:
    """The status of an agreement after a window."""

    # The hour that ends with the window.
    last_hour: VerdictCounts
    # How many times faster than allowed the budget is used; None if no window was judged.
    burn_hour: float | None
    # For each alarm, the burn rates of its long and its short span.
    burn_rates: dict[str, tuple[float, float]]
    # "fast" or "slow"; None without an alarm.
    alarm: str | None
    # The fraction left of the whole period's budget: 1 is untouched, below 0 is overdrawn.
    budget_left: float


class AgreementHistory(msgspec.Struct):
    """The verdict counts of one agreement."""

    # The terms of the agreement that was judged. Counts under different terms are not mixed.
    terms: str
    # Keys are the number of the minute, or hour, since 1970 in which a window ends.
    minutes: dict[int, VerdictCounts] = {}
    hours: dict[int, VerdictCounts] = {}

    @staticmethod
    def of(agreement: Agreement) -> AgreementHistory:
        """Return an empty history."""
        return AgreementHistory(terms_of(agreement), {}, {})

    def add_window(self, agreement: Agreement, end_s: float, verdict: Verdict) -> AgreementStatus:
        """Count the verdict of the window that ends at `end_s`, and return the status after it."""
        # A window belongs to the minute and hour in which it ends.
        minute, hour = int(-(-end_s // _MINUTE_S)), int(-(-end_s // _HOUR_S))
        one = VerdictCounts.of([verdict])
        self.minutes[minute] = self.minutes.get(minute, VerdictCounts()) + one
        self.hours[hour] = self.hours.get(hour, VerdictCounts()) + one
        self._forget(end_s, agreement.period_s)

        def lately(span_s: float) -> VerdictCounts:
            return _sum(self.minutes, minute - span_s / _MINUTE_S)

        burns = {name: _burns(agreement, alarm, lately) for name, alarm in ALARMS.items()}
        last_hour = lately(SLIDING_S)
        # A short period is summed by minutes, because hours are too coarse for it.
        period = (
            lately(agreement.period_s)
            if agreement.period_s <= _FINE_S
            else _sum(self.hours, hour - agreement.period_s / _HOUR_S)
        )
        return AgreementStatus(
            last_hour=last_hour,
            burn_hour=_burn(agreement, last_hour),
            burn_rates=burns,
            alarm=next((name for name, alarm in ALARMS.items() if alarm.rings(*burns[name])), None),
            budget_left=float(
                budget_left(period.breached, agreement.windows_in_period, agreement.objective)
            ),
        )

    def forget_after(self, end_s: float) -> None:
        """Remove the counts after a time that a clock, later set back, had reached by mistake."""
        for counts, width_s in ((self.minutes, _MINUTE_S), (self.hours, _HOUR_S)):
            for number in [one for one in counts if one > -(-end_s // width_s)]:
                del counts[number]

    def _forget(self, end_s: float, period_s: float) -> None:
        for counts, width_s, span_s in (
            (self.minutes, _MINUTE_S, _FINE_S),
            (self.hours, _HOUR_S, period_s),
        ):
            for number in [one for one in counts if one * width_s <= end_s - span_s - width_s]:
                del counts[number]


def terms_of(agreement: Agreement) -> str:
    """Return the terms that charge the budget: breaching points, and how windows are counted.

    Warning points, resources and the source of the document are not part of them. A change of those
    must not restore used budget.
    """
    breaches = sorted((metric.name, metric.breach) for metric in agreement.metrics)
    governs = (agreement.name, agreement.queue, agreement.http)
    counted = (agreement.window_s, agreement.objective, agreement.period_s)
    return repr((*governs, *counted, agreement.resources.load_max_per_s, breaches))


def _burn(agreement: Agreement, counts: VerdictCounts) -> float | None:
    if not counts.judged:
        return None
    return float(burn_rate(counts.breached, counts.judged, agreement.objective))


def _burns(
    agreement: Agreement, alarm: BurnAlarm, lately: Callable[[float], VerdictCounts]
) -> tuple[float, float]:
    long, short = (
        burn_rate_over(span_s, one.breached, one.judged, agreement.window_s, agreement.objective)
        for span_s in (alarm.long_s, alarm.short_s)
        for one in (lately(span_s),)
    )
    return long, short


def _sum(by_number: Mapping[int, VerdictCounts], after: float) -> VerdictCounts:
    # Plain sums, for speed: this runs for every window and sums some hundreds of entries.
    met = warned = breached = no_data = 0
    for number, one in by_number.items():
        if number > after:
            met += one.met
            warned += one.warned
            breached += one.breached
            no_data += one.no_data
    return VerdictCounts(met, warned, breached, no_data)


# The status of an agreement as the store keeps it, for the next leader and for `tidegate sla`.
#
# The leader writes it after each window. The next leader resumes with the stored history, so that a
# change of leader does not restore used budget. The other fields are for people. The format is
# JSON.


# After this many windows without an update, the evaluation counts as stopped.
SILENT_WINDOWS = 3.0


class PromiseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one promise in the last window."""

    metric: str
    verdict: Verdict
    # In the metric's unit; None if nothing was measured.
    value: float | None
    evidence: str


class StoredAgreementStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The stored status of one agreement after a window."""

    agreement: str
    # Exactly one of the two is set.
    http: str | None = None
    queue: str | None = None
    # The end of the window, in seconds since 1970, and its length.
    at: float
    window_s: float
    verdict: Verdict
    promises: list[PromiseStatus] = []
    # The verdict each promise resumes with. A last window without data ends no violation.
    stands: dict[str, Verdict] = {}
    standing: AgreementStatus
    history: AgreementHistory
    # The current reaction, as text; empty if none is needed.
    doing: str = ""
    # The missing resource that was reported, as text; empty if nothing is missing.
    lacks: str = ""
    # The basis of learned warning points: the fastest worsening of each promise, per second.
    slopes_per_s: dict[str, float] = {}
    # What the offer reduces and why; empty if it reduces nothing.
    reduced: str = ""

    @staticmethod
    def of(
        agreement: Agreement,
        entry: LedgerEntry,
        history: AgreementHistory,
        doing: str = "",
        lacks: str = "",
    ) -> StoredAgreementStatus:
        """Return the status to store after the window of an entry."""
        window = entry.window
        return StoredAgreementStatus(
            agreement=agreement.name,
            http=agreement.http,
            queue=agreement.queue,
            at=window.ends_s,
            window_s=agreement.window_s,
            verdict=window.verdict,
            promises=[
                PromiseStatus(
                    metric=one.metric.name,
                    verdict=one.verdict,
                    value=one.value,
                    evidence=str(one),
                )
                for one in window.findings
            ],
            stands=dict(entry.stands),
            standing=entry.standing,
            history=history,
            doing=doing,
            lacks=lacks,
            reduced=agreement.resources.reduced,
        )

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(document: bytes) -> StoredAgreementStatus | None:
        """Return the status in a JSON document; None if its format is unknown."""
        try:
            return msgspec.json.decode(document, type=StoredAgreementStatus)
        except msgspec.DecodeError:
            return None

    def is_of(self, agreement: Agreement) -> bool:
        """Return whether the agreement has the same terms, so that the history continues."""
        return self.history.terms == terms_of(agreement)

    def is_silent(self, now: float) -> bool:
        """Return whether no leader has judged the agreement for several windows."""
        return now - self.at > SILENT_WINDOWS * self.window_s + 2.0


# Transitions of promises: when a warning or a breach begins and ends.
#
# Each promise follows this table, window by window. A window without data changes nothing: it
# neither begins nor ends a violation.
#
#     before      now met     now warned   now breached
#     met         –           warned       breached
#     warned      kept        –            breached
#     breached    kept        eased        –


class Transition(StrEnum):
    """The transition of a promise between two windows."""

    WARNED = "warned"  # the promise is at risk: the control loops adapt
    BREACHED = "breached"  # a violation begins
    EASED = "eased"  # the violation ends, but the value still warns
    KEPT = "kept"


TRANSITIONS: dict[tuple[Verdict, Verdict], Transition] = {
    (Verdict.MET, Verdict.WARNED): Transition.WARNED,
    (Verdict.MET, Verdict.BREACHED): Transition.BREACHED,
    (Verdict.WARNED, Verdict.MET): Transition.KEPT,
    (Verdict.WARNED, Verdict.BREACHED): Transition.BREACHED,
    (Verdict.BREACHED, Verdict.MET): Transition.KEPT,
    (Verdict.BREACHED, Verdict.WARNED): Transition.EASED,
}


@dataclass(frozen=True)
class TransitionEvent:
    """One transition of one promise, with its evidence."""

    agreement: str
    metric: str
    turn: Transition
    # The verdict before the transition.
    before: Verdict
    # The window that caused the transition.
    begins_s: float
    ends_s: float
    # The worst measured value since the promise was last met.
    worst: float | None
    # The number of consecutive windows with that verdict.
    windows_before: int
    evidence: str


@dataclass
class _Way:
    verdict: Verdict = Verdict.MET
    windows: int = 0
    worst: float | None = None


class Violations:
    """The transitions of all promises of one agreement."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._ways = {metric.name: _Way() for metric in agreement.metrics}

    def add_window(self, window: WindowVerdict) -> list[TransitionEvent]:
        """Return the transitions that the next window causes."""
        events = []
        for finding in window.findings:
            event = self._walk(self._ways[finding.metric.name], finding, window)
            if event is not None:
                events.append(event)
        return events

    def resume(self, verdicts: Mapping[str, Verdict]) -> None:
        """Set the verdicts of promises before the first window."""
        for metric, verdict in verdicts.items():
            if metric in self._ways:
                self._ways[metric].verdict = verdict

    @property
    def last_verdicts(self) -> dict[str, Verdict]:
        """The verdict of each promise in its last window with data; met before the first."""
        return {metric: way.verdict for metric, way in self._ways.items()}

    def _walk(
        self, way: _Way, finding: PromiseFinding, window: WindowVerdict
    ) -> TransitionEvent | None:
        if finding.verdict is Verdict.NO_DATA:
            return None
        # A window that meets the promise again reports the worst value before it.
        if finding.verdict is not Verdict.MET:
            way.worst = _worse(finding, way.worst)
        turn = TRANSITIONS.get((way.verdict, finding.verdict))
        if turn is None:
            way.windows += 1
            return None
        event = TransitionEvent(
            agreement=self._agreement.name,
            metric=finding.metric.name,
            turn=turn,
            before=way.verdict,
            begins_s=window.begins_s,
            ends_s=window.ends_s,
            worst=way.worst,
            windows_before=way.windows,
            evidence=str(finding),
        )
        way.verdict, way.windows = finding.verdict, 1
        if finding.verdict is Verdict.MET:
            way.worst = None
        return event


def _worse(finding: PromiseFinding, before: float | None) -> float | None:
    if before is None or finding.value is None:
        return finding.value if before is None else before
    either = max if finding.metric.worse is Worse.LARGER else min
    return either(finding.value, before)
