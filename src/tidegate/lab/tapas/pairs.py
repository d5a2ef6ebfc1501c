"""Confidence bounds of a ratio from pairs of measurements.

    r_i          the ratio of pair i, ours / theirs
    bound        exp(mean(log r) ± t(0.95, n − 1) · s / √n), s the standard deviation of log r

The two measurements of a pair follow each other, and each side is first in half of the pairs. Other
load on the machine then affects both sides. The bounds are one-sided: by chance, the true ratio is
beyond a bound in one of twenty cases.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy import stats

CONFIDENCE = 0.95


def mean_ratio(ratios: Sequence[float]) -> float:
    """Return the geometric mean of the ratios, for which 2 and 1/2 give 1."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def ratio_at_most(ratios: Sequence[float]) -> float:
    """Return the upper bound of the mean ratio; infinite for fewer than two pairs."""
    return mean_ratio(ratios) * math.exp(_reach(ratios))


def ratio_at_least(ratios: Sequence[float]) -> float:
    """Return the lower bound of the mean ratio; 0 for fewer than two pairs."""
    return mean_ratio(ratios) * math.exp(-_reach(ratios))


def _reach(ratios: Sequence[float]) -> float:
    count = len(ratios)
    if count < 2:
        return math.inf
    spread = statistics.stdev(math.log(ratio) for ratio in ratios) / math.sqrt(count)
    return float(stats.t.ppf(CONFIDENCE, count - 1)) * spread
