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
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple, Protocol

from tidegate.core.prefetch import ConsumerSample, PrefetchModel
from tidegate.laws.prefetch.design import ControllerType, Gains
from tidegate.laws.prefetch.fit import LinearModel


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

    def step(self, sample: ControlSample) -> ControlStep:
        if sample.rate_per_s is None or not sample.is_usable or sample.is_starved:
            return hold_step(sample, self._output)
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

    def step(self, sample: ControlSample) -> ControlStep:
        if sample.rate_per_s is None or not sample.is_usable or sample.is_starved:
            return hold_step(sample, self._output)
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


class TunableGains(Protocol):
    """A controller whose gains can be changed while it runs."""

    @property
    def gains(self) -> Gains:
        """The gains in use."""

    def retune(self, gains: Gains) -> None:
        """Use other gains from the next step on."""


def make_controller(gains: Gains, start: float) -> Tunable:
    """Return the controller for these gains, starting from the output that is set now."""
    if not math.isfinite(start):
        raise ValueError(f"a controller starts from what is set now, not from {start}")
    return (
        Proportional(gains, start) if gains.kind is ControllerType.P else Incremental(gains, start)
    )


def hold_step(sample: ControlSample, output: float) -> ControlStep:
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
        mode=ControllerMode.HELD,
        notes=("starved",) if sample.is_starved else (),
    )


# -- control_step --
# The interface of controllers: a `ControlSample` in, a `ControlStep` with all its terms out.
#
# Controllers are composed of layers. Each layer does one thing and passes the rest on:
#
#     SigmaDelta(Clamp(ManualControl(Fallback(Hampel(Incremental(gains, 10.0)), 20.0, 10.0)), 1,
#     360))
#
# If an outer layer sets another value than the inner layer proposed, it reports it with `track`,
# and the inner layer continues from there. This one mechanism gives anti-windup and bumpless
# transfer from manual to automatic. The module uses the standard library only, because it runs in
# nodes and workers.


class ControlSample(NamedTuple):
    """One sample of a consumer over the last sampling interval."""

    # Time in seconds on the loop's clock.
    at: float
    # y: the measured arrival rate. `None` or NaN means that nothing was measured.
    rate_per_s: float | None
    # The target rate. NaN means that there is none yet.
    target_per_s: float
    # When the rate was measured. `None` means now.
    measured_at: float | None = None
    # The queue had nothing to deliver, so a low rate is not due to the prefetch.
    starved: bool = False
    # The rate that a model predicts for now. `None` means that there is no prediction.
    expected_per_s: float | None = None
    # Change of the rate if one more round of credit falls into the interval; 0 means not known.
    round_per_s: float = 0.0

    @property
    def is_starved(self) -> bool:
        """Whether a higher prefetch would not reduce the error."""
        rate = self.rate_per_s
        return self.starved and rate is not None and rate <= self.target_per_s

    @property
    def is_usable(self) -> bool:
        """Whether the sample has a finite rate and a finite target."""
        rate = self.rate_per_s
        return rate is not None and math.isfinite(rate) and math.isfinite(self.target_per_s)

    @property
    def taken_at(self) -> float:
        return self.at if self.measured_at is None else self.measured_at


class ControllerMode(StrEnum):
    """How the output of a step was chosen."""

    AUTOMATIC = "automatic"  # by the controller
    HELD = "held"  # no new measurement: the output is unchanged
    FALLBACK = "fallback"  # no measurement for a long time: a fixed value
    MANUAL = "manual"  # by a human


class Saturation(StrEnum):
    """The limit of the actuator that the output has reached."""

    NONE = ""
    LOW = "low"
    HIGH = "high"


class ControlStep(NamedTuple):
    """The output to set, and every term that led to it."""

    at: float
    target_per_s: float
    # The rate as measured, and as the controller used it: without outliers, within the deadband.
    measured_per_s: float
    used_per_s: float
    # The target minus the used rate.
    error_per_s: float
    # The terms of `wanted` in units of the actuator; they add up to it unless a layer overrides it.
    proportional: float
    integral: float
    derivative: float
    # The output before limits, after limits, and in whole units if the actuator needs them.
    wanted: float
    level: float
    output: float
    saturated: Saturation = Saturation.NONE
    mode: ControllerMode = ControllerMode.AUTOMATIC
    # What layers did, such as "outlier", "deadband" or "redesigned: …".
    notes: tuple[str, ...] = ()

    def set_to(self, output: float) -> ControlStep:
        """Return the same step with another output."""
        return self._replace(level=output, output=output)

    def noted(self, note: str) -> ControlStep:
        return self._replace(notes=(*self.notes, note))


