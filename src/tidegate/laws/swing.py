"""A loop that swings for ever: seen by its waves, and calmed by smaller gains.

    a wave       from where the error rises above 0 to where it does so again
    it counts    mean |e| ≥ 2/π · A · target       as that of a sine whose amplitude is A (Hägglund)
                 highest − lowest level ≥ ½ · mean level
                 mean |e| ≥ ½ · that of the wave before
    swings       3 waves in a row, and each 2 more: gains are halved, down to 1/256

A controller for a model that is wrong may be unstable on its plant. It does not run away, for there
are limits and a knee: it swings between them. What is known of loops that swing (Hägglund: the area
of the error between its zeros; Miao and Seborg: by how much a wave is smaller than the one before)
tells that from three things which only look like it. Noise changes its sign as often, yet the mean
of a wave of it is small. Credit that comes in bursts makes the rate swing and not the prefetch. And
what dies away after a disturbance halves from wave to wave. Smaller gains make any loop around a
consumer stable, as a consumer is stable by itself; they are slow, and kept until the loop is
designed anew for a better model: to try the same gains once more would be to swing once more.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tidegate.laws.control_step import Controller, ControlStep, Layer, Mode, Sample
from tidegate.laws.controllers import Tuned
from tidegate.laws.pole_placement import Gains

# A, of the target: seven standard deviations of usual noise.
AMPLITUDE = 0.35
# Of the level, by which it must take part.
TAKES_PART = 0.5
# Of the wave before, below which a wave dies away.
DIES = 0.5
# Waves in a row that are a swing, and those after which it is one still.
WAVES, WAVES_MORE = 3, 2
HALVINGS_MAX = 8
# Samples since gains were halved: in fewer it still swings, and in more it is calm.
SWINGS_SAMPLES, CALM_SAMPLES = 30, 100
# What is less than that by which it swung.
LESS = 0.95
SWINGS = "swings"


class Swing:
    """The waves of one loop's error."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """What was seen before says nothing of what comes."""
        self._waves = 0
        self._needed = WAVES
        # Mean |e| over the target, of the wave before.
        self._mean_before = 0.0
        # Of the levels of the wave before: in the geometric sense, as half and twice are as far.
        self.middle = math.nan
        # Whether a wave has begun; and the sign of the error before.
        self._is_open = False
        self._was_above: bool | None = None
        self._clear()

    def _clear(self) -> None:
        self._samples = 0
        self._area = self._levels = 0.0
        self._lowest, self._highest = math.inf, -math.inf

    def see(self, error_per_s: float, target_per_s: float, level: float) -> bool:
        """The next sample; whether the loop swings, in the sample in which that is found."""
        is_above = error_per_s > 0.0
        found = False
        if is_above and self._was_above is False:
            found = self._is_open and self._end_wave()
            self._is_open = True
            self._clear()
        self._was_above = is_above
        self._samples += 1
        # A target of 0 is no measure of anything.
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
    """Halves the gains of a controller that swings, and keeps them below what swung."""

    def __init__(self, inner: Controller, tuned: Tuned) -> None:
        super().__init__(inner)
        self._tuned = tuned
        self._swing = Swing()
        self._designed = tuned.gains
        self._halvings = 0
        # Samples since it was last found to swing, and how strong the gains were.
        self._since, self._swung = math.inf, math.inf

    @property
    def gains(self) -> Gains:
        """In use."""
        return self._tuned.gains

    @property
    def is_lowered(self) -> bool:
        """Whether gains are smaller than designed: with the model in use it has swung."""
        return self._halvings > 0

    @property
    def is_swinging(self) -> bool:
        """Whether it was just found to: what moves now is the loop's own doing."""
        return self._since < SWINGS_SAMPLES

    def retune(self, gains: Gains) -> None:
        """Those of another design, or less if as much as that has just swung."""
        self._designed = gains
        self._swing.begin()
        if self._since > CALM_SAMPLES:
            self._swung = math.inf
        halvings = 0
        while halvings < HALVINGS_MAX and strength(gains) * 0.5**halvings > LESS * self._swung:
            halvings += 1
        self._lower(halvings)

    def begin(self) -> None:
        """The target is another one: that is no wave."""
        self._swing.begin()

    def step(self, sample: Sample) -> ControlStep:
        if self.is_swinging:
            # What a loop does itself is no outlier, and the median of a swing is one of its ends.
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
        # From the top of a wave, far beyond the knee perhaps, the way back is long with less.
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
    """By how much a sudden error of 1 msg/s moves the prefetch, at most."""
    return abs(gains.proportional) + abs(gains.integral) + abs(gains.derivative)
