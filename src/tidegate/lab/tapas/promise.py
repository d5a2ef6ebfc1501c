"""The agreement of the experiments, judged window by window from the clients' measurements.

The agreement is on the response time as users perceive it (TAPAS §4). It is therefore judged from
the clients' measurements and not from Tidegate's own. The rule is that of the live control loops:
the agreed percentile of the requests that ended in a window.

A failed request counts as longer than any limit. So does a request that at the end of the window
has waited for longer than the limit. A window is breached if no request ended in it although
clients were present.
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
# The issue asks for a warning at 80 % of the breach or above. One instance with ten clients has a
# p95 of 0.74 to 0.81 s, which must not be a warning.
WARNING_S = 0.9


def agreement_text(replicas_min: int, replicas_max: int) -> str:
    """Return the agreement as TOML; it warns at 90 % of the breaching point."""
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
    """One window with its percentile and verdict from the clients' measurements."""

    # Seconds since the clients began.
    begins_s: float
    # The percentile of the requests that ended in the window; infinite if too many failed.
    p95_s: float
    verdict: str

    @property
    def is_breached(self) -> bool:
        return self.verdict == Verdict.BREACHED

    @property
    def is_warned(self) -> bool:
        return self.verdict in (Verdict.WARNED, Verdict.BREACHED)


class _Seen(msgspec.Struct):
    """The requests of one window."""

    answered_s: list[float] = []
    failed: int = 0
    # The waiting times of requests that were in progress at the end of the window.
    waited_s: list[float] = []

    def judged(self, begins_s: float) -> Window | None:
        """Return the judged window, or None if it has no requests."""
        ended = Sample(
            at_s=begins_s + WINDOW_S,
            unanswered=float(self.failed),
            times={"response": [(took_s, 1) for took_s in self.answered_s]},
        )
        whole = replace(ended, in_hand=[(waited_s, 1) for waited_s in self.waited_s])
        verdict = judged(AGREEMENT, begins_s, [whole]).verdict
        if verdict is Verdict.NO_DATA:
            return None
        # The percentile is of ended requests only: the times of waiting ones are not known yet.
        (finding,) = judged(AGREEMENT, begins_s, [ended]).findings
        return Window(begins_s, math.inf if finding.value is None else finding.value, str(verdict))


def windows_of(visit: Visit) -> list[Window]:
    """Return the consecutive whole windows in which clients were present."""
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
    """Return the requests of each whole window."""
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
    """Return the seconds of breached windows, also of those without an earlier warning."""
    return WINDOW_S * sum(1 for one in windows if one.is_breached)


def warned_s(windows: Sequence[Window]) -> float:
    """Return the seconds of windows with a warning or a breach."""
    return WINDOW_S * sum(1 for one in windows if one.is_warned)
