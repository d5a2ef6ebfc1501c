"""Decisions for people: measurements, rule, actions, and the effect that followed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tidegate.console.model import DecisionView, Point
from tidegate.core.harmless import harmless
from tidegate.core.quantities import format_duration
from tidegate.core.rule_words import in_words
from tidegate.core.steering import PERSON, Decision
from tidegate.core.steering_words import sentence

_BEFORE_S = 10.0
# The effect is measured from `_AFTER_S` to `_UNTIL_S` seconds after the decision.
_AFTER_S = 15.0
_UNTIL_S = 30.0
_HEADLINE_MAX = 160


def decision_view(decision: Decision, points: Sequence[Point] | None, now: float) -> DecisionView:
    actions = [harmless(sentence(one)) for one in decision.actions]
    # For an override, the rule contains only the user.
    said = decision.reason.rstrip(".") if decision.law == PERSON else ""
    headline = ", ".join(actions) or said or in_words(decision.rule)
    return DecisionView(
        key=key_of(decision),
        at=decision.at,
        loop=decision.loop,
        law=decision.law,
        rule=harmless(in_words(decision.rule)),
        headline=harmless(headline)[:_HEADLINE_MAX],
        measured=list(decision.inputs.items()),
        outputs=list(decision.outputs.items()),
        actions=actions,
        reason=harmless(decision.reason),
        otherwise=harmless(decision.otherwise),
        carried_out=decision.carried_out,
        outcome=harmless(decision.outcome),
        effect=None if points is None else effect_of(decision.at, points, now),
        by=decision.by if decision.law == PERSON else "",
    )


def key_of(decision: Decision) -> str:
    """Return a key that is the same for the same decision, wherever it was read."""
    told = f"{decision.service}\n{decision.at!r}\n{decision.law}\n{decision.rule}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def effect_of(at: float, points: Sequence[Point], now: float) -> str | None:
    """Compare the service before a decision and 15 to 30 seconds after it.

    Returns None if it is too early, and "" if there is no data for one of the two times.
    """
    before = _between(points, at - _BEFORE_S, at)
    if not before:
        return ""
    if now < at + _UNTIL_S:
        return None
    after = _between(points, at + _AFTER_S, at + _UNTIL_S)
    if not after:
        return ""
    pairs = [
        ("waiting", f"{_mean_waiting(before):,.0f}", f"{_mean_waiting(after):,.0f}"),
        ("done", f"{_mean_out(before):,.1f}/s", f"{_mean_out(after):,.1f}/s"),
        ("p95 of waits", _p95(before), _p95(after)),
        ("replicas", _replicas(before), _replicas(after)),
    ]
    told = [
        f"{name} {old} → {new}" if old != new else f"{name} {new}, as before"
        for name, old, new in pairs
        if old and new
    ]
    return "; ".join(told)


def _between(points: Sequence[Point], since: float, until: float) -> list[Point]:
    # Test each point: after a change of the system clock they are out of order.
    return [one for one in points if since <= one.at < until]


def _mean_waiting(points: Sequence[Point]) -> float:
    return sum(one.waiting for one in points) / len(points)


def _mean_out(points: Sequence[Point]) -> float:
    return sum(one.out_per_s for one in points) / len(points)


def _p95(points: Sequence[Point]) -> str:
    """Return the worst second's p95, since a mean of percentiles has no meaning."""
    known = [one.wait_p95_s for one in points if one.wait_p95_s is not None]
    return format_duration(float(f"{max(known):.3g}")) if known else ""


def _replicas(points: Sequence[Point]) -> str:
    return str(len(points[-1].replicas)) if points[-1].replicas else ""
