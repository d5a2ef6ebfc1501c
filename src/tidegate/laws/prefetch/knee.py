"""Knee tracking during a climb: the prefetch of the knee, and the ceiling of the rate beyond it.

    ceiling = the largest mean of three rates,   knee = the mean of their prefetches

Beyond the knee of a consumer more prefetch gives no more rate. A controller whose target is above
the ceiling climbs to its limit. When the target comes within reach, it would have to return all the
way at the pace of its design. This is windup in the plant, which no clamp of the integral detects.
But the rate there is that of the knee, so the controller can return to the knee at once, without a
jump of the rate.

If the rate jumps after more prefetch had no effect for a while, the consumer has changed, for
example because its handler is fast again. The prefetch at that moment is no knee.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tidegate.core.prefetch import ConsumerSample
from tidegate.laws.prefetch.controller import (
    PREFETCH_MIN,
    Controller,
    ControllerMode,
    ControlSample,
    ControlStep,
    Layer,
    Saturation,
    TunableGains,
)
from tidegate.laws.prefetch.design import Gains

if TYPE_CHECKING:
    from tidegate.laws.prefetch.model import ActiveModel


# Number of rates in the mean that counts.
MEAN_OF = 3
# Factors of a rise and of a fall that exceed noise.
ROSE, FELL = 1.05, 1.2
# How far beyond the knee the prefetch must be before the loop reacts. The knee seen during a climb
# gives nearly the same rate, so it may be closer.
KNEE_BEYOND, KNEE_BEYOND_AT_LEAST = 1.25, 1.0
NEAR, NEAR_AT_LEAST = 1.1, 0.5
# Samples beyond the knee that are no coincidence.
FLAT_SAMPLES = 3


class KneeTracker:
    """The climb since the rate was last at its target."""

    def __init__(self) -> None:
        # Pairs of prefetch and rate.
        self._recent: deque[tuple[float, float]] = deque(maxlen=MEAN_OF)
        # msg/s. NaN means that nothing was measured yet.
        self.ceiling_per_s = math.nan
        self._knee = math.nan
        # Samples in a row beyond the knee without a higher rate.
        self._flat = 0
        # Whether the rate rose after that.
        self.has_jumped = False
        # Prefetch and rate at the beginning.
        self.foot: tuple[float, float] | None = None

    @property
    def rate_per_s(self) -> float:
        """The mean of the last few rates. NaN means that there are none."""
        return _mean_or_nan([rate for _, rate in self._recent])

    def observe(self, prefetch: float, rate_per_s: float) -> None:
        """Add a rate and the prefetch with which it was measured."""
        self._recent.append((prefetch, rate_per_s))
        if self.foot is None:
            self.foot = (prefetch, rate_per_s)
        mean = self.rate_per_s
        prefetch = _mean_or_nan([prefetch for prefetch, _ in self._recent])
        if not mean <= ROSE * self.ceiling_per_s:
            self.ceiling_per_s = mean
            self.has_jumped = self.has_jumped or self.is_flat
            if not self.has_jumped:
                self._knee = prefetch
            self._flat = 0
        elif mean < self.ceiling_per_s / FELL and prefetch >= self._knee:
            # Less rate for the same prefetch: a longer round trip or a slower handler. Earlier
            # samples no longer apply.
            self.ceiling_per_s, self._knee, self._flat = mean, prefetch, 0
        elif self.knee_below(prefetch) is not None:
            self._flat += 1

    @property
    def is_flat(self) -> bool:
        """Whether more prefetch gave no more rate for a while; false for a loop that oscillates."""
        return self._flat >= FLAT_SAMPLES

    @property
    def knee(self) -> float:
        """The prefetch of the knee. NaN means that nothing was measured yet."""
        return self._knee

    def knee_below(self, prefetch: float) -> float | None:
        """Return the prefetch that gives the same rate, if `prefetch` is beyond it, else `None`."""
        return self._knee if prefetch > NEAR * self._knee + NEAR_AT_LEAST else None

    def reset(self) -> None:
        """Reset because the target was reached; a new climb may follow."""
        self.ceiling_per_s = self._knee = math.nan
        self._recent.clear()
        self._flat = 0
        self.has_jumped = False
        self.foot = None


def clearly_below(prefetch: float, knee: float) -> float | None:
    """Return the knee, at least 1, if the prefetch is beyond it by more than noise, else `None`."""
    knee = max(knee, float(PREFETCH_MIN))
    return knee if prefetch > KNEE_BEYOND * knee + KNEE_BEYOND_AT_LEAST else None


def _mean_or_nan(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


# -- plateau --
# Plateau detection: where more prefetch brings no more rate, seen from outside the consumer.
#
#     answer = (rate / rate at the knee − 1) / (prefetch / prefetch at the knee − 1)
#     answer < ½, beyond noise, for three samples or more     a plateau: back to the knee
#
# A consumer below its knee has an answer of 1, on any line: behind a round trip twice as long a
# unit of prefetch is worth half, but half as much again still gives half as much again. A handler
# at its limit has an answer of 0. The detector does not use the model, because the model's
# prediction of this rate is in doubt. A limit from the model (a multiple of rate / worth) would
# reduce the prefetch of every consumer that responds less, without end.
#
# The knee is where the rate last rose by as much as the prefetch explains. Going back there costs
# nothing, since the rate is the same. Almost nothing then waits in the consumer, so when its
# handler is fast again, the rate is close to its former value. The prefetch stays there until the
# rate moves, which on a line it does at once. After `HELD_SAMPLES` the climb is tried again,
# because noise may have been mistaken for a plateau.
#
# Noise is the counting noise or one round of credit more or less, the larger of the two. A consumer
# that keeps messages for longer than some samples therefore never counts as being on a plateau.


# How far beyond the knee the prefetch must have been.
PLATEAU_BEYOND, PLATEAU_BEYOND_AT_LEAST = 1.5, 1.0
# A smaller answer is a plateau: halfway between a line and a plateau.
ANSWER_MIN = 0.5
# Samples beyond the knee that are needed at least, and that are averaged at most.
SAMPLES_MIN, SAMPLES_MAX = 3, 10
DEVIATIONS = 3.0
# Multiple of the prefetch at the knee: a handler with just enough messages runs dry at times.
STOCK = 1.1
# Samples until the climb is tried again.
HELD_SAMPLES = 20


class PlateauSample(NamedTuple):
    """A prefetch and the rate that it gave."""

    prefetch: float
    rate_per_s: float


class PlateauDetector:
    """The plateau of one consumer whose rate is below its target."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset because the target was reached; a new climb may follow."""
        self._recent: deque[PlateauSample] = deque(maxlen=MEAN_OF)
        self._knee: PlateauSample | None = None
        self._begin_climb()

    def _begin_climb(self) -> None:
        self._beyond: deque[PlateauSample] = deque(maxlen=SAMPLES_MAX)
        # More prefetch than this gives no more rate. Infinite means not known.
        self.bound = math.inf
        # Whether a plateau was detected and the rate has not moved since.
        self.is_seen = False
        self._held = 0
        # Samples in which the messages held beyond the knee are worked off and nothing arrives.
        self._emptying = 0

    def observe(self, prefetch: float, rate_per_s: float, interval_s: float) -> None:
        """Add a rate below its target and the prefetch with which it was measured."""
        if self._emptying > 0:
            self._emptying -= 1
            return
        sample = PlateauSample(prefetch, rate_per_s)
        self._recent.append(sample)
        if len(self._recent) < MEAN_OF:
            return
        mean = _mean_sample(self._recent)
        knee = self._knee
        if knee is None:
            self._knee = mean
            return
        if _has_risen(knee, mean) or _has_fallen(knee, mean):
            # A change while the prefetch is held or falls is not due to the prefetch, so the knee
            # stays.
            is_climb = math.isinf(self.bound) and _has_risen(knee, mean)
            self._knee = mean if is_climb else knee._replace(rate_per_s=mean.rate_per_s)
            self._begin_climb()
            return
        self._try_anew()
        if prefetch > PLATEAU_BEYOND * knee.prefetch + PLATEAU_BEYOND_AT_LEAST:
            self._beyond.append(sample)
            if self._is_flat(knee, interval_s):
                self._hold(knee, interval_s)
        else:
            self._beyond.clear()

    def _is_flat(self, knee: PlateauSample, interval_s: float) -> bool:
        seconds = len(self._beyond) * interval_s
        if len(self._beyond) < SAMPLES_MIN or not (seconds > 0.0 and knee.rate_per_s > 0.0):
            return False
        now = _mean_sample(self._beyond)
        noise_per_s = max(math.sqrt(now.rate_per_s * seconds), now.prefetch) / seconds
        at_most_per_s = now.rate_per_s + DEVIATIONS * noise_per_s
        answer = (at_most_per_s / knee.rate_per_s - 1.0) / (now.prefetch / knee.prefetch - 1.0)
        return answer < ANSWER_MIN

    def _hold(self, knee: PlateauSample, interval_s: float) -> None:
        now = _mean_sample(self._beyond)
        # The intersection of the line through the knee with the plateau, plus some stock.
        corner = knee.prefetch * max(now.rate_per_s / knee.rate_per_s, 1.0)
        self._knee = PlateauSample(corner, now.rate_per_s)
        self.bound, self.is_seen, self._held = STOCK * corner, True, 0
        surplus_s = (self._beyond[-1].prefetch - self.bound) / knee.rate_per_s
        self._emptying = 1 + int(max(surplus_s, 0.0) / interval_s)
        self._recent.clear()
        self._beyond.clear()

    def _try_anew(self) -> None:
        if math.isfinite(self.bound):
            self._held += 1
            if self._held >= HELD_SAMPLES:
                self.bound = math.inf


