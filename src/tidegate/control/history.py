"""What the autoscaler remembers from sample to sample, and the situation that laws read.

The sample is believed, and no order: a scale-up happened when there are more replicas than before,
whoever ordered them. Inhibition counts anew from when a new replica serves, for only then does it
begin to show what it does.
"""

from __future__ import annotations

import math

from tidegate.control.reading import Reading
from tidegate.core.scaling import Scaling, ScalingPolicy
from tidegate.laws.wish import Situation

# Until a replica with a slot serves, before one was seen to start.
START_S = 5.0
# The arrival rate that laws remember things by forgets after so long.
ARRIVAL_S = 10.0
# Of the configured polling interval; a loop that was held up did not measure over hours.
PERIOD_MAX = 10.0
# More of them than this are as good as for ever.
PERIODS_MAX = 1000.0


class History:
    """When things changed, and what arrives on average."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._arrived_per_s = 0.0
        # Of the last sample: replicas that are to stay, and those that serve.
        self._count = 0
        self._serving = 0
        self._up_at = -math.inf
        self._ordered_at: float | None = None
        # How long the last ordered replica took to serve.
        self.lead_s: float | None = None
        # How many periods went by between the last two samples: a late one stands for several.
        self.periods = 1
        # When replicas that are to stay became more or fewer.
        self.changed_at = -math.inf
        # When there was last anything to do.
        self.busy_at = -math.inf

    def take(self, reading: Reading, scaling: Scaling) -> float:
        """Note what has changed since the last sample; the length of the period."""
        sample = reading.sample
        usual_s = scaling.polling_interval_s
        count, serving = reading.replicas, len(reading.serving)
        if reading.is_busy:
            self.busy_at = sample.at
        if self._at is None:
            self._arrived_per_s = sample.arrived_per_s
            passed_s = usual_s
        else:
            passed_s = sample.at - self._at
            if usual_s > 0.0:
                self.periods = round(min(max(passed_s / usual_s, 1.0), PERIODS_MAX))
            if not 0.0 < passed_s <= PERIOD_MAX * usual_s:
                passed_s = usual_s
            new = 1.0 - math.exp(-passed_s / ARRIVAL_S)
            self._arrived_per_s += new * (sample.arrived_per_s - self._arrived_per_s)
            self._note(sample.at, count, serving)
        self._at, self._count, self._serving = sample.at, count, serving
        return passed_s

    def _note(self, at: float, count: int, serving: int) -> None:
        if count > self._count:
            self._up_at = self.changed_at = self._ordered_at = at
        elif count < self._count:
            self.changed_at = at
        if serving > self._serving:
            self._up_at = at
            if self._ordered_at is not None:
                self.lead_s = at - self._ordered_at
                self._ordered_at = None

    def situation(
        self,
        reading: Reading,
        scaling: Scaling,
        capacity_per_s: float | None,
        of_fewer_per_s: tuple[float, ...] = (),
    ) -> Situation:
        """What laws read; `capacity_per_s` as measured, or as learned until then."""
        sample = reading.sample
        if scaling.capacity_per_s is not None:
            # As said of all.
            capacity_per_s, of_fewer_per_s = scaling.capacity_per_s, ()
        elif capacity_per_s is None:
            capacity_per_s = scaling.rate_max_per_s
        max_load, min_load = scaling.max_load, scaling.min_load
        if scaling.max_wait_s is not None and capacity_per_s is not None:
            max_load = scaling.max_wait_s * capacity_per_s
            min_load *= max_load / scaling.max_load
        coming = len(reading.starting) + sample.pending
        boot_s = scaling.boot_s if scaling.boot_s is not None else self.lead_s
        # These have a filter of their own.
        raw = scaling.policy in (ScalingPolicy.FEED_FORWARD, ScalingPolicy.AGREEMENT)
        return Situation(
            at=sample.at,
            serving=len(reading.serving),
            coming=coming,
            draining=len(reading.draining),
            away=reading.unreachable,
            waiting=reading.waiting,
            unacknowledged=reading.unacknowledged,
            arrived_per_s=sample.arrived_per_s if raw else self._arrived_per_s,
            consumed_per_s=reading.consumed_per_s,
            oldest_age_s=reading.oldest_age_s,
            capacity_per_s=capacity_per_s,
            capacity_of_fewer_per_s=of_fewer_per_s,
            min_load=min_load,
            max_load=max_load,
            loads_follow_capacity=scaling.max_wait_s is not None,
            inhibited=coming > 0 or sample.at < self._up_at + scaling.inhibition_s,
            start_s=START_S,
            boot_s=max(boot_s or 0.0, START_S),
            slots_free=sample.slots_free,
            slots_per_machine=max(scaling.slots_per_machine, 1),
            keeps_warm=sample.keeps_warm,
        )
