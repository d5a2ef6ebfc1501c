"""Layers between the controller's output and the actuator: limits, manual values, whole numbers.

    Clamp          level = min(max(wanted, low), high), and the controller continues from the level
    ManualControl  a human's value, and the controller continues from it after release
    SigmaDelta     n(k) = ⌊u(k) + c(k)⌋,  c(k+1) = c(k) + u(k) − n(k): the mean of n is that of u
    Hysteresis     n(k) = n(k−1) while |u(k) − n(k−1)| ≤ max(1, n/20), else u(k) rounded
    Dither         u(k) ± amplitude, by a fixed pseudo-random sequence

One step of an integer prefetch is worth b/(1−a) msg/s. In the paper that is 80 msg/s, which
explains much of the ±95 msg/s that it measured. Sigma–delta modulation spreads the fraction over
time: 5.25 becomes 5, 5, 5, 6. It spreads the fraction more finely if the actuator is set several
times within a sampling interval (`Modulator.next` at every tick).

The goal "keep up" needs no fraction, because messages wait in the consumer. RabbitMQ pauses for
some milliseconds at each change of a prefetch, so this goal uses hysteresis instead.
"""

from __future__ import annotations

import math

from tidegate.laws.control_step import Controller, ControlStep, Layer, Mode, Sample, Saturation

# RabbitMQ reads a prefetch of 0 as unlimited.
PREFETCH_MIN = 1
# Distance from the level at which another number is set: absolute, and as a fraction of the number.
STEADY_WITHIN, STEADY_PART = 1.0, 0.05
# x⁷ + x⁶ + 1: a maximal sequence that visits each nonzero pattern of seven bits once per period.
SEQUENCE_START, SEQUENCE_LENGTH = 0b1111111, 127


class Clamped(Layer):
    """Keeps the output within the actuator's limits, without windup behind them."""

    def __init__(self, inner: Controller, low: int, high: int) -> None:
        super().__init__(inner)
        if not PREFETCH_MIN <= low <= high:
            raise ValueError(
                f"limits {low} to {high}: the lower one is at least {PREFETCH_MIN} (a prefetch of "
                "0 means unlimited) and not above the upper one"
            )
        self.low = low
        self.high = high

    def step(self, sample: Sample) -> ControlStep:
        step = self._inner.step(sample)
        level = min(max(step.level, float(self.low)), float(self.high))
        if level == step.level:
            return step
        self._inner.track(level)
        saturated = Saturation.LOW if level > step.level else Saturation.HIGH
        return step.set_to(level)._replace(saturated=saturated)


class Modulator:
    """Turns a level into whole numbers with the same mean, using only its floor and ceiling."""

    def __init__(self) -> None:
        # With half a unit the first number is the nearest one.
        self._carry = 0.5

    def next(self, level: float) -> int:
        """Return the number to set until the next tick."""
        # Rounding may have raised the carry to 1, and the floor would then be above the ceiling.
        whole = min(math.floor(level + self._carry), math.ceil(level))
        self._carry = min(max(self._carry + level - whole, 0.0), 1.0)
        return max(whole, PREFETCH_MIN)


class Steady:
    """Turns a level into a whole number that changes only when the level is clearly off."""

    def __init__(self) -> None:
        self._whole = 0

    def next(self, level: float) -> int:
        """Return the number to set until the next tick."""
        if abs(level - self._whole) > max(STEADY_WITHIN, STEADY_PART * self._whole):
            self._whole = round(level)
        return max(self._whole, PREFETCH_MIN)


class Manual(Layer):
    """Sets a human's value while there is one; afterwards the controller continues from it."""

    def __init__(self, inner: Controller) -> None:
        super().__init__(inner)
        self._output: float | None = None

    @property
    def is_manual(self) -> bool:
        return self._output is not None

    def take(self, output: float) -> None:
        """Set this value from the next step on.

        Raises `ValueError` if it is not finite.
        """
        if not math.isfinite(output):
            raise ValueError(f"set by hand to a number, not to {output}")
        self._output = output

    def release(self) -> None:
        """Let the controller continue from the manual value in the next step."""
        self._output = None

    def step(self, sample: Sample) -> ControlStep:
        step = self._inner.step(sample)
        if self._output is None:
            return step
        self._inner.track(self._output)
        return step.set_to(self._output)._replace(mode=Mode.MANUAL)


class SigmaDelta(Layer):
    """Outputs a whole number in each step. The controller keeps its fraction."""

    def __init__(self, inner: Controller) -> None:
        super().__init__(inner)
        self._modulator = Modulator()

    def step(self, sample: Sample) -> ControlStep:
        step = self._inner.step(sample)
        return step._replace(output=float(self._modulator.next(step.level)))


class Dithered(Layer):
    """Moves the output slightly so that a model can be learned; the controller is not told."""

    def __init__(self, inner: Controller, amplitude: float) -> None:
        super().__init__(inner)
        self.amplitude = amplitude
        self._bits = SEQUENCE_START

    def step(self, sample: Sample) -> ControlStep:
        step = self._inner.step(sample)
        if self.amplitude == 0.0:
            return step
        up = self._bits & 1
        self._bits = (self._bits >> 1) | ((self._bits ^ (self._bits >> 1)) & 1) << 6
        moved = step.level + (self.amplitude if up else -self.amplitude)
        return step.set_to(moved).noted("dithered")
