"""How many messages will arrive in the next hour.

Series are rows of a matrix of evenly spaced rates (NaN: not recorded), all forecast at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """What is expected of each series (rows) at each step ahead (columns), with its interval."""

    expected_per_s: Matrix
    low_per_s: Matrix
    high_per_s: Matrix
    # Mean absolute error on held-out windows, ours and the baseline's, per series.
    error_per_s: NDArray[np.float64]
    baseline_error_per_s: NDArray[np.float64]
    # 1 − error / baseline error: above 0 is better than the baseline.
    skill: NDArray[np.float64]
    # The fraction of held-out values that lay within their interval.
    coverage: NDArray[np.float64]
    season: NDArray[np.int64]  # steps; 0 where the history is too short for one
    accepted: NDArray[np.bool_]
    reason: Sequence[str]


def seasonal_naive(history_per_s: Matrix, steps: int, season: int) -> Matrix:
    """The baseline: what was one season ago; the last value where there is no season."""
    raise NotImplementedError


def forecast(
    history_per_s: Matrix,
    steps: int,
    seasons: Sequence[int] = (),
    confidence: float = 0.9,
) -> Forecast:
    """The next steps of every series; `seasons` are the periods to consider, in steps."""
    raise NotImplementedError
