"""P, PI and PID controllers that compute one step at a time.

    e(k) = target − y(k),   s(k) = w·target − y(k)       w the setpoint weight, 1 in the paper
    P     u(k) = bias + Kp·e(k)
    PI    u(k) = u(k−1) + Kp·[s(k) − s(k−1)] + Ki·e(k)
    PID   … + Kd·[s(k) − 2·s(k−1) + s(k−2)]

With w = 1 these are the controllers of pole placement, with PI and PID in their incremental form.
The integral is u(k−1), the value that was really set. So it cannot wind up beyond a limit that
`track` reports, and neither new gains nor the change from manual to automatic cause a jump. P has
no memory: its output follows from the formula alone.
"""

from __future__ import annotations

import math
from typing import Protocol

from tidegate.laws.control_step import ControlStep, Mode, Sample
from tidegate.laws.pole_placement import Gains, Kind


class Proportional:
    """A P controller.

    It keeps a steady-state error, so it serves for comparison more than for use.
    """

    def __init__(self, gains: Gains, start: float, *, bias: float = 0.0) -> None:
        self.gains = gains
        self._bias = bias
        self._output = start

    def retune(self, gains: Gains) -> None:
        self.gains = gains

    def step(self, sample: Sample) -> ControlStep:
        if sample.rate_per_s is None or not sample.is_usable or sample.is_starved:
            return held(sample, self._output)
        error = sample.target_per_s - sample.rate_per_s
        proportional = self.gains.proportional * error
        self._output = self._bias + proportional
        return ControlStep(
            at=sample.at,
            target_per_s=sample.target_per_s,
            measured_per_s=sample.rate_per_s,
            used_per_s=sample.rate_per_s,
            error_per_s=error,
            proportional=proportional,
            integral=self._bias,
            derivative=0.0,
            wanted=self._output,
            level=self._output,
            output=self._output,
        )

    def track(self, output: float) -> None:
        self._output = output

    def restart(self, output: float) -> None:
        self._output = output


class Incremental:
    """A PI or PID controller in incremental form: the last output plus a change."""

    def __init__(self, gains: Gains, start: float) -> None:
        self.gains = gains
        self._output = start
        # s(k−1) and s(k−2). `None` means not known; the current value is used instead.
        self._before: float | None = None
        self._before_that: float | None = None

    def retune(self, gains: Gains) -> None:
        """Use other gains from the next step on.

        The output does not jump, because only changes are computed.
        """
        self.gains = gains

    def step(self, sample: Sample) -> ControlStep:
        if sample.rate_per_s is None or not sample.is_usable or sample.is_starved:
            return held(sample, self._output)
        gains = self.gains
        error = sample.target_per_s - sample.rate_per_s
        weighted = gains.setpoint_weight * sample.target_per_s - sample.rate_per_s
        before = weighted if self._before is None else self._before
        before_that = before if self._before_that is None else self._before_that
        wanted = (
            self._output
            + gains.proportional * (weighted - before)
            + gains.integral * error
            + gains.derivative * (weighted - 2.0 * before + before_that)
        )
        self._before, self._before_that = weighted, before
        self._output = wanted
        proportional = gains.proportional * weighted
        derivative = gains.derivative * (weighted - before)
        return ControlStep(
            at=sample.at,
            target_per_s=sample.target_per_s,
            measured_per_s=sample.rate_per_s,
            used_per_s=sample.rate_per_s,
            error_per_s=error,
            proportional=proportional,
            # Everything in the output that is not due to the current error.
            integral=wanted - proportional - derivative,
            derivative=derivative,
            wanted=wanted,
            level=wanted,
            output=wanted,
        )

    def track(self, output: float) -> None:
        self._output = output

    def restart(self, output: float) -> None:
        self._output = output
        self._before = self._before_that = None


Tunable = Proportional | Incremental


class Tuned(Protocol):
    """A controller whose gains can be changed while it runs."""

    @property
    def gains(self) -> Gains:
        """The gains in use."""

    def retune(self, gains: Gains) -> None:
        """Use other gains from the next step on."""


def controller(gains: Gains, start: float) -> Tunable:
    """Return the controller for these gains, starting from the output that is set now."""
    if not math.isfinite(start):
        raise ValueError(f"a controller starts from what is set now, not from {start}")
    return Proportional(gains, start) if gains.kind is Kind.P else Incremental(gains, start)


def held(sample: Sample, output: float) -> ControlStep:
    """Return a step without a measurement, which leaves the output unchanged."""
    nothing = math.nan
    return ControlStep(
        at=sample.at,
        target_per_s=sample.target_per_s,
        measured_per_s=nothing if sample.rate_per_s is None else sample.rate_per_s,
        used_per_s=nothing,
        error_per_s=nothing,
        proportional=0.0,
        integral=output,
        derivative=0.0,
        wanted=output,
        level=output,
        output=output,
        mode=Mode.HELD,
        notes=("starved",) if sample.is_starved else (),
    )
