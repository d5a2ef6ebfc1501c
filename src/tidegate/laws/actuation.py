"""Between what a controller wants and what is set: limits, a person, whole numbers.

    Clamped       level = min(max(wanted, low), high), and the controller goes on from the level
    Manual        a person's value, and the controller goes on from there when the person has left
    SigmaDelta    n(k) = ⌊u(k) + c(k)⌋,  c(k+1) = c(k) + u(k) − n(k): the mean of n is that of u
    Steady        n(k) = n(k−1) while |u(k) − n(k−1)| ≤ max(1, n/20), else u(k) rounded
    Dithered      u(k) ± amplitude, by a fixed pseudo-random sequence

One step of an integer prefetch is worth b/(1−a) msg/s, 80 in the paper, which explains much of the
±95 that it measured. Sigma–delta spreads the fraction over time: 5.25 is 5, 5, 5, 6. It spreads it
finer if the actuator is set several times within a sampling interval (`Modulator.next` at every
tick). A stock at hand needs no fraction, and RabbitMQ stops for some milliseconds at each change of
a prefetch: who keeps up is steady instead.
"""

from __future__ import annotations

import math

from tidegate.laws.control_step import Controller, ControlStep, Layer, Mode, Sample, Saturation

# A prefetch of 0 means unlimited to RabbitMQ.
PREFETCH_MIN = 1
# How far off a level may be before another number is set: at least, and of the number.
STEADY_WITHIN, STEADY_PART = 1.0, 0.05
# x⁷ + x⁶ + 1: every pattern of seven bits once, and then again.
SEQUENCE_START, SEQUENCE_LENGTH = 0b1111111, 127


class Clamped(Layer):
    """Never leaves the actuator's limits, and lets nothing wind up behind them."""

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
    """Whole numbers whose mean is a given one; never beside its floor and its ceiling."""

    def __init__(self) -> None:
        # Half of one: the first number is the nearest.
        self._carry = 0.5

    def next(self, level: float) -> int:
        """What to set until the next tick."""
        # The carry may have been rounded up to 1.
        whole = min(math.floor(level + self._carry), math.ceil(level))
        self._carry = min(max(self._carry + level - whole, 0.0), 1.0)
        return max(whole, PREFETCH_MIN)


class Steady:
    """A whole number that stays while a given one is about there."""

    def __init__(self) -> None:
        self._whole = 0

    def next(self, level: float) -> int:
        """What to set until the next tick."""
        if abs(level - self._whole) > max(STEADY_WITHIN, STEADY_PART * self._whole):
            self._whole = round(level)
        return max(self._whole, PREFETCH_MIN)


class Manual(Layer):
    """A person's value, as long as there is one; the controller takes over from it."""

    def __init__(self, inner: Controller) -> None:
        super().__init__(inner)
        self._output: float | None = None

    @property
    def is_manual(self) -> bool:
        return self._output is not None

    def take(self, output: float) -> None:
        """From the next step on this is set."""
        if not math.isfinite(output):
            raise ValueError(f"set by hand to a number, not to {output}")
        self._output = output

    def release(self) -> None:
        """From the next step on the controller steers, beginning where the person left it."""
        self._output = None

    def step(self, sample: Sample) -> ControlStep:
        step = self._inner.step(sample)
        if self._output is None:
            return step
        self._inner.track(self._output)
        return step.set_to(self._output)._replace(mode=Mode.MANUAL)


class SigmaDelta(Layer):
    """Whole numbers, one for each step. The controller keeps its fraction."""

    def __init__(self, inner: Controller) -> None:
        super().__init__(inner)
        self._modulator = Modulator()

    def step(self, sample: Sample) -> ControlStep:
        step = self._inner.step(sample)
        return step._replace(output=float(self._modulator.next(step.level)))


class Dithered(Layer):
    """Moves the output a little so that a model can be learned; the controller does not know."""

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
