"""Recovery from saturation: return to the knee as soon as the target is within reach.

The knee is found in one of three ways:
- If the messages that wait in the consumer are measured, the knee is the prefetch without them.
- Otherwise it is the prefetch at which the climb last raised the rate (`KneeTracker`).
- If the loop began beyond the knee, or climbed past it before the rate showed it, the model gives
  the prefetch for the current rate.

After a while beyond the knee, the rate is the ceiling, the largest that is possible. If the held
messages are not measured, the loop does not stay there (`PlateauDetector`).
"""

from __future__ import annotations

import math

from tidegate.core.prefetch import ConsumerSample
from tidegate.laws.climb import BEYOND, BEYOND_AT_LEAST, FELL, ROSE, Climb, clearly_below
from tidegate.laws.control_step import ControlStep, Mode, Saturation
from tidegate.laws.model_in_use import ModelInUse
from tidegate.laws.plateau import Plateau

# A handler that is busy for more of the time hides the round trip.
BUSY_LEARNED_MAX = 0.9
# Fraction of the target below which the rate counts as short, and the samples that must agree.
SHORT_OF, SHORT_SAMPLES = 0.95, 3


class WayBack:
    """Recovery of one consumer that is controlled towards a rate."""

    def __init__(self, known: ModelInUse) -> None:
        self._known = known
        self._climb = Climb()
        self._plateau = Plateau()
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
        return aside <= (BEYOND - 1.0) * prefetch + BEYOND_AT_LEAST

    def words_of_ceiling(self, step: ControlStep, wanted_per_s: float, *, is_kept_up: bool) -> str:
        """Describe the ceiling if the wanted rate cannot be reached; empty otherwise."""
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
