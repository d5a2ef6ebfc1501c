"""Which of several learned models fits the workload at hand, while it runs.

    worth = rate / (prefetch − held)        Little's law: what a unit of prefetch brings now

Larger messages, a slower handler or a longer way make a unit worth less, so what it brings tells
workloads apart without asking anybody what they are. The nearest model is chosen (gain_schedule),
and another one only if it has been clearly nearer for several samples. A starved queue, a handler
that is busy throughout and a prefetch beyond the knee say nothing of it.
Standard library only: it runs in nodes and workers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from tidegate.core.prefetch import ConsumerSample, PrefetchModel
from tidegate.laws.gain_schedule import GainSchedule, Profile
from tidegate.laws.least_squares import Model
from tidegate.laws.pole_placement import Gains, Kind

WORTH = "worth_per_s"
# The middle of so many counts, and so many in a row must say the same.
SAMPLES_LOOKED_AT = 5
SAMPLES_AGREED = 3
# A handler at work for more of the time says nothing of the round trip.
BUSY_MAX = 0.9
# Models are chosen; gains are designed for them by who steers.
_NO_GAINS = Gains(Kind.PI, 0.0)


class WorkloadSchedule:
    """Learned models by name, and which one is in use."""

    def __init__(self, models: Mapping[str, PrefetchModel]) -> None:
        self._models = dict(models)
        self._schedule = GainSchedule(
            [
                Profile(name, {WORTH: model.worth_per_s}, Model(model.a, model.b, 0.0), _NO_GAINS)
                for name, model in self._models.items()
            ]
        )
        self._recent: deque[float] = deque(maxlen=SAMPLES_LOOKED_AT)
        # Before anything was seen, the most cautious one.
        self.name = self._schedule.choose({}).name
        self._agreed = 0
        self._candidate = self.name

    @property
    def model(self) -> PrefetchModel:
        """The one to run with."""
        return self._models[self.name]

    def see(self, sample: ConsumerSample, prefetch: float) -> bool:
        """A sample with this prefetch; whether another model is to be run with from now on."""
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
