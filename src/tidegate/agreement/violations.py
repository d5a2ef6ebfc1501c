"""What begins and ends: a warning, a breach, and that a promise is kept again.

Each promise walks its own way through this table, window by window. A window without data changes
nothing: what nobody saw has neither begun nor ended.

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
    """What became of a promise."""

    WARNED = "warned"  # adapt now
    BREACHED = "breached"  # a violation
    EASED = "eased"  # no longer breached, and not yet out of danger
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
    """A turn of one promise, with what shows it."""

    agreement: str
    metric: str
    turn: Turn
    # The verdict that ends here.
    before: Verdict
    # The window that showed it.
    begins_s: float
    ends_s: float
    # The worst that was measured since the promise was last met.
    worst: float | None
    # How many windows had been in that verdict.
    windows_before: int
    evidence: str


@dataclass
class _Way:
    verdict: Verdict = Verdict.MET
    windows: int = 0
    worst: float | None = None


class Violations:
    """The turns of every promise of one agreement."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._ways = {metric.name: _Way() for metric in agreement.metrics}

    def take(self, window: WindowVerdict) -> list[Event]:
        """What the next window begins or ends."""
        events = []
        for finding in window.findings:
            event = self._walk(self._ways[finding.metric.name], finding, window)
            if event is not None:
                events.append(event)
        return events

    def go_on(self, verdicts: Mapping[str, Verdict]) -> None:
        """Promises stood so before the first window that comes here."""
        for metric, verdict in verdicts.items():
            if metric in self._ways:
                self._ways[metric].verdict = verdict

    @property
    def stands(self) -> dict[str, Verdict]:
        """Of each promise the last verdict that there was data for; met before the first."""
        return {metric: way.verdict for metric, way in self._ways.items()}

    def _walk(self, way: _Way, finding: Finding, window: WindowVerdict) -> Event | None:
        if finding.verdict is Verdict.NO_DATA:
            return None
        # The window in which it is met again tells of the worst before it.
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