def _has_risen(knee: PlateauSample, mean: PlateauSample) -> bool:
    """Return whether the rate rose beyond noise and by as much as the prefetch explains."""
    explained = 1.0 + ANSWER_MIN * (mean.prefetch / knee.prefetch - 1.0)
    return mean.rate_per_s > max(ROSE, explained) * knee.rate_per_s


def _has_fallen(knee: PlateauSample, mean: PlateauSample) -> bool:
    """Return whether the rate is clearly lower for the same prefetch, as with a slower handler."""
    return mean.rate_per_s < knee.rate_per_s / FELL and mean.prefetch >= knee.prefetch


def _mean_sample(rungs: deque[PlateauSample]) -> PlateauSample:
    return PlateauSample(
        math.fsum(one.prefetch for one in rungs) / len(rungs),
        math.fsum(one.rate_per_s for one in rungs) / len(rungs),
    )


# -- way_back --
# Recovery from saturation: return to the knee as soon as the target is within reach.
#
# The knee is found in one of three ways:
# - If the messages that wait in the consumer are measured, the knee is the prefetch without them.
# - Otherwise it is the prefetch at which the climb last raised the rate (`KneeTracker`).
# - If the loop began beyond the knee, or climbed past it before the rate showed it, the model gives
#   the prefetch for the current rate.
#
# After a while beyond the knee, the rate is the ceiling, the largest that is possible. If the held
# messages are not measured, the loop does not stay there (`PlateauDetector`).