class Controller(Protocol):
    """Controls one actuator."""

    def step(self, sample: ControlSample) -> ControlStep:
        """Return what to set now."""

    def track(self, output: float) -> None:
        """Continue from `output`, which was set instead of the last step's output."""

    def restart(self, output: float) -> None:
        """Continue from `output` after a pause, without the measurements from before it."""


class Layer:
    """A controller around another one; passes every call on by default."""

    def __init__(self, inner: Controller) -> None:
        self._inner = inner

    def track(self, output: float) -> None:
        self._inner.track(output)

    def restart(self, output: float) -> None:
        self._inner.restart(output)


# -- actuation --
# Layers between the controller's output and the actuator: limits, manual values, whole numbers.
#
#     Clamp          level = min(max(wanted, low), high), and the controller continues from the
#     level
#     ManualControl  a human's value, and the controller continues from it after release
#     SigmaDelta     n(k) = ⌊u(k) + c(k)⌋,  c(k+1) = c(k) + u(k) − n(k): the mean of n is that of u
#     Hysteresis     n(k) = n(k−1) while |u(k) − n(k−1)| ≤ max(1, n/20), else u(k) rounded
#     Dither         u(k) ± amplitude, by a fixed pseudo-random sequence
#
# One step of an integer prefetch is worth b/(1−a) msg/s. In the paper that is 80 msg/s, which
# explains much of the ±95 msg/s that it measured. Sigma–delta modulation spreads the fraction over
# time: 5.25 becomes 5, 5, 5, 6. It spreads the fraction more finely if the actuator is set several
# times within a sampling interval (`Modulator.next` at every tick).
#
# The goal "keep up" needs no fraction, because messages wait in the consumer. RabbitMQ pauses for
# some milliseconds at each change of a prefetch, so this goal uses hysteresis instead.


# RabbitMQ reads a prefetch of 0 as unlimited.
PREFETCH_MIN = 1
# Distance from the level at which another number is set: absolute, and as a fraction of the number.
STEADY_WITHIN, STEADY_PART = 1.0, 0.05
# x⁷ + x⁶ + 1: a maximal sequence that visits each nonzero pattern of seven bits once per period.
SEQUENCE_START, SEQUENCE_LENGTH = 0b1111111, 127


class Clamp(Layer):
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

    def step(self, sample: ControlSample) -> ControlStep:
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


class Hysteresis:
    """Turns a level into a whole number that changes only when the level is clearly off."""

    def __init__(self) -> None:
        self._whole = 0

    def next(self, level: float) -> int:
        """Return the number to set until the next tick."""
        if abs(level - self._whole) > max(STEADY_WITHIN, STEADY_PART * self._whole):
            self._whole = round(level)
        return max(self._whole, PREFETCH_MIN)


class ManualControl(Layer):
    """Sets a human's value while there is one; afterwards the controller continues from it."""

    def __init__(self, inner: Controller) -> None:
        super().__init__(inner)
        self._output: float | None = None

    @property
    def is_manual(self) -> bool:
        return self._output is not None

    def set_manual(self, output: float) -> None:
        """Set this value from the next step on.

        Raises `ValueError` if it is not finite.
        """
        if not math.isfinite(output):
            raise ValueError(f"set by hand to a number, not to {output}")
        self._output = output

    def release(self) -> None:
        """Let the controller continue from the manual value in the next step."""
        self._output = None

    def step(self, sample: ControlSample) -> ControlStep:
        step = self._inner.step(sample)
        if self._output is None:
            return step
        self._inner.track(self._output)
        return step.set_to(self._output)._replace(mode=ControllerMode.MANUAL)


