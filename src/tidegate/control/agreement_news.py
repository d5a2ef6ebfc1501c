"""What people should know of an agreement, told once: to the lake, to the log and as an alert.

a promise is warned of, breached, eased, kept     violation of a breach; the others if wanted
the budget burns fast, or slowly and long         when the alarm begins
more is needed than can be had                    when it begins, and when it is over
doors and probe disagree                          when it begins, and when it is over
"""

from __future__ import annotations

import logging

from tidegate.agreement.document import Agreement
from tidegate.agreement.ledger import Entry
from tidegate.agreement.violations import Event, Turn
from tidegate.control.alerts import Alert, Alerts
from tidegate.control.monitoring import Monitoring
from tidegate.control.probe import ProbeSample
from tidegate.core.hosting import Instance
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

_KINDS = {Turn.BREACHED: "violation", Turn.WARNED: "warning"}


class AgreementNews:
    """Tells what the loop of a service has found."""

    def __init__(self, alerts: Alerts, recorder: Recorder | None) -> None:
        self._alerts = alerts
        self._recorder = recorder

    def window(self, service: str, monitoring: Monitoring, entry: Entry) -> None:
        """A window is over."""
        agreement = monitoring.agreement
        for event in entry.events:
            self._turn(service, agreement, event, entry.standing.budget_left)
        alarm = entry.standing.alarm
        if alarm is not None and alarm != monitoring.alarm:
            burn, _ = entry.standing.burn_rates[alarm]
            self._alerts.send(
                Alert(
                    kind="burn-rate",
                    agreement=agreement.name,
                    service=service,
                    at=entry.window.ends_s,
                    summary=f"the error budget of {agreement.name} is used {burn:.3g} times as "
                    f"fast as it may be ({alarm} burn)",
                    evidence=entry.window.evidence,
                    budget_left=entry.standing.budget_left,
                )
            )
        monitoring.alarm = alarm

    def _turn(self, service: str, agreement: Agreement, event: Event, budget_left: float) -> None:
        if event.turn is Turn.BREACHED:
            log.warning("%s is breached: %s", event.agreement, event.evidence)
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
        self._alerts.send(
            Alert(
                kind=_KINDS.get(event.turn, "over"),
                agreement=event.agreement,
                service=service,
                at=event.ends_s,
                summary=f"{event.metric} of {service} is {event.turn.value}",
                evidence=[event.evidence],
                budget_left=budget_left,
            )
        )

    def shortage(self, service: str, agreement: str, said: str, at_s: float) -> None:
        """More is needed than can be had, and why; "": it is so no more."""
        if self._recorder is not None:
            event = "shortage" if said else "shortage over"
            self._recorder.event(event, service, at_s=at_s, detail={"what": said})
        self._alerts.send(
            Alert(
                kind="shortage" if said else "over",
                agreement=agreement,
                service=service,
                at=at_s,
                summary=f"{service} needs more than can be had: {said}"
                if said
                else f"{service} has all that it needs again",
            )
        )

    def disagreement(self, service: str, agreement: Agreement, said: str, at_s: float) -> None:
        """Doors and the probe say different things; "": they do so no more."""
        if self._recorder is not None:
            event = "disagreement" if said else "disagreement over"
            self._recorder.event(event, service, at_s=at_s, detail={"what": said})
        self._alerts.send(
            Alert(
                kind="disagreement" if said else "over",
                agreement=agreement.name,
                service=service,
                at=at_s,
                summary=said or "doors and the probe say the same again",
            )
        )

    def probed(self, service: str, sample: ProbeSample) -> None:
        """The probe has asked."""
        if self._recorder is not None:
            self._recorder.http_probe(
                service,
                sample.address,
                at_s=sample.at,
                duration_s=sample.duration_s,
                status=sample.status,
                failure=sample.failure,
            )

    def started(self, instance: Instance, took_s: float) -> None:
        """An instance answers, so long after it was ordered."""
        if self._recorder is not None and instance.ready_at is not None:
            self._recorder.reconfigured(
                instance.service,
                at_s=instance.ready_at,
                took_s=took_s,
                detail={"what": f"instance {instance.instance_id} answers"},
            )
