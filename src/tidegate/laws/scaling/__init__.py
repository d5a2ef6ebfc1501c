"""The reversal guard: detects a scale-up that lowered the throughput, so that it is undone.

    lowered:  after < before · (1 − margin) − z · √(s_before²/n + s_after²/n)

A further replica can reduce throughput if a shared resource, such as the store, a lock or a disk,
is the bottleneck. The guard compares the throughput just before the scale-up with the throughput
after the new replica has settled. The two are comparable only if as much arrives as before and
messages still wait: throughput that fell because there is less to do is no harm. While a harmful
scale-up is remembered, the autoscaler does not try it again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Caution:
    """The settings of the reversal guard."""

    # Fraction of the throughput before; a smaller loss is not worth undoing.
    margin: float = 0.05
    # Standard errors of the difference that the loss must exceed in addition.
    z: float = 3.0
    # Samples compared before and after the scale-up.
    samples: int = 5
    # Arrivals after the scale-up must be at least this fraction of those before it.
    comparable: float = 0.95
    # Seconds after a change before samples count, and how long a harmful scale-up is remembered.
    settle_s: float = 4.0
    remembered_s: float = 600.0


class Verdict(NamedTuple):
    """A scale-up from `fewer` to `more` replicas that lowered the throughput."""

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
    """A `ReversalGuard` compares throughput before and after each scale-up."""

    def __init__(self, caution: Caution) -> None:
        self._caution = caution
        self._serving = -1
        self._since = -math.inf
        self._seen: deque[_Figures] = deque(maxlen=caution.samples)
        # The number of replicas and the samples before the scale-up that is being judged.
        self._before: tuple[int, list[_Figures]] | None = None
        self._verdict: Verdict | None = None

    def observe(
        self, at: float, serving: int, consumed_per_s: float, arrived_per_s: float, waiting: float
    ) -> Verdict | None:
        """Add the samples of the next period.

        Returns the harmful scale-up in the period in which it is detected, else `None`.
        """
        if serving != self._serving:
            if serving < self._serving:
                self._before = None
            elif self._serving > 0 and len(self._seen) == self._caution.samples:
                self._before = (self._serving, list(self._seen))
            # Otherwise another replica came before the last one could be judged: both are judged
            # together.
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
        """Return the remembered harmful scale-up, or `None`.

        While it is remembered, at most its `fewer` replicas should run.
        """
        if self._verdict is not None and at >= self._verdict.until:
            self._verdict = None
        return self._verdict

    def _did_harm(self, before: list[_Figures], after: list[_Figures]) -> bool:
        if _mean(after, 1) < self._caution.comparable * _mean(before, 1):
            return False
        # Fewer than half as many messages wait: the replica works, and there is less to do.
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
