"""Transitions of promises: when a warning or a breach begins and ends.

Each promise follows this table, window by window. A window without data changes nothing: it neither
begins nor ends a violation.

    before      now met     now warned   now breached
    met         –           warned       breached
    warned      kept        –            breached
    breached    kept        eased        –
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.metrics import Worse
from tidegate.agreement.windows import Finding, WindowVerdict


class Turn(StrEnum):
    """The transition of a promise between two windows."""

    WARNED = "warned"  # the promise is at risk: the control loops adapt
    BREACHED = "breached"  # a violation begins
    EASED = "eased"  # the violation ends, but the value still warns
    KEPT = "kept"


TURNS: dict[tuple[Verdict, Verdict], Turn] = {
    (Verdict.MET, Verdict.WARNED): Turn.WARNED,
    (Verdict.MET, Verdict.BREACHED): Turn.BREACHED,
    (Verdict.WARNED, Verdict.MET): Turn.KEPT,
    (Verdict.WARNED, Verdict.BREACHED): Turn.BREACHED,
    (Verdict.BREACHED, Verdict.MET): Turn.KEPT,
    (Verdict.BREACHED, Verdict.WARNED): Turn.EASED,
}


@dataclass(frozen=True)
class Event:
    """One transition of one promise, with its evidence."""

    agreement: str
    metric: str
    turn: Turn
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

    def take(self, window: WindowVerdict) -> list[Event]:
        """Return the transitions that the next window causes."""
        events = []
        for finding in window.findings:
            event = self._walk(self._ways[finding.metric.name], finding, window)
            if event is not None:
                events.append(event)
        return events

    def go_on(self, verdicts: Mapping[str, Verdict]) -> None:
        """Set the verdicts of promises before the first window."""
        for metric, verdict in verdicts.items():
            if metric in self._ways:
                self._ways[metric].verdict = verdict

    @property
    def stands(self) -> dict[str, Verdict]:
        """The verdict of each promise in its last window with data; met before the first."""
        return {metric: way.verdict for metric, way in self._ways.items()}

    def _walk(self, way: _Way, finding: Finding, window: WindowVerdict) -> Event | None:
        if finding.verdict is Verdict.NO_DATA:
            return None
        # A window that meets the promise again reports the worst value before it.
        if finding.verdict is not Verdict.MET:
            way.worst = _worse(finding, way.worst)
        turn = TURNS.get((way.verdict, finding.verdict))
        if turn is None:
            way.windows += 1
            return None
        event = Event(
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


def _worse(finding: Finding, before: float | None) -> float | None:
    if before is None or finding.value is None:
        return finding.value if before is None else before
    either = max if finding.metric.worse is Worse.LARGER else min
    return either(finding.value, before)
