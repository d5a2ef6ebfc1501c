"""Analysis of a closed loop before it runs: poles, damping, and a simulated step.

    F(z) = C(z)·P(z) / (1 + C(z)·P(z))        ζ = −Re(ln z) / |ln z| of a pole z

The loop is built with python-control from the same polynomials as the gains. Settling time and
overshoot come from the simulated step and not from the formulas, because the zero of the closed
loop affects them. Three kinds of loops are refused with their poles in the error: unstable ones (a
pole outside the unit circle), badly damped ones, and ones that late measurements make unstable. A
pole on the negative real axis alternates from sample to sample; the formula of ζ holds for it too.
"""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass

import control
import numpy as np
from numpy.typing import NDArray

from tidegate.laws.controller_design import DesignRefused, Requirement, place
from tidegate.laws.least_squares import Model
from tidegate.laws.pole_placement import (
    Gains,
    Kind,
    closed_loop,
    proportional_bounds,
    steady_rate_per_s,
)
from tidegate.laws.step_figures import StepFigures, step_figures

# A smaller damping rings for more than three periods: an overshoot of one half.
DAMPING_MIN = 0.2
# A pole of 0.999 needs 4,000 samples; longer simulations would serve no user.
HORIZON_MIN, HORIZON_MAX = 50, 20_000
ROUNDING = 1e-6

Array = NDArray[np.float64]
Poles = tuple[complex, ...]


@dataclass(frozen=True)
class ClosedLoop:
    """A controller with its plant, as the model describes it."""

    model: Model
    gains: Gains
    # Slowest first.
    poles: Poles
    zeros: Poles
    # The smallest damping of any pole.
    damping: float
    # Response to the simulated step, relative to its own final value, which for P is not the
    # target.
    predicted: StepFigures
    # Remaining error as a fraction of the target; 0 with an integral.
    offset: float
    # The largest pole radius with measurements that are late by 0, 1, 2, … samples.
    late_radii: tuple[float, ...]
    # For P only: the limits of Kp between which the loop is stable.
    proportional_bounds: tuple[float, float] | None = None

    @property
    def is_stable(self) -> bool:
        return self.late_radii[0] < 1.0

    def steady_rate_per_s(self, target_per_s: float) -> float:
        """Return the rate at which the loop comes to rest."""
        return steady_rate_per_s(self.model, self.gains, target_per_s)

    def response_per_s(self, target_per_s: float, samples: int) -> list[float]:
        """Return the simulated step from 0 to the target, for drawing."""
        rates = _simulate(_transfer(self.model, self.gains), samples)
        return [float(rate) * target_per_s for rate in rates]

    def __str__(self) -> str:
        return (
            f"{self.gains.kind}: {self.gains}; poles {shown(self.poles)}; damping "
            f"{self.damping:.2f}; settles in {self.predicted.settling_samples} samples with "
            f"{self.predicted.overshoot:.1%} overshoot and {self.offset:.1%} offset"
        )


def design(model: Model, kind: Kind, requirement: Requirement) -> ClosedLoop:
    """Return the analysed controller that keeps the requirement.

    Raises `DesignRefused`, with the poles in its text, if there is none.
    """
    try:
        placed = place(model, kind, requirement)
    except DesignRefused as refused:
        if refused.gains is None:
            raise
        poles = analyse(model, refused.gains, requirement.late_samples)
        raise DesignRefused(f"{refused}. {_shown_late(poles)}", refused.gains) from None
    return vet(model, placed.gains, requirement.late_samples)


