"""The promise of the experiments, and what clients saw of it, window by window.

Strategy: response time as users perceive it (TAPAS §4), so it is judged from what clients measured
and not from what any of our parts believes, by the same rule that the live loops use: the promised
percentile of the requests that ended in a window.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.agreement.document import Agreement, parse_agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.windows import Sample, judged
from tidegate.lab.tapas.clients import Visit, has_failed

WINDOW_S = 5.0
BREACH_S = 1.0
WARNING_S = 0.8


def agreement_text(replicas_min: int, replicas_max: int) -> str:
    """As a user would write it; it warns at 80 % of the breaching point."""
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
    p95_s: float
    verdict: str

    @property
    def is_breached(self) -> bool:
        return self.verdict == Verdict.BREACHED

    @property
    def is_warned(self) -> bool:
        return self.verdict in (Verdict.WARNED, Verdict.BREACHED)


def windows_of(visit: Visit) -> list[Window]:
    """Whole windows, one after the other, from when clients began; failures are counted apart."""
    by_window: dict[int, list[tuple[float, int]]] = {}
    for ended_at, took_s, status in visit.requests:
        if not has_failed(status):
            number = int((ended_at - visit.began_at) / WINDOW_S)
            by_window.setdefault(number, []).append((took_s, 1))
    found = []
    for number, times in sorted(by_window.items()):
        begins_s = number * WINDOW_S
        if begins_s + WINDOW_S > visit.ended_at - visit.began_at:
            break
        window = judged(
            AGREEMENT, begins_s, [Sample(at_s=begins_s + WINDOW_S, times={"response": times})]
        )
        (finding,) = window.findings
        found.append(Window(begins_s, finding.value or 0.0, str(window.verdict)))
    return found


def breached_s(windows: Sequence[Window]) -> float:
    """Seconds in breach after the first warning; a breach that nobody was warned of counts too."""
    return WINDOW_S * sum(1 for one in windows if one.is_breached)


def warned_s(windows: Sequence[Window]) -> float:
    """Seconds in warning, or worse."""
    return WINDOW_S * sum(1 for one in windows if one.is_warned)
