"""The choice among learned models: the model that fits the current workload, while it runs.

    worth = rate / (prefetch − held)        Little's law: the rate that a unit of prefetch gives now

Larger messages, a slower handler or a longer round trip reduce the worth of a unit. So the worth
tells workloads apart without any description of them. The nearest model is chosen (`GainSchedule`),
and another one only if it has been clearly nearer for several samples. The worth is not measured
while the queue is starved, while the handler is busy throughout, or beyond the knee. The module
uses the standard library only, because it runs in nodes and workers.
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
# Number of samples in the median, and the number in a row that must agree on another model.
SAMPLES_LOOKED_AT = 5
SAMPLES_AGREED = 3
# A handler that is busy for more of the time hides the round trip.
BUSY_MAX = 0.9
# Only the model is chosen here; the caller designs the gains for it.
_NO_GAINS = Gains(Kind.PI, 0.0)


class WorkloadSchedule:
    """Learned models by name, and the one in use."""

    def __init__(self, models: Mapping[str, PrefetchModel]) -> None:
        self._models = dict(models)
        self._schedule = GainSchedule(
            [
                Profile(name, {WORTH: model.worth_per_s}, Model(model.a, model.b, 0.0), _NO_GAINS)
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

    def see(self, sample: ConsumerSample, prefetch: float) -> bool:
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
