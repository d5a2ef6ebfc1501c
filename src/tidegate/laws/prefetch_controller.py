"""The complete controller of a prefetch, with every layer that practice needs in the right order.

    SigmaDelta( Clamp( ManualControl( Fallback( Hampel( Deadband( P | PI | PID ))))))

The limits are outside, so that neither a manual value nor a fallback exceeds them. The fraction is
spread outermost, so that no inner layer sees whole numbers. An actuator that is set several times
within a sampling interval uses `level` and spreads it itself (`whole=False` and a `Modulator`).
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
    """The limits of a prefetch, and the behaviour when measurements fail."""

    low: int = PREFETCH_MIN
    high: int = 360
    # Prefetch that is set when nothing was measured for `patience_s`.
    fallback: int = 10
    patience_s: float = 10.0
    # 0 means no deadband.
    deadband_per_s: float = 0.0
    # Window of rates in which an outlier is detected. 0 turns the detection off.
    outlier_window: int = 5
    # Whether each step returns a whole number.
    whole: bool = True


class PrefetchController:
    """Controls the prefetch of one consumer."""

    def __init__(self, gains: Gains, start: float, practice: Practice | None = None) -> None:
        practice = practice or Practice()
        # For code that changes gains while the controller runs: adaptation and gain schedules.
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
        """Return what to set now."""
        return self._outermost.step(sample)

    def track(self, output: float) -> None:
        """Continue from a value that was set from outside all layers."""
        self._outermost.track(output)

    def restart(self, output: float) -> None:
        """Continue from `output` after a pause."""
        self._outermost.restart(output)
