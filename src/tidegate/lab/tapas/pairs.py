"""How much worse may one way be than another, at most, by pairs that were measured in turn.

    log r_i      of pair i, r_i = ours / theirs
    bound        exp(mean(log r) ± t(0.95, n − 1) · s / √n)

Strategy: both of a pair run right after each other and each goes first as often as second, so what
the machine does meanwhile hits both. The bound is one-sided: chance alone puts the truth beyond it
once in twenty times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy import stats

CONFIDENCE = 0.95


def mean_ratio(ratios: Sequence[float]) -> float:
    """The geometric mean: twice as fast and half as fast come to 1."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def ratio_at_most(ratios: Sequence[float]) -> float:
    """The upper bound of the mean ratio."""
    return mean_ratio(ratios) * math.exp(_reach(ratios))


def ratio_at_least(ratios: Sequence[float]) -> float:
    """The lower bound of the mean ratio."""
    return mean_ratio(ratios) * math.exp(-_reach(ratios))


def _reach(ratios: Sequence[float]) -> float:
    count = len(ratios)
    if count < 2:
        return math.inf
    spread = statistics.stdev(math.log(ratio) for ratio in ratios) / math.sqrt(count)
    return float(stats.t.ppf(CONFIDENCE, count - 1)) * spread
