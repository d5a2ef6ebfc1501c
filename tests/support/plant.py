"""A consumer with known a and b, and its samples as sums, for those who must find them again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.laws.prefetch.fit import FIELDS, RegressionSums

Array = NDArray[np.float64]

# The paper's plant: saturates where b/(1 − a)·u reaches what the consumer can do, at u = 22.
PAPER_A, PAPER_B, PAPER_KNEE = 0.2631, 59.73, 22.0


@dataclass(frozen=True)
class Samples:
    y: Array
    u: Array
    y_next: Array

    def sums(self) -> RegressionSums:
        return summed(self.y, self.u, self.y_next)

    def by_prefetch(self) -> dict[float, RegressionSums]:
        return {
            float(prefetch): Samples(
                self.y[self.u == prefetch], self.u[self.u == prefetch],
                self.y_next[self.u == prefetch],
            ).sums()
            for prefetch in np.unique(self.u)
        }  # fmt: skip

    def held_out(self) -> tuple[Samples, Samples]:
        """Three of four stretches of fifty to fit, the fourth to judge."""
        fit = (np.arange(len(self.u)) // 50) % 4 != 3
        return self._where(fit), self._where(~fit)

    def _where(self, chosen: NDArray[np.bool_]) -> Samples:
        return Samples(self.y[chosen], self.u[chosen], self.y_next[chosen])


def summed(y: Array, u: Array, y_next: Array) -> RegressionSums:
    each = RegressionSums.of(y, u, y_next)
    return RegressionSums(*(float(np.sum(getattr(each, name))) for name in FIELDS))


def plant(
    u: Array,
    *,
    a: float = PAPER_A,
    b: float = PAPER_B,
    noise: float = 20.0,
    knee: float = np.inf,
    base: float = 0.0,
    seed: int = 1,
) -> Samples:
    """y(k+1) = a·y(k) + b·u(k), above a base rate, up to what it gives at the knee."""
    random = np.random.default_rng(seed)
    most = b / (1.0 - a) * knee
    y = np.zeros(len(u) + 1)
    for k, prefetch in enumerate(u):
        y[k + 1] = min(a * y[k] + b * prefetch, most) + noise * random.normal()
    return Samples(base + y[:-1], np.asarray(u, dtype=np.float64), base + y[1:])


def prefetches(low: int, high: int, count: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).integers(low, high + 1, count).astype(np.float64)
