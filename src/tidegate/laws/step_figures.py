"""Settling time and overshoot of a step response.

settled    the first sample from which on |y(k) − y∞| ≤ 2 % of the step
overshoot  max(y) / y∞ − 1, at least 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SETTLED_BAND = 0.02


class StepFigures(NamedTuple):
    """Settling time and overshoot of a unit step response."""

    # Number of samples until settled; the length of the response if it never settled.
    settling_samples: int
    overshoot: float
    final: float


def step_figures(rates: Sequence[float], final: float) -> StepFigures:
    """Return settling time and overshoot of a response whose final value is `final`."""
    if final == 0.0:
        # The gain is so small that nothing follows: the response has no step to settle on.
        return StepFigures(len(rates), math.inf, final)
    band = SETTLED_BAND * abs(final)
    settled = len(rates)
    while settled > 0 and abs(rates[settled - 1] - final) <= band:
        settled -= 1
    peak = max(rates, default=final) if final > 0.0 else -min(rates, default=final)
    return StepFigures(settled, max(peak / abs(final) - 1.0, 0.0), final)
