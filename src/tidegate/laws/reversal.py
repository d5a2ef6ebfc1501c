"""Whether a scale-up did harm: another replica that lowered the throughput is undone.

    lowered:  after < before · (1 − margin) − z · √(s_before²/n + s_after²/n)

A replica can do harm: the store, a lock or a disk that all replicas share may be what is short, and
one more of them makes it shorter. Throughput with so many replicas just before, against throughput
after the new one has settled. It is comparable only if as much arrives as before and as much still
waits: throughput that fell because there is less to do is no harm. What did harm is not tried again
while it is remembered.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Caution:
    """When a difference counts."""

    # Of the throughput before: less than that is not worth undoing.
    margin: float = 0.05
    # Standard errors of the difference.
    z: float = 3.0
    samples: int = 5
    # Of what arrived before: how much must arrive for a fair comparison.
    comparable: float = 0.95
    settle_s: float = 4.0
    remembered_s: float = 600.0


class Verdict(NamedTuple):
    """A scale-up that did harm: from so many replicas to so many."""

    fewer: int
    more: int
    before_per_s: float
    after_per_s: float
    until: float


class _Figures(NamedTuple):
    consumed_per_s: float
    arrived_per_s: float
    waiting: float


class ReversalGuard:
    """Watches throughput over scale-ups."""

    def __init__(self, caution: Caution) -> None:
        self._caution = caution
        self._serving = -1
        self._since = -math.inf
        self._seen: deque[_Figures] = deque(maxlen=caution.samples)
        # The replicas and the figures before the scale-up that is on trial.
        self._before: tuple[int, list[_Figures]] | None = None
        self._verdict: Verdict | None = None

    def observe(
        self, at: float, serving: int, consumed_per_s: float, arrived_per_s: float, waiting: float
    ) -> Verdict | None:
        """The next period's figures; the verdict on the last scale-up in the period it falls."""
        if serving != self._serving:
            if serving < self._serving:
                self._before = None
            elif self._serving > 0 and len(self._seen) == self._caution.samples:
                self._before = (self._serving, list(self._seen))
            # Else one more came before the last could be judged: they are judged together.
            self._serving = serving
            self._since = at
            self._seen.clear()
            return None
        if at - self._since < self._caution.settle_s:
            return None
        self._seen.append(_Figures(consumed_per_s, arrived_per_s, waiting))
        if self._before is None or len(self._seen) < self._caution.samples:
            return None
        fewer, before = self._before
        self._before = None
        if not self._did_harm(before, list(self._seen)):
            return None
        self._verdict = Verdict(
            fewer,
            serving,
            _mean(before, 0),
            _mean(self._seen, 0),
            at + self._caution.remembered_s,
        )
        return self._verdict

    def ceiling(self, at: float) -> Verdict | None:
        """While a verdict is remembered: no more than its `fewer` replicas."""
        if self._verdict is not None and at >= self._verdict.until:
            self._verdict = None
        return self._verdict

    def _did_harm(self, before: list[_Figures], after: list[_Figures]) -> bool:
        if _mean(after, 1) < self._caution.comparable * _mean(before, 1):
            return False
        # Less than half waits than before: it does its work, and there is less to do.
        if _mean(after, 2) < 0.5 * _mean(before, 2) or _mean(after, 2) < 1.0:
            return False
        error = math.sqrt(_variance(before) / len(before) + _variance(after) / len(after))
        bar = _mean(before, 0) * (1.0 - self._caution.margin) - self._caution.z * error
        return _mean(after, 0) < bar


def _mean(figures: list[_Figures] | deque[_Figures], which: int) -> float:
    return math.fsum(one[which] for one in figures) / len(figures)


def _variance(figures: list[_Figures]) -> float:
    mean = _mean(figures, 0)
    spread = math.fsum((one.consumed_per_s - mean) ** 2 for one in figures)
    return spread / max(len(figures) - 1, 1)
