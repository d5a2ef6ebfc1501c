"""What a controller will do to its plant, before it does it: poles, damping, a simulated step.

    F(z) = C(z)·P(z) / (1 + C(z)·P(z))        ζ = −Re(ln z) / |ln z| of a pole z

Built with python-control from the polynomials of pole_placement. Figures are those of the simulated
step and not of the formulas, since the closed loop's zero has its part in them. A loop with a pole
outside the unit circle, a badly damped one, and one that lateness makes unstable are refused, with
the poles shown. A pole on the real axis below 0 alternates from sample to sample, and the formula
of ζ holds for it as well.
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

# Less rings for more than three periods: an overshoot of one half.
DAMPING_MIN = 0.2
# A pole of 0.999 needs 4 000 samples, and nobody waits longer than that.
HORIZON_MIN, HORIZON_MAX = 50, 20_000
ROUNDING = 1e-6

Array = NDArray[np.float64]
Poles = tuple[complex, ...]


@dataclass(frozen=True)
class ClosedLoop:
    """A controller with its plant, as the model has it."""

    model: Model
    gains: Gains
    # Slowest first.
    poles: Poles
    zeros: Poles
    # Of the pole with the least.
    damping: float
    # Of the simulated step; of the rate's own final value, which for P is not the target.
    predicted: StepFigures
    # What is left of the target, as a fraction: 0 with an integral.
    offset: float
    # The largest pole if each measurement comes late by 0, 1, 2 … samples.
    late_radii: tuple[float, ...]
    # For P only: between which Kp it is stable.
    proportional_bounds: tuple[float, float] | None = None

    @property
    def is_stable(self) -> bool:
        return self.late_radii[0] < 1.0

    def steady_rate_per_s(self, target_per_s: float) -> float:
        """Where the rate will come to rest."""
        return steady_rate_per_s(self.model, self.gains, target_per_s)

    def response_per_s(self, target_per_s: float, samples: int) -> list[float]:
        """The simulated step from 0 to the target, for drawing."""
        rates = _simulate(_transfer(self.model, self.gains), samples)
        return [float(rate) * target_per_s for rate in rates]

    def __str__(self) -> str:
        return (
            f"{self.gains.kind}: {self.gains}; poles {shown(self.poles)}; damping "
            f"{self.damping:.2f}; settles in {self.predicted.settling_samples} samples with "
            f"{self.predicted.overshoot:.1%} overshoot and {self.offset:.1%} offset"
        )


def design(model: Model, kind: Kind, requirement: Requirement) -> ClosedLoop:
    """The controller that keeps the requirement, looked through; refused with its poles shown."""
    try:
        placed = place(model, kind, requirement)
    except DesignRefused as refused:
        if refused.gains is None:
            raise
        poles = analyse(model, refused.gains, requirement.late_samples)
        raise DesignRefused(f"{refused}. {_shown_late(poles)}", refused.gains) from None
    return vet(model, placed.gains, requirement.late_samples)


def vet(model: Model, gains: Gains, late_samples: int = 0) -> ClosedLoop:
    """Any gains, a person's own too: refused if the loop is unstable or badly damped."""
    found = analyse(model, gains, late_samples)
    if not found.is_stable:
        raise DesignRefused(
            f"{gains} make the loop unstable, the rate would run away: poles "
            f"{shown(found.poles)} must lie within the unit circle; lower the gains",
            gains,
        )
    # A plant that alternates by itself is not the controller's doing.
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
    """Everything there is to know about a loop, good or bad."""
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
    """ζ: 1 dies without swinging, 0 swings for ever, below 0 grows."""
    if pole == 0.0:
        return 1.0
    rate = cmath.log(pole)
    return -rate.real / abs(rate) if rate != 0.0 else 0.0


def shown(poles: Poles) -> str:
    """For people: 0.50±0.33i, |z| 0.60; each pair once."""
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
    # Until the slowest pole has shrunk to a ten-thousandth.
    enough = math.log(1e-4) / math.log(max(radius, 0.1)) if radius < 1.0 else HORIZON_MAX
    samples = min(max(math.ceil(enough), HORIZON_MIN), HORIZON_MAX)
    return step_figures([float(y) for y in _simulate(system, samples)], final)


def _simulate(system: control.TransferFunction, samples: int) -> Array:
    response = control.step_response(system, T=np.arange(samples, dtype=np.float64))
    return np.asarray(response.outputs, dtype=np.float64).reshape(-1)
