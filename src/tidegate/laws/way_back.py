"""The way back from beyond the knee: to the knee, as soon as the target is within reach.

Where what waits in the consumer can be seen, the knee is what does not wait there. Else it is where
the climb last saw the rate rise, or what the model says of this rate: of a loop that began beyond
the knee nobody has seen a climb, and a quick one has passed the knee before the rate says so.
Beyond it for a while, the rate is the ceiling: the most that can be had. Who sees nothing of what
waits in the consumer does not stay there (plateau).
"""

from __future__ import annotations

import math

from tidegate.core.prefetch import ConsumerSample
from tidegate.laws.climb import BEYOND, BEYOND_AT_LEAST, FELL, ROSE, Climb, clearly_below
from tidegate.laws.control_step import ControlStep, Mode, Saturation
from tidegate.laws.model_in_use import ModelInUse
from tidegate.laws.plateau import Plateau

# A handler at work for more of the time says nothing of the round trip.
BUSY_LEARNED_MAX = 0.9
# Of the target, below which a prefetch that brings no more is not enough; for so many samples.
SHORT_OF, SHORT_SAMPLES = 0.95, 3


class WayBack:
    """Of one consumer that is steered to a rate."""

    def __init__(self, known: ModelInUse) -> None:
        self._known = known
        self._climb = Climb()
        self._plateau = Plateau()
        # Whether the rate was ever at its target.
        self._has_arrived = False
        self._short = 0

    def is_beyond(self, level: float) -> bool:
        """Whether the rate says nothing of this prefetch: it is at its ceiling."""
        is_clearly = self._climb.is_flat and clearly_below(level, self._climb.knee) is not None
        return self._plateau.is_seen or is_clearly

    @property
    def bound(self) -> float:
        """What more than that brings nothing; infinite: nobody knows."""
        return self._plateau.bound

    def knee(
        self,
        sample: ConsumerSample,
        target_per_s: float,
        level: float,
        expected_per_s: float | None,
    ) -> float | None:
        """Where to go on from, if the target is within reach and the level is beyond the knee."""
        if sample.starved or math.isnan(target_per_s):
            return None
        self._climb.see(level, sample.arrived_per_s)
        if self._climb.rate_per_s < target_per_s:
            if sample.held is None or sample.busy is None:
                self._plateau.see(level, sample.arrived_per_s, sample.interval_s)
            return None
        knee = self._below(sample, level, expected_per_s)
        self._climb.end()
        self._plateau.end()
        self._has_arrived = True
        return knee

    def _below(
        self, sample: ConsumerSample, level: float, expected_per_s: float | None
    ) -> float | None:
        """The prefetch that gives the same rate, if ours lies clearly beyond it."""
        if sample.held is not None and sample.busy is not None:
            # What waits behind a busy handler is not in flight.
            at_knee = level - sample.held if sample.busy > BUSY_LEARNED_MAX else level
            return clearly_below(level, at_knee)
        if expected_per_s is not None and expected_per_s <= ROSE * sample.arrived_per_s:
            # The rate answers as it should, only slowly perhaps: that is no knee.
            return None
        by_model = self._known.prefetch_for(sample.arrived_per_s)
        foot = self._climb.foot
        has_climbed = foot is not None and FELL * foot[1] < sample.arrived_per_s
        if not (self._has_arrived or has_climbed) and self._known.given is not None:
            # Where it began, nobody has seen a climb; the model knows.
            return clearly_below(level, by_model)
        seen = self._climb.knee_below(level)
        # A quick climb has passed the knee before the rate says so, and a consumer that is itself
        # again has another one: the model knows better, if the climb began on its line.
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
        return aside <= (BEYOND - 1.0) * prefetch + BEYOND_AT_LEAST

    def words_of_ceiling(self, step: ControlStep, wanted_per_s: float, *, is_kept_up: bool) -> str:
        """How much can be had, if what is wanted cannot."""
        is_short = (
            (is_kept_up or self._plateau.is_seen or step.saturated is Saturation.HIGH)
            and step.mode is Mode.AUTOMATIC
            and self._climb.rate_per_s < SHORT_OF * wanted_per_s
        )
        self._short = self._short + 1 if is_short else 0
        if self._short < SHORT_SAMPLES:
            return ""
        ceiling = f"the ceiling is about {self._climb.rate_per_s:.0f}/s"
        if is_kept_up:
            return f"{ceiling}: the handler is kept up with"
        return f"{ceiling}: more prefetch brings no more" if self._plateau.is_seen else ceiling
