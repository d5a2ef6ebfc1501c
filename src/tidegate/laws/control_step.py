"""The interface of controllers: a `ControlSample` in, a `ControlStep` with all its terms out.

Controllers are composed of layers. Each layer does one thing and passes the rest on:

    SigmaDelta(Clamp(ManualControl(Fallback(Hampel(Incremental(gains, 10.0)), 20.0, 10.0)), 1, 360))

If an outer layer sets another value than the inner layer proposed, it reports it with `track`, and
the inner layer continues from there. This one mechanism gives anti-windup and bumpless transfer
from manual to automatic. The module uses the standard library only, because it runs in nodes and
workers.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple, Protocol


class Sample(NamedTuple):
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


class Mode(StrEnum):
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
    mode: Mode = Mode.AUTOMATIC
    # What layers did, such as "outlier", "deadband" or "redesigned: …".
    notes: tuple[str, ...] = ()

    def set_to(self, output: float) -> ControlStep:
        """Return the same step with another output."""
        return self._replace(level=output, output=output)

    def noted(self, note: str) -> ControlStep:
        return self._replace(notes=(*self.notes, note))


class Controller(Protocol):
    """Controls one actuator."""

    def step(self, sample: Sample) -> ControlStep:
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
