"""The prefetches of a sweep: each √2 times the previous one, so that a wide range costs little."""

from __future__ import annotations

import math

RATIO = math.sqrt(2.0)


def sweep_prefetches(low: int, high: int) -> list[int]:
    """Return the prefetches from `low` to `high`, both included."""
    steps = math.ceil(math.log(high / low, RATIO))
    return sorted({min(round(low * RATIO**step), high) for step in range(steps + 1)} | {high})


def sweep_samples(low: int, high: int) -> int:
    """Return the approximate number of samples of a sweep."""
    return 2 * len(sweep_prefetches(low, high))
