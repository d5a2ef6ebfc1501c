"""Fit of the Universal Scalability Law: throughput as a function of the number of clients.

    X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))     Universal Scalability Law

λ is the throughput of one client. σ is contention: clients queue for a shared resource. κ is
coherency: the cost that clients cause each other, so that throughput falls behind the peak.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeWarning, curve_fit

from tidegate.core.term import Term
from tidegate.laws.universal_scalability import scaled

# Three unknowns, and one point more to check the fit.
POINTS_MIN = 4

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """The fitted law; `r2` is the part of the points' variance that it explains."""

    rate_per_s: float
    contention: float
    coherency: float
    r2: float

    def throughput_per_s(self, clients: Term) -> Term:
        return scaled(clients, self.rate_per_s, self.contention, self.coherency)

    @property
    def clients_at_peak(self) -> float:
        """The number of clients at the peak; infinite if the curve never falls."""
        if self.coherency <= 0.0:
            return math.inf
        return math.sqrt(max(1.0 - self.contention, 0.0) / self.coherency)


def fit_curve(
    clients: NDArray[np.float64],
    throughput_per_s: NDArray[np.float64],
    seconds: NDArray[np.float64],
) -> Curve | None:
    """Return the curve through measured points, weighted by their duration, or `None`."""
    highest = float(throughput_per_s.max(initial=0.0))
    if len(np.unique(clients)) < POINTS_MIN or highest <= 0.0:
        return None
    share = throughput_per_s / highest
    slope = float(np.max(share / clients))
    try:
        with warnings.catch_warnings():
            # The covariance is not used, and a fit at a bound has none.
            warnings.simplefilter("ignore", OptimizeWarning)
            fitted, _ = curve_fit(
                scaled,
                clients,
                share,
                p0=(slope, 0.05, 0.001),
                sigma=1.0 / np.sqrt(seconds),
                bounds=([0.0, 0.0, 0.0], [np.inf, 1.0, 1.0]),
                max_nfev=2000,
            )
    except RuntimeError:
        return None
    left_over = float(seconds @ (share - scaled(clients, *fitted)) ** 2)
    mean = float(np.average(share, weights=seconds))
    spread = float(seconds @ (share - mean) ** 2)
    return Curve(
        rate_per_s=float(fitted[0]) * highest,
        contention=float(fitted[1]),
        coherency=float(fitted[2]),
        r2=1.0 - left_over / spread if spread > 0.0 else math.nan,
    )
