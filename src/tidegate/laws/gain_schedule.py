"""Gain scheduling: the gains of the learned profile that is nearest to the current workload.

    distance = max |ln(feature / the profile's)| over the features that both know

Twice as large and half as large are equally far, because message size, publishers and handling time
differ by factors. The schedule changes to another profile only if that is clearly nearer, so that a
workload between two profiles does not alternate. Far from all profiles it uses the most cautious
gains. These belong to the plant with the largest response to a unit of prefetch, b/(1−a). On every
other learned plant they are slower, but not unstable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.laws.least_squares import Model
from tidegate.laws.pole_placement import Gains

# How much nearer another profile must be: a factor of 1.25.
CLEARLY = math.log(1.25)
# Beyond a factor of four, no profile describes the workload.
REACH = math.log(4.0)


@dataclass(frozen=True)
class Profile:
    """A workload for which a model was identified."""

    name: str
    # Each above 0, such as message_bytes, publishers, handler_ms.
    features: Mapping[str, float]
    model: Model
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
