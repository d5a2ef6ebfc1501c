"""The trend of the requests in hand, and whether they arrive independently of earlier answers.

    growth   the mean of the last five steps but the largest, if four went up; else 0
    spread   1.05 · median |step − median step|         the deviation of N, with any trend
    open     spread² ≥ 0.25 · N

A single step up is no growth: its requests have arrived already and are counted in N.

Requests that arrive independently (an open load) make N vary by about √N, so that spread² is about
N. With clients that wait for their answers (a closed load), the number of clients is fixed and N
hardly varies.
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
# Below this mean the variation shows nothing.
IN_HAND_MIN = 2.0


class LoadTrend:
    """A `LoadTrend` keeps the last samples of the requests in hand."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SPREAD_SAMPLES)

    def see(self, at: float, in_hand: float) -> None:
        """Add a sample. Ignores samples that are not newer than the last one."""
        if not self._samples or at > self._samples[-1][0]:
            self._samples.append((at, in_hand))

    @property
    def in_hand(self) -> float:
        """The current requests in hand.

        For an open load the mean of the last few, as each varies by chance.
        """
        if not self._samples:
            return 0.0
        last = [in_hand for _, in_hand in self._samples][-MEAN_OF if self.is_open else -1 :]
        return sum(last) / len(last)

    @property
    def growth_per_s(self) -> float:
        """The growth per second, or 0 if it may be chance or a single step."""
        last = list(self._samples)[-STEPS - 1 :]
        steps = [later - earlier for (_, earlier), (_, later) in pairwise(last)]
        if len(steps) < STEPS or sum(step > 0.0 for step in steps) < STEPS_UP:
            return 0.0
        # A single burst among the steps is already counted and does not recur, so the largest step
        # is left out.
        usual = sum(sorted(steps)[:-1]) / (STEPS - 1)
        return max(usual * STEPS / (last[-1][0] - last[0][0]), 0.0)

    @property
    def is_open(self) -> bool | None:
        """Whether requests arrive independently of earlier answers. `None` means not known yet."""
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
        """Return the requests in hand after `lead_s` seconds; at most twice the current ones."""
        now = self.in_hand
        return now + min(self.growth_per_s * lead_s, now)