class SigmaDelta(Layer):
    """Outputs a whole number in each step. The controller keeps its fraction."""

    def __init__(self, inner: Controller) -> None:
        super().__init__(inner)
        self._modulator = Modulator()

    def step(self, sample: ControlSample) -> ControlStep:
        step = self._inner.step(sample)
        return step._replace(output=float(self._modulator.next(step.level)))


class Dither(Layer):
    """Moves the output slightly so that a model can be learned; the controller is not told."""

    def __init__(self, inner: Controller, amplitude: float) -> None:
        super().__init__(inner)
        self.amplitude = amplitude
        self._bits = SEQUENCE_START

    def step(self, sample: ControlSample) -> ControlStep:
        step = self._inner.step(sample)
        if self.amplitude == 0.0:
            return step
        up = self._bits & 1
        self._bits = (self._bits >> 1) | ((self._bits ^ (self._bits >> 1)) & 1) << 6
        moved = step.level + (self.amplitude if up else -self.amplitude)
        return step.set_to(moved).noted("dithered")


# -- prefetch_controller --
# The complete controller of a prefetch, with every layer that practice needs in the right order.
#
#     SigmaDelta( Clamp( ManualControl( Fallback( Hampel( Deadband( P | PI | PID ))))))
#
# The limits are outside, so that neither a manual value nor a fallback exceeds them. The fraction
# is spread outermost, so that no inner layer sees whole numbers. An actuator that is set several
# times within a sampling interval uses `level` and spreads it itself (`whole=False` and a
# `Modulator`).


@dataclass(frozen=True)
class ControllerSettings:
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

    def __init__(
        self, gains: Gains, start: float, practice: ControllerSettings | None = None
    ) -> None:
        practice = practice or ControllerSettings()
        # For code that changes gains while the controller runs: adaptation and gain schedules.
        self.tunable = make_controller(gains, start)
        inner: Controller = self.tunable
        if practice.deadband_per_s > 0.0:
            inner = Deadband(inner, practice.deadband_per_s)
        if practice.outlier_window > 0:
            inner = Hampel(inner, practice.outlier_window)
        inner = Fallback(inner, float(practice.fallback), practice.patience_s)
        self.manual = ManualControl(inner)
        inner = Clamp(self.manual, practice.low, practice.high)
        self._outermost: Controller = SigmaDelta(inner) if practice.whole else inner

    def step(self, sample: ControlSample) -> ControlStep:
        """Return what to set now."""
        return self._outermost.step(sample)

    def track(self, output: float) -> None:
        """Continue from a value that was set from outside all layers."""
        self._outermost.track(output)

    def restart(self, output: float) -> None:
        """Continue from `output` after a pause."""
        self._outermost.restart(output)


# -- measuring --
# Layers between the measurement and the controller: outliers, small errors, missing samples.
#
#     Hampel      |y − median| > 3 · max(1.4826 · MAD, round/2) of the last few: use the median
#                 instead, unless a model predicted y
#     Deadband    |target − y| ≤ width: no error
#     Fallback    no new sample for `patience_s`: a fixed output, and back without a bump
#
# A true step looks like an outlier until most of the window has seen it. A window of five accepts
# it two samples late, which is the lateness that designs tolerate (`Requirement.late_samples`).
#
# Credit that circulates in bursts gives a short sample two rounds or three, and nothing in between.
# For rates such as 136, 136, 136, 190 the median absolute deviation is 0, and every rarer value
# would be an outlier. The loop would then hold the median, which is not the mean. Half a round
# bounds the standard deviation of two such values, so the threshold is at least three times that.


# Ratio of the standard deviation to the median absolute deviation of a normal distribution.
NORMAL = 1.4826
# Fraction of the median. If rates never vary, every change would otherwise be an outlier.
SPREAD_MIN = 0.02


