"""Reports what happens to an agreement: log, lake, journal and alerts, each event once.

    a promise is breached, and no longer              when it begins, and when it ends
    a promise is warned of, and is met again          the same, if warnings are switched on
    the error budget burns fast, or slowly and long   when the alarm begins
    more is needed than available                     when it begins, and when it ends
    doors and the probe disagree                      when it begins, and when it ends

Alerts never wait. The journal is in the store: an entry that cannot be written stays queued, and
describes the actions in progress at the time of writing.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

import msgspec

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.history import Standing
from tidegate.agreement.kept_standing import KeptStanding
from tidegate.agreement.ledger import Entry
from tidegate.agreement.violations import Event, Turn
from tidegate.control.alerts import Alert, Alerts
from tidegate.control.journal import Journal
from tidegate.control.probe import ProbeSample
from tidegate.core.hosting import Instance, decided_about
from tidegate.core.steering import Decision
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

_KINDS = {Turn.BREACHED: "violation", Turn.WARNED: "warning"}
_TURNED = {
    Turn.WARNED: "is warned of",
    Turn.BREACHED: "is breached",
    Turn.EASED: "is breached no more, and warned of",
    Turn.KEPT: "is kept again",
}
# Transitions that wait for the store; the newest are kept.
_UNWRITTEN_MAX = 100


@dataclass(frozen=True)
class Governed:
    """The queue or service that an agreement governs: its name, a text, and its journal key."""

    name: str
    words: str
    journal_key: str

    @staticmethod
    def queue(name: str) -> Governed:
        return Governed(name, f"queue {name}", name)

    @staticmethod
    def service(name: str) -> Governed:
        return Governed(name, name, decided_about(name))


class AgreementNews:
    """Reports what the loop of a queue or a service finds."""

    def __init__(
        self, about: Governed, journal: Journal, alerts: Alerts, recorder: Recorder | None
    ) -> None:
        self._about = about
        self._journal = journal
        self._alerts = alerts
        self._recorder = recorder
        # The active alarm of the error budget: fast, slow, or None.
        self._alarm: str | None = None
        # Transitions that wait for the journal, each with a text about the error budget.
        self._unwritten: deque[tuple[Decision, str]] = deque(maxlen=_UNWRITTEN_MAX)

    def go_on(self, agreement: Agreement, kept: KeptStanding | None) -> None:
        """Continue from the stored status; an alarm that is already active is not sent again."""
        is_same = kept is not None and kept.is_of(agreement)
        self._alarm = kept.standing.alarm if kept is not None and is_same else None

    def window(self, agreement: Agreement, entry: Entry) -> None:
        """Report the transitions of a closed window, and an alarm that begins with it."""
        for event in entry.events:
            self._turn(agreement, event, entry.standing)
        alarm, before = entry.standing.alarm, self._alarm
        self._alarm = alarm
        if alarm is None or alarm == before:
            return
        burn, _ = entry.standing.burn_rates[alarm]
        self._alerts.send(
            Alert(
                kind="burn-rate",
                agreement=agreement.name,
                service=self._about.name,
                at=entry.window.ends_s,
                summary=f"the error budget of {agreement.name} is used {burn:.3g} times as "
                f"fast as it may be ({alarm} burn)",
                evidence=entry.window.evidence,
                budget_left=entry.standing.budget_left,
            )
        )

    async def write(self, doing: str, epoch: int) -> None:
        """Write the queued transitions to the journal, with the actions in progress.

        Raises the store's errors; a transition that was not written stays queued.
        """
        while self._unwritten:
            turn, budget = self._unwritten[0]
            told = msgspec.structs.replace(turn, outcome=doing)
            # The text makes each one news, also if a promise changes to and fro.
            await self._journal.write(told, epoch, good=budget)
            self._unwritten.popleft()

    def _turn(self, agreement: Agreement, event: Event, standing: Standing) -> None:
        if event.turn is Turn.BREACHED:
            log.warning("%s is breached: %s", event.agreement, event.evidence)
        turned = _TURNED[event.turn]
        self._unwritten.append(
            (
                Decision(
                    at=event.ends_s,
                    loop="agreement",
                    service=self._about.journal_key,
                    law="agreement",
                    rule=f"{event.metric} {turned}",
                    inputs={} if event.worst is None else {"worst": event.worst},
                    outputs={"budget_left": standing.budget_left},
                    reason=f"{event.evidence}, in the {agreement.window_s:g} s until then.",
                ),
                _budget(standing),
            )
        )
        if self._recorder is not None:
            self._recorder.agreement_turn(
                event.agreement,
                event.metric,
                event.turn,
                at_s=event.ends_s,
                evidence=event.evidence,
                worst=event.worst,
                before_s=event.windows_before * agreement.window_s,
            )
        ended = "violation" if event.before is Verdict.BREACHED else "warning"
        self._alerts.send(
            Alert(
                kind=_KINDS.get(event.turn, "over"),
                of="" if event.turn in _KINDS else ended,
                agreement=event.agreement,
                service=self._about.name,
                at=event.ends_s,
                summary=f"{event.metric} of {self._about.words} {turned}",
                evidence=[event.evidence],
                budget_left=standing.budget_left,
            )
        )

    def shortage(self, agreement: str, said: str, at_s: float) -> None:
        """Report that more is needed than available; an empty text reports the end of it."""
        self._begins_or_ends(
            "shortage",
            agreement,
            said,
            at_s,
            f"{self._about.words} needs more than can be had: {said}"
            if said
            else f"{self._about.words} has all that it needs again",
        )

    def disagreement(self, agreement: str, said: str, at_s: float) -> None:
        """Report that doors and the probe disagree; an empty text reports the end of it."""
        summary = said or "doors and the probe say the same again"
        self._begins_or_ends("disagreement", agreement, said, at_s, summary)

    def _begins_or_ends(
        self, kind: str, agreement: str, said: str, at_s: float, summary: str
    ) -> None:
        name = self._about.name
        if self._recorder is not None:
            event = kind if said else f"{kind} over"
            self._recorder.event(event, name, at_s=at_s, detail={"what": said})
        self._alerts.send(
            Alert(
                kind=kind if said else "over",
                of="" if said else kind,
                agreement=agreement,
                service=name,
                at=at_s,
                summary=summary,
            )
        )

    def probed(self, sample: ProbeSample) -> None:
        """Record a sample of the probe."""
        if self._recorder is not None:
            self._recorder.http_probe(
                self._about.name,
                sample.address,
                at_s=sample.at,
                duration_s=sample.duration_s,
                status=sample.status,
                failure=sample.failure,
            )

    def reconfigured(self, at_s: float, took_s: float, what: str) -> None:
        """Record how many seconds an ordered change took until it served."""
        if self._recorder is not None:
            self._recorder.reconfigured(
                self._about.name, at_s=at_s, took_s=took_s, detail={"what": what}
            )

    def started(self, instance: Instance, took_s: float) -> None:
        """Record how many seconds an instance took from its order until it answered."""
        if instance.ready_at is not None:
            what = f"instance {instance.instance_id} answers"
            self.reconfigured(instance.ready_at, took_s, what)


def _budget(standing: Standing) -> str:
    words = f"{100.0 * standing.budget_left:.4g} % of the error budget is left"
    if standing.burn_hour is not None:
        burn = f"{standing.burn_hour:.3g} times as fast as allowed"
        words += f", and in the last hour it burned {burn}"
    return words