# A handler that is busy for more of the time hides the round trip.
BUSY_LEARNED_MAX = 0.9
# Fraction of the target below which the rate counts as short, and the samples that must agree.
SHORT_OF, SHORT_SAMPLES = 0.95, 3


class SaturationRecovery:
    """Recovery of one consumer that is controlled towards a rate."""

    def __init__(self, known: ActiveModel) -> None:
        self._known = known
        self._climb = KneeTracker()
        self._plateau = PlateauDetector()
        # Whether the rate has ever reached its target.
        self._has_arrived = False
        self._short = 0

    def is_beyond(self, level: float) -> bool:
        """Return whether the rate is at its ceiling and does not depend on this prefetch."""
        is_clearly = self._climb.is_flat and clearly_below(level, self._climb.knee) is not None
        return self._plateau.is_seen or is_clearly

    @property
    def bound(self) -> float:
        """The prefetch above which the rate does not rise. Infinite means not known."""
        return self._plateau.bound

    def knee(
        self,
        sample: ConsumerSample,
        target_per_s: float,
        level: float,
        expected_per_s: float | None,
    ) -> float | None:
        """Return the prefetch to continue from, or `None` if the loop need not return.

        It is the knee, if the level is beyond it and the target is within reach.
        """
        if sample.starved or math.isnan(target_per_s):
            return None
        self._climb.observe(level, sample.arrived_per_s)
        if self._climb.rate_per_s < target_per_s:
            if sample.held is None or sample.busy is None:
                self._plateau.observe(level, sample.arrived_per_s, sample.interval_s)
            return None
        knee = self._below(sample, level, expected_per_s)
        self._climb.reset()
        self._plateau.reset()
        self._has_arrived = True
        return knee

    def _below(
        self, sample: ConsumerSample, level: float, expected_per_s: float | None
    ) -> float | None:
        """Return the prefetch with the same rate, or `None` unless the level is far beyond it."""
        if sample.held is not None and sample.busy is not None:
            # Messages that wait behind a busy handler are not in flight.
            at_knee = level - sample.held if sample.busy > BUSY_LEARNED_MAX else level
            return clearly_below(level, at_knee)
        if expected_per_s is not None and expected_per_s <= ROSE * sample.arrived_per_s:
            # The rate responds as predicted, perhaps slowly: this is no knee.
            return None
        by_model = self._known.prefetch_for(sample.arrived_per_s)
        foot = self._climb.foot
        has_climbed = foot is not None and FELL * foot[1] < sample.arrived_per_s
        if not (self._has_arrived or has_climbed) and self._known.given is not None:
            # The loop began here and no climb was measured, so the model gives the knee.
            return clearly_below(level, by_model)
        seen = self._climb.knee_below(level)
        # A fast climb passes the knee before the rate shows it, and a recovered consumer has
        # another knee. The model is then better, if the climb began on its line.
        is_far = seen is not None and clearly_below(level, seen) is not None
        is_flat = is_far or self._short >= SHORT_SAMPLES
        if is_flat and (self._began_on_the_line or self._climb.has_jumped):
            return clearly_below(level, by_model) or seen
        return seen

    @property
    def _began_on_the_line(self) -> bool:
        if self._climb.foot is None:
            return False
        prefetch, rate_per_s = self._climb.foot
        aside = abs(self._known.prefetch_for(rate_per_s) - prefetch)
        return aside <= (KNEE_BEYOND - 1.0) * prefetch + KNEE_BEYOND_AT_LEAST

    def words_of_ceiling(self, step: ControlStep, wanted_per_s: float, *, is_kept_up: bool) -> str:
        """Describe the ceiling if the wanted rate cannot be reached; empty otherwise."""
        is_short = (
            (is_kept_up or self._plateau.is_seen or step.saturated is Saturation.HIGH)
            and step.mode is ControllerMode.AUTOMATIC
            and self._climb.rate_per_s < SHORT_OF * wanted_per_s
        )
        self._short = self._short + 1 if is_short else 0
        if self._short < SHORT_SAMPLES:
            return ""
        ceiling = f"the ceiling is about {self._climb.rate_per_s:.0f}/s"
        if is_kept_up:
            return f"{ceiling}: the handler is kept up with"
        return f"{ceiling}: more prefetch brings no more" if self._plateau.is_seen else ceiling