class Hampel(Layer):
    """Replaces a rate that is far from its neighbours by their median."""

    def __init__(self, inner: Controller, window: int = 5, deviations: float = 3.0) -> None:
        super().__init__(inner)
        if window < 3 or window % 2 == 0:
            raise ValueError(f"a window of {window} has no middle to compare with: take 3, 5 or 7")
        self._recent: deque[float] = deque(maxlen=window)
        self._deviations = deviations

    def step(self, sample: ControlSample) -> ControlStep:
        # A starved sample does not show the usual rate.
        if sample.rate_per_s is None or not sample.is_usable or sample.starved:
            return self._inner.step(sample)
        rate = sample.rate_per_s
        self._recent.append(rate)
        middle = median(self._recent)
        spread = NORMAL * median(abs(one - middle) for one in self._recent)
        spread = max(spread, SPREAD_MIN * abs(middle), 0.5 * sample.round_per_s)
        bound = self._deviations * spread
        # Two samples cannot show an outlier. A rate that the model predicts is none either: most of
        # a step that the controller caused itself was expected.
        expected = sample.expected_per_s
        is_explained = expected is not None and abs(rate - expected) <= 0.5 * abs(rate - middle)
        if len(self._recent) < 3 or abs(rate - middle) <= bound or is_explained:
            return self._inner.step(sample)
        step = self._inner.step(sample._replace(rate_per_s=middle))
        return step._replace(measured_per_s=rate).noted("outlier")

    def restart(self, output: float) -> None:
        self._recent.clear()
        super().restart(output)


class Deadband(Layer):
    """Leaves the output unchanged while the rate is close enough to its target."""

    def __init__(self, inner: Controller, width_per_s: float) -> None:
        super().__init__(inner)
        if not width_per_s >= 0.0:
            raise ValueError(f"a deadband is 0 msg/s wide or more, not {width_per_s}")
        self._width_per_s = width_per_s

    def step(self, sample: ControlSample) -> ControlStep:
        rate = sample.rate_per_s
        if rate is None or not abs(sample.target_per_s - rate) <= self._width_per_s:
            return self._inner.step(sample)
        step = self._inner.step(sample._replace(rate_per_s=sample.target_per_s))
        return step._replace(measured_per_s=rate).noted("deadband")


class Fallback(Layer):
    """Holds the output while measurements are missing, and sets a fixed value when that lasts."""

    def __init__(self, inner: Controller, output: float, patience_s: float) -> None:
        super().__init__(inner)
        if not (math.isfinite(output) and patience_s >= 0.0):
            raise ValueError(f"fall back to a number after 0 s or more: {output}, {patience_s} s")
        self._output = output
        self._patience_s = patience_s
        # When the newest measurement was taken. `None` means that there was none yet.
        self._taken_at: float | None = None
        self._waiting_since: float | None = None
        self._fallen = False

    def step(self, sample: ControlSample) -> ControlStep:
        # Count each measurement once: a sensor that repeats its last value has stopped.
        is_new = self._taken_at is None or sample.taken_at > self._taken_at
        if sample.is_usable and is_new:
            self._taken_at = sample.taken_at
            self._waiting_since = None
            self._fallen = False
            return self._inner.step(sample)
        if self._waiting_since is None:
            self._waiting_since = sample.at if self._taken_at is None else self._taken_at
        if sample.at - self._waiting_since < self._patience_s:
            return self._inner.step(sample._replace(rate_per_s=None))
        if not self._fallen:
            self._fallen = True
            self._inner.restart(self._output)
        silent_s = sample.at - self._waiting_since
        return hold_step(sample, self._output)._replace(
            mode=ControllerMode.FALLBACK, notes=(f"nothing was measured for {silent_s:g} s",)
        )


# -- gain_schedule --
# Gain scheduling: the gains of the learned profile that is nearest to the current workload.
#
#     distance = max |ln(feature / the profile's)| over the features that both know
#
# Twice as large and half as large are equally far, because message size, publishers and handling
# time differ by factors. The schedule changes to another profile only if that is clearly nearer, so
# that a workload between two profiles does not alternate. Far from all profiles it uses the most
# cautious gains. These belong to the plant with the largest response to a unit of prefetch,
# b/(1−a). On every other learned plant they are slower, but not unstable.


# How much nearer another profile must be: a factor of 1.25.
CLEARLY = math.log(1.25)
# Beyond a factor of four, no profile describes the workload.
REACH = math.log(4.0)


