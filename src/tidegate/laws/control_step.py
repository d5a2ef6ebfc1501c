"""What a controller sees and says: a sample in, a step with all its terms out.

Controllers are composed of layers, each of which does one thing and hands the rest on:

    SigmaDelta(Clamped(Manual(Fallback(Hampel(Pid(gains, start=10.0)), output=20.0)), 1, 360))

What an outer layer sets instead of what an inner one wanted, it tells by `track`, and the inner one
goes on from there: that is anti-windup, and manual to automatic without a bump, in one mechanism.
Standard library only: it runs in nodes and workers.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple, Protocol


class Sample(NamedTuple):
    """One consumer over the last sampling interval."""

    # Seconds, of the loop's own clock.
    at: float
    # y: the measured arrival rate. None or NaN: nothing was measured.
    rate_per_s: float | None
    # The goal. NaN: there is none yet.
    target_per_s: float
    # When the rate was measured; None: just now.
    measured_at: float | None = None
    # There was nothing to deliver, so a low rate is not the prefetch's doing.
    starved: bool = False
    # What a model says that the rate should be by now; None: nobody knows.
    expected_per_s: float | None = None
    # What one round of credit more or less within the interval makes of the rate; 0: not known.
    round_per_s: float = 0.0

    @property
    def is_starved(self) -> bool:
        """Whether a higher prefetch would do nothing for the error."""
        rate = self.rate_per_s
        return self.starved and rate is not None and rate <= self.target_per_s

    @property
    def is_usable(self) -> bool:
        """Whether there is something to steer by."""
        rate = self.rate_per_s
        return rate is not None and math.isfinite(rate) and math.isfinite(self.target_per_s)

    @property
    def taken_at(self) -> float:
        return self.at if self.measured_at is None else self.measured_at


class Mode(StrEnum):
    """Who decides."""

    AUTOMATIC = "automatic"  # the controller
    HELD = "held"  # nothing new was measured: as before
    FALLBACK = "fallback"  # nothing was measured for long: a fixed value
    MANUAL = "manual"  # a person


class Saturation(StrEnum):
    """Which limit of the actuator holds."""

    NONE = ""
    LOW = "low"
    HIGH = "high"


class ControlStep(NamedTuple):
    """What to set, and every term that led there."""

    at: float
    target_per_s: float
    # As measured, and as the controller took it: without outliers, within the deadband.
    measured_per_s: float
    used_per_s: float
    # target − used.
    error_per_s: float
    # The parts of `wanted`, in units of the actuator; their sum, unless a layer decided otherwise.
    proportional: float
    integral: float
    derivative: float
    # Before limits, after them, and in whole units if the actuator knows no other.
    wanted: float
    level: float
    output: float
    saturated: Saturation = Saturation.NONE
    mode: Mode = Mode.AUTOMATIC
    # What layers did: "outlier", "deadband", "redesigned: …".
    notes: tuple[str, ...] = ()

    def set_to(self, output: float) -> ControlStep:
        """The same step with another value to set."""
        return self._replace(level=output, output=output)

    def noted(self, note: str) -> ControlStep:
        return self._replace(notes=(*self.notes, note))


class Controller(Protocol):
    """Anything that steers one actuator."""

    def step(self, sample: Sample) -> ControlStep:
        """What to set now."""

    def track(self, output: float) -> None:
        """This was set instead of the last step's output: go on from there."""

    def restart(self, output: float) -> None:
        """This is set now, and what was measured before is long ago: go on from there."""


class Layer:
    """Hands everything on: what is the same in all layers."""

    def __init__(self, inner: Controller) -> None:
        self._inner = inner

    def track(self, output: float) -> None:
        self._inner.track(output)

    def restart(self, output: float) -> None:
        self._inner.restart(output)