# -- swing --
# Oscillation detection: a loop that oscillates for ever is detected by its waves, and damped.
#
#     a wave       from where the error rises above 0 to where it does so again
#     it counts    mean |e| ≥ 2/π · A · target       as that of a sine whose amplitude is A
#     (Hägglund)
#                  highest − lowest level ≥ ½ · mean level
#                  mean |e| ≥ ½ · that of the wave before
#     oscillates   3 waves in a row, and each 2 more: gains are halved, down to 1/256
#
# A controller for a wrong model may be unstable on its plant. The loop does not run away, because
# limits and the knee bound it; it oscillates between them.
#
# Known methods for oscillating loops (Hägglund: the area of the error between its zeros; Miao and
# Seborg: the decay from wave to wave) tell this from three similar cases. Noise changes its sign as
# often, but the mean of a wave of noise is small. Credit in bursts makes the rate oscillate, but
# not the prefetch. A decaying disturbance halves from wave to wave.
#
# Smaller gains make any loop around a consumer stable, because a consumer itself is stable. They
# are slow, and stay until the loop is redesigned for a better model; the same gains would oscillate
# again.


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
OSCILLATING_SAMPLES, CALM_SAMPLES = 30, 100
# Fraction of the strength that oscillated below which gains are acceptable.
LESS = 0.95
OSCILLATES = "swings"