@dataclass(frozen=True)
class WorkloadProfile:
    """A workload for which a model was identified."""

    name: str
    # Each above 0, such as message_bytes, publishers, handler_ms.
    features: Mapping[str, float]
    model: LinearModel
    gains: Gains

    def distance(self, features: Mapping[str, float]) -> float:
        """Return the distance of a workload; infinite if no feature can be compared."""
        both = [
            abs(math.log(features[name] / mine))
            for name, mine in self.features.items()
            if features.get(name, 0.0) > 0.0
        ]
        return max(both, default=math.inf)


class GainSchedule:
    """Chooses a profile and remembers the choice."""

    def __init__(self, profiles: Sequence[WorkloadProfile]) -> None:
        if not profiles:
            raise ValueError("a schedule needs at least one profile: identify a model first")
        for profile in profiles:
            if not all(value > 0.0 for value in profile.features.values()):
                raise ValueError(f"features of profile {profile.name} must be above 0")
        self._profiles = list(profiles)
        self._cautious = max(profiles, key=lambda one: one.model.b / (1.0 - one.model.a))
        self._chosen: WorkloadProfile | None = None

    def choose(self, features: Mapping[str, float]) -> WorkloadProfile:
        """Return the profile whose gains to use now."""
        nearest = min(self._profiles, key=lambda one: one.distance(features))
        distance = nearest.distance(features)
        if distance > REACH:
            nearest = self._cautious
        elif self._chosen is not None:
            stays = self._chosen.distance(features)
            if stays <= REACH and distance + CLEARLY >= stays:
                nearest = self._chosen
        self._chosen = nearest
        return nearest


# -- workload_schedule --
# The choice among learned models: the model that fits the current workload, while it runs.
#
#     worth = rate / (prefetch − held)        Little's law: the rate that a unit of prefetch gives
#     now
#
# Larger messages, a slower handler or a longer round trip reduce the worth of a unit. So the worth
# tells workloads apart without any description of them. The nearest model is chosen
# (`GainSchedule`), and another one only if it has been clearly nearer for several samples. The
# worth is not measured while the queue is starved, while the handler is busy throughout, or beyond
# the knee. The module uses the standard library only, because it runs in nodes and workers.


WORTH = "worth_per_s"
# Number of samples in the median, and the number in a row that must agree on another model.
SAMPLES_LOOKED_AT = 5
SAMPLES_AGREED = 3
# A handler that is busy for more of the time hides the round trip.
BUSY_MAX = 0.9
# Only the model is chosen here; the caller designs the gains for it.
_NO_GAINS = Gains(ControllerType.PI, 0.0)


class WorkloadSchedule:
    """Learned models by name, and the one in use."""

    def __init__(self, models: Mapping[str, PrefetchModel]) -> None:
        self._models = dict(models)
        self._schedule = GainSchedule(
            [
                WorkloadProfile(
                    name, {WORTH: model.worth_per_s}, LinearModel(model.a, model.b, 0.0), _NO_GAINS
                )
                for name, model in self._models.items()
            ]
        )
        self._recent: deque[float] = deque(maxlen=SAMPLES_LOOKED_AT)
        # Before the first sample, the most cautious model.
        self.name = self._schedule.choose({}).name
        self._agreed = 0
        self._candidate = self.name

    @property
    def model(self) -> PrefetchModel:
        """The model in use."""
        return self._models[self.name]

    def observe(self, sample: ConsumerSample, prefetch: float) -> bool:
        """Add a sample measured with this prefetch, and return whether the model in use changed."""
        in_flight = prefetch - (sample.held or 0.0)
        is_telling = not sample.starved and (sample.busy is None or sample.busy <= BUSY_MAX)
        if not (is_telling and in_flight > 0.0 and sample.arrived_per_s > 0.0):
            return False
        self._recent.append(sample.arrived_per_s / in_flight)
        worth_per_s = median(self._recent)
        if len(self._recent) < SAMPLES_AGREED or not math.isfinite(worth_per_s):
            return False
        chosen = self._schedule.choose({WORTH: worth_per_s}).name
        self._agreed = self._agreed + 1 if chosen == self._candidate else 1
        self._candidate = chosen
        if chosen == self.name or self._agreed < SAMPLES_AGREED:
            return False
        self.name = chosen
        return True