def vet(model: Model, gains: Gains, late_samples: int = 0) -> ClosedLoop:
    """Return the analysed loop of any gains, such as a user's own.

    Raises `DesignRefused` if the loop is unstable, badly damped, or unstable with late
    measurements.
    """
    found = analyse(model, gains, late_samples)
    if not found.is_stable:
        raise DesignRefused(
            f"{gains} make the loop unstable, the rate would run away: poles "
            f"{shown(found.poles)} must lie within the unit circle; lower the gains",
            gains,
        )
    # A plant that alternates by itself is not due to the controller.
    if found.damping < min(DAMPING_MIN, damping_of(complex(model.a)) - ROUNDING):
        raise DesignRefused(
            f"{gains} leave the loop badly damped, the rate would swing for long: poles "
            f"{shown(found.poles)} have a damping of {found.damping:.2f}, and {DAMPING_MIN:g} is "
            "needed; lower the gains or allow more time",
            gains,
        )
    if max(found.late_radii) >= 1.0:
        raise DesignRefused(
            f"{gains} bear no late measurement. {_shown_late(found)}; allow more time to settle",
            gains,
        )
    return found


def analyse(model: Model, gains: Gains, late_samples: int = 0) -> ClosedLoop:
    """Return the analysis of a loop, whether it is acceptable or not."""
    a, b = float(model.a), float(model.b)
    system = _transfer(model, gains)
    slowest_first = sorted((complex(p) for p in system.poles()), key=lambda p: (-abs(p), -p.imag))
    radius = abs(slowest_first[0])
    final = float(np.real(system.dcgain())) if radius < 1.0 else math.nan
    return ClosedLoop(
        model=model,
        gains=gains,
        poles=tuple(slowest_first),
        zeros=tuple(complex(z) for z in system.zeros()),
        damping=min(damping_of(pole) for pole in slowest_first),
        predicted=_predicted(system, final, radius),
        offset=1.0 - final if gains.kind is Kind.P else 0.0,
        late_radii=tuple(
            float(np.max(np.abs(_transfer(model, gains, late).poles())))
            for late in range(late_samples + 1)
        ),
        proportional_bounds=proportional_bounds(a, b) if gains.kind is Kind.P else None,
    )


def damping_of(pole: complex) -> float:
    """Return ζ of a pole: 1 decays without oscillating, 0 oscillates for ever, below 0 grows."""
    if pole == 0.0:
        return 1.0
    rate = cmath.log(pole)
    return -rate.real / abs(rate) if rate != 0.0 else 0.0


def shown(poles: Poles) -> str:
    """Format poles for people, such as 0.50±0.33i (|z| = 0.60); each conjugate pair once."""
    parts = []
    for pole in poles:
        if abs(pole.imag) < 1e-9:
            parts.append(f"{pole.real:.3g}")
        elif pole.imag > 0.0:
            parts.append(f"{pole.real:.3g}±{pole.imag:.3g}i (|z| = {abs(pole):.3g})")
    return ", ".join(parts)


def _shown_late(found: ClosedLoop) -> str:
    late = ", ".join(f"{radius:.3g}" for radius in found.late_radii)
    return (
        f"{found.gains} would place the poles at {shown(found.poles)}; with measurements late by 0 "
        f"to {len(found.late_radii) - 1} samples the largest is {late}"
    )


def _transfer(model: Model, gains: Gains, late_samples: int = 0) -> control.TransferFunction:
    loop = closed_loop(float(model.a), float(model.b), gains, late_samples)
    return control.TransferFunction(loop.numerator, loop.denominator, dt=True)


def _predicted(system: control.TransferFunction, final: float, radius: float) -> StepFigures:
    if math.isnan(final):
        return StepFigures(HORIZON_MAX, math.inf, math.nan)
    # Until the slowest pole has decayed to a ten-thousandth.
    enough = math.log(1e-4) / math.log(max(radius, 0.1)) if radius < 1.0 else HORIZON_MAX
    samples = min(max(math.ceil(enough), HORIZON_MIN), HORIZON_MAX)
    return step_figures([float(y) for y in _simulate(system, samples)], final)


def _simulate(system: control.TransferFunction, samples: int) -> Array:
    response = control.step_response(system, T=np.arange(samples, dtype=np.float64))
    return np.asarray(response.outputs, dtype=np.float64).reshape(-1)
