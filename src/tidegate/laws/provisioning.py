"""Inputs of NPP (`warm_machines`) learned from history: boot time and growth.

A mean boot time is too short half of the time, so the 95th percentile is used as soon as enough
boots are known.

Growth is the slope of the least-squares line through `sustained_s` seconds of rates. A staircase
(100 msg/s each 25 s) counts as the ramp that it is, and a single spike counts for little. A slope
that noise alone could cause counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.laws.warm_pool import ROUNDING, warm_machines

__all__ = ["BootTime", "boot_time_s", "sla_delta", "warm_machines"]

# With fewer than 20 boots the 95th percentile is the longest boot.
BOOTS_FOR_PERCENTILE = 20
# Standard errors that a slope must exceed. The largest of a day's windows is sought, so the limit
# is higher than for a single window.
SIGNIFICANT = 5.0
STEPS_MIN = 5


class BootTime(NamedTuple):
    """The boot time to plan with, how it was computed, and from how many boots."""

    boot_s: float
    kind: Literal["mean", "p95"]
    n: int


def boot_time_s(boots_s: Sequence[float]) -> BootTime:
    """Return the boot time to plan with: the mean of a few boots, the 95th percentile of many.

    Raises `ValueError` if no boot is known.
    """
    known = [boot for boot in boots_s if math.isfinite(boot) and boot >= 0.0]
    if not known:
        raise ValueError("no boot was recorded: boot a machine, or say how long it takes")
    if len(known) < BOOTS_FOR_PERCENTILE:
        return BootTime(math.fsum(known) / len(known), "mean", len(known))
    return BootTime(float(np.percentile(known, 95.0)), "p95", len(known))


def sla_delta(rate_per_s: NDArray[np.float64], step_s: float, sustained_s: float = 60.0) -> float:
    """Return the largest sustained growth (msg/s²) of evenly spaced rates.

    Returns 0 if the rate never grows, and NaN if no stretch of `sustained_s` was recorded
    without a gap.
    """
    steps = max(round(sustained_s / step_s), STEPS_MIN)
    rates = np.asarray(rate_per_s, dtype=np.float64)
    if len(rates) < steps:
        return math.nan
    known = np.isfinite(rates)
    if not known.any():
        return math.nan
    ones = np.ones(steps)
    whole = np.convolve(~known, ones, mode="valid") < 0.5
    if not whole.any():
        return math.nan
    # Subtract the mean, so that squares of large rates do not lose the residuals to rounding.
    y = np.where(known, rates - rates[known].mean(), 0.0)
    t = (np.arange(steps) - (steps - 1) / 2.0) * step_s
    spread = float(t @ t)
    slope = np.correlate(y, t, mode="valid") / spread
    sums = np.convolve(y, ones, mode="valid")
    squares = np.convolve(y * y, ones, mode="valid") - sums * sums / steps
    left_over = np.maximum(squares - slope * slope * spread, 0.0)
    error = np.sqrt(left_over / (steps - 2) / spread)
    # Without any noise only rounding errors remain, and they are no growth.
    grows = (slope > SIGNIFICANT * error) & (slope * sustained_s > ROUNDING * np.abs(y).max())
    return float(np.max(slope, where=whole & grows, initial=0.0))
