"""How a step response looks to people: when it has settled, and by how much it overshot.

settled: the first sample from which on |y(k) − y∞| ≤ 2 % of the step
overshoot = max(y) / y∞ − 1, at least 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SETTLED_BAND = 0.02


class StepFigures(NamedTuple):
    """Of a step from 0 to 1 of the target."""

    # As many as there are samples, if it had not settled by then.
    settling_samples: int
    overshoot: float
    final: float


def step_figures(rates: Sequence[float], final: float) -> StepFigures:
    """Of a response that goes to `final` in the end."""
    if final == 0.0:
        # A gain so small that nothing follows: there is no step to settle on.
        return StepFigures(len(rates), math.inf, final)
    band = SETTLED_BAND * abs(final)
    settled = len(rates)
    while settled > 0 and abs(rates[settled - 1] - final) <= band:
        settled -= 1
    peak = max(rates, default=final) if final > 0.0 else -min(rates, default=final)
    return StepFigures(settled, max(peak / abs(final) - 1.0, 0.0), final)
