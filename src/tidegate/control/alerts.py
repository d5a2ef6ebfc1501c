"""Alerts to people, by a command or a webhook, without delaying any loop.

    [alerts]
    command = ["/usr/local/bin/page", "--team", "shop"]     # gets the alert as JSON on stdin
    webhook = "http://127.0.0.1:9093/hook"                  # gets it as a POST
    warnings = false                                        # warnings as well, and their end

`send` queues an alert, and a task sends it. Each attempt has a time limit, and the number of
attempts is limited. An alert that cannot be sent is logged. If too many wait, the oldest is dropped
and logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import Verdict
from tidegate.agreements.ledger import (
    AgreementStatus,
    LedgerEntry,
    StoredAgreementStatus,
    Transition,
    TransitionEvent,
)
from tidegate.control.journal import Journal
from tidegate.control.services.measurement import ProbeSample, checked_url, http_get
from tidegate.core.decisions import Decision
from tidegate.core.errors import TidegateError, Unavailable
from tidegate.core.runtime import cancel_and_wait
from tidegate.core.services import Instance, decision_subject
from tidegate.core.text import redact_secrets
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

_WAITING_MAX = 100
_AGAIN_S = 1.0
# Bytes of a failed command's error output that are logged.
_SAID_BYTES_MAX = 2000


class AlertTargets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where alerts are sent; without command and webhook they are only logged."""

    command: list[str] = []
    webhook: str | None = None
    warnings: bool = False
    timeout_s: float = 10.0
    attempts: int = 3


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A message to people about one event."""

    # violation, burn-rate, shortage, disagreement, warning, over
    kind: str
    # For the kind "over": the kind of what has ended. An alert and its end are filtered alike, so
    # that the end of every alert is sent.
    of: str = ""
    # The name of the agreement, and of the queue or service that it governs.
    agreement: str
    service: str
    # Seconds since 1970.
    at: float
    summary: str
    evidence: list[str] = []
    # Part of the error budget that is left: 1 is untouched, below 0 is overdrawn.
    budget_left: float | None = None


class Alerts:
    """Sends alerts in a task of its own, started by `send`."""

    def __init__(self, settings: AlertTargets | None = None) -> None:
        self.settings = settings or AlertTargets()
        if self.settings.webhook:
            checked_url(self.settings.webhook)
        self._waiting: deque[Alert] = deque()
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.lost = 0

    def send(self, alert: Alert) -> None:
        """Queue an alert and return at once; drop warnings if they are switched off."""
        if "warning" in (alert.kind, alert.of) and not self.settings.warnings:
            return
        log.warning("alert: %s: %s", alert.service, alert.summary)
        if not (self.settings.command or self.settings.webhook):
            return
        if len(self._waiting) >= _WAITING_MAX:
            let_go = self._waiting.popleft()
            self.lost += 1
            log.error("an alert is lost, too many wait: %s", let_go.summary)
        self._waiting.append(alert)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all())

    async def drained(self) -> None:
        """Wait until every queued alert has been sent or has failed."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Stop sending; log the alerts that still wait as lost."""
        if self._task is not None:
            await cancel_and_wait([self._task])
        for alert in self._waiting:
            log.error("an alert was not sent: %s", alert.summary)
        self._waiting.clear()

    async def _send_all(self) -> None:
        while self._waiting:
            alert = self._waiting.popleft()
            if await self._sent(alert):
                self.sent += 1
            else:
                self.lost += 1

    async def _sent(self, alert: Alert) -> bool:
        document = msgspec.json.encode(alert)
        ways: list[Callable[[bytes], Awaitable[None]]] = []
        if self.settings.command:
            ways.append(self._run_command)
        if self.settings.webhook:
            ways.append(self._post)
        results = [await self._tried(way, document, alert) for way in ways]
        return all(results)

    async def _tried(
        self, way: Callable[[bytes], Awaitable[None]], document: bytes, alert: Alert
    ) -> bool:
        failure = ""
        for attempt in range(self.settings.attempts):
            if attempt:
                await asyncio.sleep(_AGAIN_S * 2.0 ** (attempt - 1))
            try:
                await way(document)
            except TidegateError as error:
                failure = redact_secrets(str(error))
                log.warning("an alert could not be sent: %s", failure)
            else:
                return True
        log.error("an alert is lost after %s attempts: %s", self.settings.attempts, alert.summary)
        return False

    async def _run_command(self, document: bytes) -> None:
        name = self.settings.command[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *self.settings.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{name} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                _, said = await process.communicate(document)
        except TimeoutError as error:
            raise Unavailable(f"{name} took longer than {self.settings.timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    # Kill the whole process group, or children of the command would survive.
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            words = said[-_SAID_BYTES_MAX:].decode(errors="replace").strip()
            raise Unavailable(f"{name} ended with {process.returncode}: {words}")

    async def _post(self, document: bytes) -> None:
        assert self.settings.webhook is not None
        status = await http_get(
            "POST", self.settings.webhook, timeout_s=self.settings.timeout_s, body=document
        )
        if not 200 <= status < 300:
            raise Unavailable(f"the webhook answered {status}")


# Reports what happens to an agreement: log, lake, journal and alerts, each event once.
#
#     a promise is breached, and no longer              when it begins, and when it ends
#     a promise is warned of, and is met again          the same, if warnings are switched on
#     the error budget burns fast, or slowly and long   when the alarm begins
#     more is needed than available                     when it begins, and when it ends
#     doors and the probe disagree                      when it begins, and when it ends
#
# Alerts never wait. The journal is in the store: an entry that cannot be written stays queued, and
# describes the actions in progress at the time of writing.


_KINDS = {Transition.BREACHED: "violation", Transition.WARNED: "warning"}
_TURNED = {
    Transition.WARNED: "is warned of",
    Transition.BREACHED: "is breached",
    Transition.EASED: "is breached no more, and warned of",
    Transition.KEPT: "is kept again",
}
# Transitions that wait for the store; the newest are kept.
_UNWRITTEN_MAX = 100


@dataclass(frozen=True)
class AgreementSubject:
    """The queue or service that an agreement governs: its name, a text, and its journal key."""

    name: str
    words: str
    journal_key: str

    @staticmethod
    def queue(name: str) -> AgreementSubject:
        return AgreementSubject(name, f"queue {name}", name)

    @staticmethod
    def service(name: str) -> AgreementSubject:
        return AgreementSubject(name, name, decision_subject(name))


class AgreementAlerts:
    """Reports what the loop of a queue or a service finds."""

    def __init__(
        self, about: AgreementSubject, journal: Journal, alerts: Alerts, recorder: Recorder | None
    ) -> None:
        self._about = about
        self._journal = journal
        self._alerts = alerts
        self._recorder = recorder
        # The active alarm of the error budget: fast, slow, or None.
        self._alarm: str | None = None
        # Transitions that wait for the journal, each with a text about the error budget.
        self._unwritten: deque[tuple[Decision, str]] = deque(maxlen=_UNWRITTEN_MAX)

    def resume(self, agreement: Agreement, kept: StoredAgreementStatus | None) -> None:
        """Continue from the stored status; an alarm that is already active is not sent again."""
        is_same = kept is not None and kept.is_of(agreement)
        self._alarm = kept.standing.alarm if kept is not None and is_same else None

    def window(self, agreement: Agreement, entry: LedgerEntry) -> None:
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

    def _turn(
        self, agreement: Agreement, event: TransitionEvent, standing: AgreementStatus
    ) -> None:
        if event.turn is Transition.BREACHED:
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


def _budget(standing: AgreementStatus) -> str:
    words = f"{100.0 * standing.budget_left:.4g} % of the error budget is left"
    if standing.burn_hour is not None:
        burn = f"{standing.burn_hour:.3g} times as fast as allowed"
        words += f", and in the last hour it burned {burn}"
    return words


# Detects a lasting shortage: reported when it has lasted, and when it is over for good.
#
#     no slot is free, or the maximum is reached, for BEGINS_S     → reported, with the reason
#     nothing is lacking, for OVER_S                               → reported as over
#
# Load fluctuates between samples, and so does what it needs. A moment of shortage must not alert
# anyone, and one shortage must not alert twice, also after a change of leader.


BEGINS_S = 3.0
OVER_S = 10.0


class CapacityShortage:
    """The shortage of one queue or service; `told` is what the last leader reported."""

    def __init__(self, told: str = "") -> None:
        # Why there is too little, as last reported; empty if there is enough.
        self.told = told
        # Since when the situation differs from what was reported; None if it does not differ.
        self._since: float | None = None

    def update(self, lacks: str, at: float) -> str | None:
        """Return the text of a new shortage, "" when it is over, None if nothing has changed."""
        if bool(lacks) == bool(self.told):
            self._since = None
            return None
        if self._since is None:
            self._since = at
        if at - self._since < (BEGINS_S if lacks else OVER_S):
            return None
        self._since = None
        self.told = lacks
        return lacks
