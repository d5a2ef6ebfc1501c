"""The promise of the experiments, and what clients saw of it, window by window.

Strategy: response time as users perceive it (TAPAS §4), so it is judged from what clients measured
and not from what any of our parts believes, by the same rule that the live loops use: the promised
percentile of the requests that ended in a window. One that failed has taken longer than any
promise, and so has one that waits at the end of the window for longer than was promised. A window
in which nothing ended though clients were there is breached: they got nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tidegate.agreement.document import Agreement, parse_agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.windows import Sample, judged
from tidegate.lab.tapas.clients import Visit, has_failed

WINDOW_S = 5.0
BREACH_S = 1.0
# As near to the breach as one instance's p95 with ten clients, 0.74 to 0.81 s, is no warning: the
# issue asks for 80 % at least.
WARNING_S = 0.9


def agreement_text(replicas_min: int, replicas_max: int) -> str:
    """As a user would write it; it warns at 90 % of the breaching point."""
    return f"""\
name = "shop"
http = "shop"
window = "{WINDOW_S:g}s"
replicas = {{ min = {replicas_min}, max = {replicas_max} }}

[metrics.response_p95]
breach = "{BREACH_S:g}s"
warning = "{WARNING_S * 1000:g}ms"
"""


AGREEMENT: Agreement = parse_agreement(agreement_text(1, 4), "the experiments' agreement")


class Window(msgspec.Struct, frozen=True):
    """One window, by what clients saw."""

    # Since they began.
    begins_s: float
    # Of those that ended in it; without an end where more failed than may be late.
    p95_s: float
    verdict: str

    @property
    def is_breached(self) -> bool:
        return self.verdict == Verdict.BREACHED

    @property
    def is_warned(self) -> bool:
        return self.verdict in (Verdict.WARNED, Verdict.BREACHED)


class _Seen(msgspec.Struct):
    """What clients saw of one window."""

    answered_s: list[float] = []
    failed: int = 0
    # Of those that were under way when it ended: for how long by then.
    waited_s: list[float] = []

    def judged(self, begins_s: float) -> Window | None:
        """None: nothing was seen."""
        ended = Sample(
            at_s=begins_s + WINDOW_S,
            unanswered=float(self.failed),
            times={"response": [(took_s, 1) for took_s in self.answered_s]},
        )
        whole = replace(ended, in_hand=[(waited_s, 1) for waited_s in self.waited_s])
        verdict = judged(AGREEMENT, begins_s, [whole]).verdict
        if verdict is Verdict.NO_DATA:
            return None
        # Who waits still has a time, too: only it is not over.
        (finding,) = judged(AGREEMENT, begins_s, [ended]).findings
        return Window(begins_s, math.inf if finding.value is None else finding.value, str(verdict))


def windows_of(visit: Visit) -> list[Window]:
    """Whole windows, one after the other, from when clients began, as long as some were there."""
    found = []
    for number, one in enumerate(_seen(visit)):
        begins_s = number * WINDOW_S
        window = one.judged(begins_s)
        if window is None and _some_present(visit, begins_s, begins_s + WINDOW_S):
            window = Window(begins_s, math.inf, str(Verdict.BREACHED))
        if window is not None:
            found.append(window)
    return found


def _seen(visit: Visit) -> list[_Seen]:
    """Of each whole window."""
    seen = [_Seen() for _ in range(int((visit.ended_at - visit.began_at) / WINDOW_S))]
    for ended_at, took_s, status in visit.requests:
        ended_s = ended_at - visit.began_at
        asked_s = max(ended_s - took_s, 0.0)
        last = int(ended_s / WINDOW_S)
        for number in range(int(asked_s / WINDOW_S), min(last, len(seen))):
            seen[number].waited_s.append((number + 1) * WINDOW_S - asked_s)
        if last >= len(seen):
            continue
        if has_failed(status):
            seen[last].failed += 1
        else:
            seen[last].answered_s.append(took_s)
    return seen


def _some_present(visit: Visit, begins_s: float, ends_s: float) -> bool:
    return any(
        came - visit.began_at < ends_s and went - visit.began_at > begins_s
        for came, went in visit.present
    )


def breached_s(windows: Sequence[Window]) -> float:
    """Seconds in breach after the first warning; a breach that nobody was warned of counts too."""
    return WINDOW_S * sum(1 for one in windows if one.is_breached)


def warned_s(windows: Sequence[Window]) -> float:
    """Seconds in warning, or worse."""
    return WINDOW_S * sum(1 for one in windows if one.is_warned)
