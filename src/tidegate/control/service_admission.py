"""Admission: when nothing is left to take, no more is let in than is answered in time.

    bound   what the ready instances answer before the breaching point (Little), times a trim
    begins  clearly more than that is in hand, or more, and answers are breached already

To refuse breaks a promise for certain; that too much is in hand is a sum, and right to a tenth or
so. As near as that only what was seen counts: who is answered just in time is left alone.

Others are refused at once, so that those who are let in are kept, and no instance is toppled by
what another one left. The trim goes down with each window in which responses are breached all the
same, and up while they are not even warned of. Only those that were answered have a say in it: who
is refused breaks promises, too, and to refuse more would break them all the more. Who is refused is
not in hand: the bound is lifted when nobody was for some seconds, and all is well.
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

# Of the bound: what is more than it beyond doubt.
_CLEARLY = 1.08
# A bound is lifted when so much less than it is in hand, for so long.
_LIFT_BELOW = 0.7
_LIFT_S = 5.0
# Bounds that differ by less are the same.
_STEP = 0.05
_TRIM = 0.85
_TRIM_MIN, _TRIM_MAX = 0.3, 3.0
# A reading.
_TRIM_UP = 1.02


class ServiceAdmission:
    """Decides what one service lets in."""

    def __init__(self) -> None:
        self._calm_since: float | None = None
        self._trim = 1.0
        self._trimmed_at = -math.inf

    def decide(
        self, crew: Crew, seen: Seen, agreement: Agreement, performance: Performance, short: str
    ) -> int | None:
        """The bound from now on; `short` is why there are too few instances, "" if there are."""
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
