"""What the autoscaler remembers between samples, and the situation it gives to the laws.

Only samples count, not orders. A scale-up has happened when a sample shows more replicas than the
sample before, no matter which program ordered them. The inhibition time starts again when a new
replica begins to serve, because it affects the queue only from then on.
"""

from __future__ import annotations

import math

from tidegate.control.reading import Reading
from tidegate.core.scaling import Scaling, ScalingPolicy
from tidegate.laws.wish import Situation

# Assumed seconds from a slot to serving, until a start has been measured.
START_S = 5.0
# Time constant, in seconds, of the average arrival rate that the laws use.
ARRIVAL_S = 10.0
# In polling intervals. After a longer gap the loop was delayed, and the gap is not used as the
# length of a period.
PERIOD_MAX = 10.0
# More of them than this are as good as for ever.
PERIODS_MAX = 1000.0


class History:
    """When the number of replicas changed, and the average arrival rate."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._arrived_per_s = 0.0
        # From the last sample: replicas that are to stay, and replicas that serve.
        self._count = 0
        self._serving = 0
        self._up_at = -math.inf
        self._ordered_at: float | None = None
        # Seconds from the last order of a replica until it served; None until one was seen.
        self.lead_s: float | None = None
        # The number of periods since the last sample. It is above 1 when a sample was late.
        self.periods = 1
        # When the number of replicas that are to stay last changed.
        self.changed_at = -math.inf
        # When the queue last had anything to do.
        self.busy_at = -math.inf

    def take(self, reading: Reading, scaling: Scaling) -> float:
        """Record the changes since the last sample; return the length of the period in seconds.

        After an implausible gap (0 or less, or above PERIOD_MAX intervals) the polling interval is
        returned instead.
        """
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
        """Return the situation that the laws read.

        `capacity_per_s` is the measured or learned capacity of one replica, and `of_fewer_per_s`
        the mean capacity if only 1, 2, … replicas stayed. A capacity in the settings replaces both.
        """
        sample = reading.sample
        if scaling.capacity_per_s is not None:
            # The setting holds for all replicas, so the means for fewer replicas say nothing more.
            capacity_per_s, of_fewer_per_s = scaling.capacity_per_s, ()
        elif capacity_per_s is None:
            capacity_per_s = scaling.rate_max_per_s
        max_load, min_load = scaling.max_load, scaling.min_load
        if scaling.max_wait_s is not None and capacity_per_s is not None:
            max_load = scaling.max_wait_s * capacity_per_s
            min_load *= max_load / scaling.max_load
        coming = len(reading.starting) + sample.pending
        boot_s = scaling.boot_s if scaling.boot_s is not None else self.lead_s
        # These two laws filter the arrival rate themselves.
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
