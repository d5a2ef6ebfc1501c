"""How the requests in hand move: where they will be, and whether they come by themselves.

    growth   the mean of the last five steps but the largest, if four went up; else 0
    spread   1.05 · median |step − median step|         the deviation of N, whatever its trend
    open     spread² ≥ 0.25 · N

A step up is no growth: it is there, and counts as such.

Requests that come by themselves (an open load) make N vary by about its own root, so that spread²
is about N. Clients who wait for their answers are as many as they are: N hardly moves.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median

MEAN_OF = 3
STEPS = 5
STEPS_UP = 4
SPREAD_SAMPLES = 16
SPREAD_SAMPLES_MIN = 8
# The median of |a − b| of two draws of a normal distribution is 0.954 deviations.
_DEVIATIONS = 1.05
OPEN_DISPERSION = 0.25
# Of fewer nothing can be said.
IN_HAND_MIN = 2.0


class LoadTrend:
    """The last samples of what is in hand."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SPREAD_SAMPLES)

    def see(self, at: float, in_hand: float) -> None:
        """One sample; those that do not come after the last are left out."""
        if not self._samples or at > self._samples[-1][0]:
            self._samples.append((at, in_hand))

    @property
    def in_hand(self) -> float:
        """Now; of an open load the mean of the last few, since each may have been a moment."""
        if not self._samples:
            return 0.0
        last = [in_hand for _, in_hand in self._samples][-MEAN_OF if self.is_open else -1 :]
        return sum(last) / len(last)

    @property
    def growth_per_s(self) -> float:
        """How fast it grows, when that is neither chance nor a single step."""
        last = list(self._samples)[-STEPS - 1 :]
        steps = [later - earlier for (_, earlier), (_, later) in pairwise(last)]
        if len(steps) < STEPS or sum(step > 0.0 for step in steps) < STEPS_UP:
            return 0.0
        # A crowd that comes at once among them is there, and comes no second time.
        usual = sum(sorted(steps)[:-1]) / (STEPS - 1)
        return max(usual * STEPS / (last[-1][0] - last[0][0]), 0.0)

    @property
    def is_open(self) -> bool | None:
        """Whether requests come by themselves; None as long as nobody can tell."""
        if len(self._samples) < SPREAD_SAMPLES_MIN:
            return None
        mean = sum(in_hand for _, in_hand in self._samples) / len(self._samples)
        if mean < IN_HAND_MIN:
            return None
        steps = [later - earlier for (_, earlier), (_, later) in pairwise(self._samples)]
        usual = median(steps)
        spread = _DEVIATIONS * median(abs(step - usual) for step in steps)
        return spread * spread >= OPEN_DISPERSION * mean

    def ahead(self, lead_s: float) -> float:
        """What will be in hand after so long; at most twice what it is."""
        now = self.in_hand
        return now + min(self.growth_per_s * lead_s, now)