class OscillationDetector:
    """Detects the waves of one loop's error."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
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

    def observe(self, error_per_s: float, target_per_s: float, level: float) -> bool:
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


class GainReduction(Layer):
    """Halves the gains of a controller that oscillates, and keeps them below that strength."""

    def __init__(self, inner: Controller, tuned: TunableGains) -> None:
        super().__init__(inner)
        self._tuned = tuned
        self._swing = OscillationDetector()
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
        return self._since < OSCILLATING_SAMPLES

    def retune(self, gains: Gains) -> None:
        """Use the gains of another design, reduced if as strong gains have just oscillated."""
        self._designed = gains
        self._swing.reset()
        if self._since > CALM_SAMPLES:
            self._swung = math.inf
        halvings = 0
        while halvings < HALVINGS_MAX and peak_gain(gains) * 0.5**halvings > LESS * self._swung:
            halvings += 1
        self._lower(halvings)

    def begin(self) -> None:
        """Forget all waves after a change of the target, which is no wave."""
        self._swing.reset()

    def step(self, sample: ControlSample) -> ControlStep:
        if self.is_swinging:
            # Movements of the loop itself are no outliers, and the median of an oscillation is one
            # of its extremes.
            sample = sample._replace(expected_per_s=sample.rate_per_s)
        step = self._inner.step(sample)
        rate = sample.rate_per_s
        if rate is None or not sample.is_usable:
            return self._noted(step)
        self._since += 1
        if sample.starved or step.mode is not ControllerMode.AUTOMATIC:
            self._swing.reset()
        elif self._swing.observe(sample.target_per_s - rate, sample.target_per_s, step.level):
            return self._halve(step)
        return self._noted(step)

    def _halve(self, step: ControlStep) -> ControlStep:
        self._since, self._swung = 0, peak_gain(self.gains)
        if self._halvings == HALVINGS_MAX:
            return self._noted(step)
        self._lower(self._halvings + 1)
        # From the top of a wave, perhaps far beyond the knee, smaller gains would take long to
        # return.
        self._inner.track(self._swing.middle)
        step = step.set_to(self._swing.middle)
        return step.noted(f"{OSCILLATES}: gains halved, to 1/{2**self._halvings} of the design")

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


def peak_gain(gains: Gains) -> float:
    """Return the largest change of the prefetch that a sudden error of 1 msg/s causes."""
    return abs(gains.proportional) + abs(gains.integral) + abs(gains.derivative)
