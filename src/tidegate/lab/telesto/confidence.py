"""The precision of a mean: Student's 95 % confidence interval, without scipy.

half width = t(0.975, n − 1) · s / √n

where s is the standard deviation of n repeats.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

# Telesto repeated a measurement until the half width was below this fraction of the mean (§5.5).
WANTED = 0.05

# t(0.975) for 1 … 30 degrees of freedom; beyond, the expansion below is exact to 3 digits.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z_975 = 1.959964


def student_t_975(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's distribution."""
    if degrees < 1:
        return math.inf
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


class Estimate(msgspec.Struct, frozen=True):
    """A mean over repeats, with its interval."""

    mean: float
    # Half the width of the 95 % interval; `None` for a single repeat.
    half_width: float | None
    repeats: int

    @property
    def relative(self) -> float | None:
        """The half width as a fraction of the mean."""
        if self.half_width is None or not self.mean:
            return None
        return self.half_width / self.mean

    @property
    def sure(self) -> bool:
        """Whether the interval is as narrow as Telesto required."""
        return self.relative is not None and self.relative < WANTED


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent repeats, with its interval."""
    count = len(values)
    if count < 2:
        return Estimate(values[0] if values else math.nan, None, count)
    spread = statistics.stdev(values) / math.sqrt(count)
    return Estimate(statistics.fmean(values), student_t_975(count - 1) * spread, count)
