"""Gains for the workload at hand: of the profiles that were learned, the nearest one's.

    distance = max |ln(feature / the profile's)| over the features that both know

Twice as large and half as large are equally far: message size, publishers, handling time differ by
factors. Another profile is chosen only if it is clearly nearer, so that a workload between two does
not flicker. Far from all of them the most cautious gains are taken, those of the plant that answers
most to a unit of prefetch, b/(1−a): on every other learned one they are slower, and not unstable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.laws.least_squares import Model
from tidegate.laws.pole_placement import Gains

# How much nearer another profile must be: a factor of 1.25.
CLEARLY = math.log(1.25)
# Further from all profiles than a factor of four, nothing was learned.
REACH = math.log(4.0)


@dataclass(frozen=True)
class Profile:
    """A workload that a model was identified for."""

    name: str
    # Above 0 each, such as message_bytes, publishers, handler_ms.
    features: Mapping[str, float]
    model: Model
    gains: Gains

    def distance(self, features: Mapping[str, float]) -> float:
        """How far a workload is; infinitely, if nothing can be compared."""
        both = [
            abs(math.log(features[name] / mine))
            for name, mine in self.features.items()
            if features.get(name, 0.0) > 0.0
        ]
        return max(both, default=math.inf)


class GainSchedule:
    """Chooses, and remembers what it chose."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        if not profiles:
            raise ValueError("a schedule needs at least one profile: identify a model first")
        for profile in profiles:
            if not all(value > 0.0 for value in profile.features.values()):
                raise ValueError(f"features of profile {profile.name} must be above 0")
        self._profiles = list(profiles)
        self._cautious = max(profiles, key=lambda one: one.model.b / (1.0 - one.model.a))
        self._chosen: Profile | None = None

    def choose(self, features: Mapping[str, float]) -> Profile:
        """The profile whose gains to run with now."""
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
