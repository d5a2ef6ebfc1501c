"""Agreements as status lights, from what the leader has stored about them."""

from __future__ import annotations

from functools import lru_cache

from tidegate.agreement.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.agreement.evaluation import SEVERITY, Verdict
from tidegate.agreement.kept_standing import KeptStanding
from tidegate.console.model import AgreementState, Light, PromiseState
from tidegate.core.quantities import spoken_duration

_LIGHTS = {
    Verdict.MET: Light.MET,
    Verdict.WARNED: Light.WARNED,
    Verdict.BREACHED: Light.BREACHED,
    Verdict.NO_DATA: Light.UNKNOWN,
}


# The cache holds one entry per service: agreements are read each second and hardly ever change.
@lru_cache(maxsize=2048)
def agreement_in(text: str | None, name: str) -> Agreement | None:
    """Parse an agreement; return None if there is none or it is invalid."""
    if not text:
        return None
    try:
        return parse_agreement(text, name)
    except AgreementInvalid:
        return None


def not_judged(agreement: Agreement | None, name: str, why: str) -> AgreementState:
    """Return the state of an agreement that has no verdict."""
    return AgreementState(
        name=name if agreement is None else agreement.name,
        light=Light.UNKNOWN,
        promises=[] if agreement is None else _unmeasured(agreement),
        doing=why,
    )


def state_of(kept: KeptStanding, agreement: Agreement | None, now: float) -> AgreementState:
    """Return the state of an agreement; its limits too if the document is given."""
    standing = kept.standing
    silent = kept.is_silent(now)
    lines = {} if agreement is None else {one.name: one for one in agreement.metrics}
    worst_first = sorted(kept.promises, key=lambda one: -SEVERITY.index(one.verdict))
    promises = []
    for one in worst_first:
        promise = lines.get(one.metric)
        promises.append(
            PromiseState(
                metric=one.metric,
                light=Light.UNKNOWN if silent else _LIGHTS[one.verdict],
                value=one.value,
                warning=None if promise is None else promise.warning,
                breach=None if promise is None else promise.breach,
                unit="" if promise is None else promise.unit.value,
                evidence=one.evidence,
            )
        )
    return AgreementState(
        name=kept.agreement,
        light=Light.UNKNOWN if silent else _LIGHTS[kept.verdict],
        budget_left=standing.budget_left,
        burn_rate=standing.burn_hour,
        alarm=standing.alarm,
        met=standing.last_hour.met,
        warned=standing.last_hour.warned,
        breached=standing.last_hour.breached,
        promises=promises,
        doing=f"nobody has judged it for {spoken_duration(now - kept.at)}"
        if silent
        else kept.doing,
        judged_at=kept.at,
    )


def _unmeasured(agreement: Agreement) -> list[PromiseState]:
    return [
        PromiseState(
            metric=one.name,
            light=Light.UNKNOWN,
            value=None,
            warning=one.warning,
            breach=one.breach,
            unit=one.unit.value,
            evidence="",
        )
        for one in agreement.metrics
    ]
