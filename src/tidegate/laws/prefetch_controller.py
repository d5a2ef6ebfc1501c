"""The controller of a prefetch as it runs: every layer that practice needs, in the right order.

    SigmaDelta( Clamped( Manual( Fallback( Hampel( Deadband( P | PI | PID ))))))

Limits lie outside, so that neither a person nor a fallback gets past them, and the fraction is
spread outermost, so that nothing behind it sees whole numbers. An actuator that is set several
times within a sampling interval takes `level` and spreads it itself (`whole=False`, Modulator).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.laws.actuation import PREFETCH_MIN, Clamped, Manual, SigmaDelta
from tidegate.laws.control_step import Controller, ControlStep, Sample
from tidegate.laws.controllers import controller
from tidegate.laws.measuring import Deadband, Fallback, Hampel
from tidegate.laws.pole_placement import Gains


@dataclass(frozen=True)
class Practice:
    """What a prefetch may be, and what to do when the world is not as in the model."""

    low: int = PREFETCH_MIN
    high: int = 360
    # Set when nothing was measured for so long.
    fallback: int = 10
    patience_s: float = 10.0
    # 0: none.
    deadband_per_s: float = 0.0
    # Rates among which one may be an outlier; 0: none is.
    outlier_window: int = 5
    # Whole numbers come out of each step.
    whole: bool = True


class PrefetchController:
    """Steers one consumer's prefetch."""

    def __init__(self, gains: Gains, start: float, practice: Practice | None = None) -> None:
        practice = practice or Practice()
        # For those who change gains while it runs: adaptation, gain schedules.
        self.tunable = controller(gains, start)
        inner: Controller = self.tunable
        if practice.deadband_per_s > 0.0:
            inner = Deadband(inner, practice.deadband_per_s)
        if practice.outlier_window > 0:
            inner = Hampel(inner, practice.outlier_window)
        inner = Fallback(inner, float(practice.fallback), practice.patience_s)
        self.manual = Manual(inner)
        inner = Clamped(self.manual, practice.low, practice.high)
        self._outermost: Controller = SigmaDelta(inner) if practice.whole else inner

    def step(self, sample: Sample) -> ControlStep:
        """What to set now."""
        return self._outermost.step(sample)

    def track(self, output: float) -> None:
        """This was set instead, by somebody whom no layer knows of."""
        self._outermost.track(output)

    def restart(self, output: float) -> None:
        """This is set now, after a pause."""
        self._outermost.restart(output)
