"""Oscillation detection: a loop that oscillates for ever is detected by its waves, and damped.

    a wave       from where the error rises above 0 to where it does so again
    it counts    mean |e| ≥ 2/π · A · target       as that of a sine whose amplitude is A (Hägglund)
                 highest − lowest level ≥ ½ · mean level
                 mean |e| ≥ ½ · that of the wave before
    oscillates   3 waves in a row, and each 2 more: gains are halved, down to 1/256

A controller for a wrong model may be unstable on its plant. The loop does not run away, because
limits and the knee bound it; it oscillates between them.

Known methods for oscillating loops (Hägglund: the area of the error between its zeros; Miao and
Seborg: the decay from wave to wave) tell this from three similar cases. Noise changes its sign as
often, but the mean of a wave of noise is small. Credit in bursts makes the rate oscillate, but not
the prefetch. A decaying disturbance halves from wave to wave.

Smaller gains make any loop around a consumer stable, because a consumer itself is stable. They are
slow, and stay until the loop is redesigned for a better model; the same gains would oscillate
again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tidegate.laws.control_step import Controller, ControlStep, Layer, Mode, Sample
from tidegate.laws.controllers import Tuned
from tidegate.laws.pole_placement import Gains

# A as a fraction of the target: seven standard deviations of usual noise.
AMPLITUDE = 0.35
# Fraction of the mean level that the prefetch must move by.
TAKES_PART = 0.5
# Fraction of the previous wave below which a wave decays.
DIES = 0.5
# Waves in a row that are an oscillation, and the number that confirms it again.
WAVES, WAVES_MORE = 3, 2
HALVINGS_MAX = 8
# Samples since gains were halved: with fewer the loop still oscillates, with more it is calm.
SWINGS_SAMPLES, CALM_SAMPLES = 30, 100
# Fraction of the strength that oscillated below which gains are acceptable.
LESS = 0.95
SWINGS = "swings"


class Swing:
    """Detects the waves of one loop's error."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget all waves, because they do not apply any more."""
        self._waves = 0
        self._needed = WAVES
        # Mean |e| over the target, of the previous wave.
        self._mean_before = 0.0
        # Geometric mean of the levels of the previous wave, since half and twice are equally far.
        self.middle = math.nan
        # Whether a wave has begun, and the sign of the previous error.
        self._is_open = False
        self._was_above: bool | None = None
        self._clear()

    def _clear(self) -> None:
        self._samples = 0
        self._area = self._levels = 0.0
        self._lowest, self._highest = math.inf, -math.inf

    def see(self, error_per_s: float, target_per_s: float, level: float) -> bool:
        """Add a sample, and return whether an oscillation was detected with it."""
        is_above = error_per_s > 0.0
        found = False
        if is_above and self._was_above is False:
            found = self._is_open and self._end_wave()
            self._is_open = True
            self._clear()
        self._was_above = is_above
        self._samples += 1
        # A target of 0 gives no scale for the error.
        self._area += abs(error_per_s) / target_per_s if target_per_s > 0.0 else 0.0
        self._levels += level
        self._lowest, self._highest = min(self._lowest, level), max(self._highest, level)
        return found

    def _end_wave(self) -> bool:
        mean = self._area / self._samples
        counts = (
            mean >= 2.0 / math.pi * AMPLITUDE
            and mean >= DIES * self._mean_before
            and self._highest - self._lowest >= TAKES_PART * self._levels / self._samples
        )
        self._mean_before = mean
        self.middle = math.sqrt(self._lowest * self._highest)
        self._waves = self._waves + 1 if counts else 0
        if not counts:
            self._needed = WAVES
        if self._waves < self._needed:
            return False
        self._waves, self._needed = 0, WAVES_MORE
        return True


class Calmed(Layer):
    """Halves the gains of a controller that oscillates, and keeps them below that strength."""

    def __init__(self, inner: Controller, tuned: Tuned) -> None:
        super().__init__(inner)
        self._tuned = tuned
        self._swing = Swing()
        self._designed = tuned.gains
        self._halvings = 0
        # Samples since the last detection, and how strong the gains were then.
        self._since, self._swung = math.inf, math.inf

    @property
    def gains(self) -> Gains:
        """The gains in use."""
        return self._tuned.gains

    @property
    def is_lowered(self) -> bool:
        """Whether gains are reduced, because the loop oscillated with the model in use."""
        return self._halvings > 0

    @property
    def is_swinging(self) -> bool:
        """Whether an oscillation was detected recently, so that the loop causes the movements."""
        return self._since < SWINGS_SAMPLES

    def retune(self, gains: Gains) -> None:
        """Use the gains of another design, reduced if as strong gains have just oscillated."""
        self._designed = gains
        self._swing.begin()
        if self._since > CALM_SAMPLES:
            self._swung = math.inf
        halvings = 0
        while halvings < HALVINGS_MAX and strength(gains) * 0.5**halvings > LESS * self._swung:
            halvings += 1
        self._lower(halvings)

    def begin(self) -> None:
        """Forget all waves after a change of the target, which is no wave."""
        self._swing.begin()

    def step(self, sample: Sample) -> ControlStep:
        if self.is_swinging:
            # Movements of the loop itself are no outliers, and the median of an oscillation is one
            # of its extremes.
            sample = sample._replace(expected_per_s=sample.rate_per_s)
        step = self._inner.step(sample)
        rate = sample.rate_per_s
        if rate is None or not sample.is_usable:
            return self._noted(step)
        self._since += 1
        if sample.starved or step.mode is not Mode.AUTOMATIC:
            self._swing.begin()
        elif self._swing.see(sample.target_per_s - rate, sample.target_per_s, step.level):
            return self._halve(step)
        return self._noted(step)

    def _halve(self, step: ControlStep) -> ControlStep:
        self._since, self._swung = 0, strength(self.gains)
        if self._halvings == HALVINGS_MAX:
            return self._noted(step)
        self._lower(self._halvings + 1)
        # From the top of a wave, perhaps far beyond the knee, smaller gains would take long to
        # return.
        self._inner.track(self._swing.middle)
        step = step.set_to(self._swing.middle)
        return step.noted(f"{SWINGS}: gains halved, to 1/{2**self._halvings} of the design")

    def _lower(self, halvings: int) -> None:
        self._halvings = halvings
        part, designed = 0.5**halvings, self._designed
        self._tuned.retune(
            replace(
                designed,
                proportional=part * designed.proportional,
                integral=part * designed.integral,
                derivative=part * designed.derivative,
            )
        )

    def _noted(self, step: ControlStep) -> ControlStep:
        if not self.is_lowered:
            return step
        return step.noted(f"1/{2**self._halvings} of the gains: with more it swung")


def strength(gains: Gains) -> float:
    """Return the largest change of the prefetch that a sudden error of 1 msg/s causes."""
    return abs(gains.proportional) + abs(gains.integral) + abs(gains.derivative)
