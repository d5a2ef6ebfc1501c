"""Admission: rejects requests when no instance can be added and others would be too late.

    limit   requests that the ready instances answer before the breaching point (Little's law),
            times a trim
    begins  when clearly more than that is in hand, or more and responses are breached already

To reject a request certainly breaks a promise, while the limit is computed and only exact to about
a tenth. Near the limit only measured breaches count, so requests that are just in time are not
rejected.

Excess requests are rejected at once. The admitted ones are answered in time, and the load of a
failed instance does not bring down the next one. The trim goes down with each window in which
responses are still breached, and up while they are not even warned of. Only answered requests
change the trim: rejected requests break promises too, and to reject more would make that worse.
Rejected requests are not in hand, so the limit is lifted when none was rejected for some seconds
and the agreement is met.
"""

from __future__ import annotations

import math

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict, worst
from tidegate.control.performance import Performance
from tidegate.control.promised_responses import admissible
from tidegate.control.service_crew import Crew
from tidegate.control.service_seen import Seen
from tidegate.core.steering import Admit

# In limits: above this the requests in hand are certainly too many.
_CLEARLY = 1.08
# The limit is lifted when less than this part of it was in hand for this time.
_LIFT_BELOW = 0.7
_LIFT_S = 5.0
# Limits that differ by less are not changed.
_STEP = 0.05
_TRIM = 0.85
_TRIM_MIN, _TRIM_MAX = 0.3, 3.0
# Factor per sample.
_TRIM_UP = 1.02


class ServiceAdmission:
    """Decides the admission limit of one service."""

    def __init__(self) -> None:
        self._calm_since: float | None = None
        self._trim = 1.0
        self._trimmed_at = -math.inf

    def decide(
        self, crew: Crew, seen: Seen, agreement: Agreement, performance: Performance, short: str
    ) -> int | None:
        """Return the limit from now on; None means unlimited.

        `short` says why there are too few instances; empty if there are enough.
        """
        reading, now = seen.reading, seen.admission
        assert reading is not None
        self._trim_bound(seen, agreement.window_s)
        bound = self._bound(crew, agreement, performance)
        if now is None:
            if not short or bound is None or not _is_too_much(reading.in_hand, bound, seen):
                return None
            self._calm_since = None
            crew.do(Admit(bound))
            crew.because(
                f"{len(crew.ready)} instance(s) answer no more than {bound} requests before the "
                "breaching point: others are refused at once, so that these are kept."
            )
            return bound
        is_well = seen.window is not None and seen.window.verdict is Verdict.MET
        is_calm = not reading.refused_per_s and (is_well or reading.in_hand < _LIFT_BELOW * now)
        if not is_calm:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = seen.at
        elif seen.at - self._calm_since >= _LIFT_S:
            self._calm_since = None
            crew.do(Admit(None))
            crew.rule = crew.rule or "there are enough again"
            crew.because("All that come can be answered in time again: nobody is refused.")
            return None
        if bound is not None and abs(now - bound) > _STEP * bound:
            crew.do(Admit(bound))
            crew.because(f"{bound} requests at a time are answered before the breaching point now.")
            return bound
        return now

    def _bound(self, crew: Crew, agreement: Agreement, performance: Performance) -> int | None:
        known = [performance.capacity_per_s(one.instance_id) for one in crew.ready]
        capacities = [one for one in known if one is not None]
        if not capacities or len(capacities) < len(known):
            return None
        if not (total := sum(capacities)):
            return None
        found = admissible(agreement, performance, total)
        return None if found is None else max(int(found * self._trim), 1)

    def _trim_bound(self, seen: Seen, window_s: float) -> None:
        window = seen.window
        if seen.admission is None or window is None:
            self._trim = 1.0
            return
        says = worst(
            one.of_answers.verdict for one in window.findings if one.metric.stem == "response"
        )
        if says is Verdict.MET:
            self._trim = min(self._trim * _TRIM_UP, _TRIM_MAX)
        elif says is not Verdict.BREACHED:
            return
        elif seen.is_pressed(window_s) and seen.at - self._trimmed_at >= window_s:
            self._trimmed_at = seen.at
            self._trim = max(self._trim * _TRIM, _TRIM_MIN)


def _is_too_much(in_hand: int, bound: int, seen: Seen) -> bool:
    return in_hand >= (bound if seen.is_breached_for_certain else _CLEARLY * bound)
