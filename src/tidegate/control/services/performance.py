"""The measured performance of a service: its load, the capacity of an instance, the tail.

It is updated from samples in the order of time, with the laws of instance_capacity, load_trend and
http_sizing. An instance of another version is another program: its capacity is learned again, and
the usual capacity is assumed until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from tidegate.control.service_reading import ServiceReading, mean_s, percentile_s
from tidegate.core.hosting import Durations, Instance, InstanceState, ServiceSpec
from tidegate.laws.http_sizing import Tail
from tidegate.laws.instance_capacity import InstanceCapacity, InstanceRate, typical
from tidegate.laws.load_trend import LoadTrend

# Assumed seconds from an order until an instance answers, until one was measured.
START_S = 3.0
_STARTS_KEPT = 8
# A longer start is not counted: the machine had restarted the instance unseen.
_START_S_MAX = 600.0
# Samples from which a tail is measured, and the requests they must have at least.
_TAIL_READINGS = 3
_TAIL_REQUESTS_MIN = 20
# Responses per second from which a mean response time is meaningful.
_ANSWERS_MIN = 3.0
# An instance that does less than this part of the usual capacity counts as a part of one.
SLOW = 0.6


class Performance:
    """What has been measured of one service so far."""

    def __init__(self) -> None:
        # The capacity of an instance according to the agreement; None if it names none.
        self.said_per_s: float | None = None
        self.trend = LoadTrend()
        # By the promised percentile of response times.
        self._tails: dict[float, Tail] = {}
        self.answered_per_s = 0.0
        self._capacities: dict[int, InstanceCapacity] = {}
        self._rates: dict[int, InstanceRate] = {}
        self._usual_per_s: float | None = None
        self._responses: deque[Durations] = deque(maxlen=_TAIL_READINGS)
        self._starts_s: deque[float] = deque(maxlen=_STARTS_KEPT)
        self._timed: set[int] = set()
        # Requests that waited in doors, in the last sample.
        self._waiting = 0

    def see(
        self, reading: ServiceReading, spec: ServiceSpec, instances: Sequence[Instance]
    ) -> None:
        """Update everything from a new sample of the doors."""
        self.trend.see(reading.at, float(reading.in_hand))
        self.answered_per_s = reading.answered_per_s
        self._see_tails(reading)
        there = {one.instance_id: one for one in instances}
        self._capacities = {k: v for k, v in self._capacities.items() if k in there}
        self._rates = {}
        for instance in there.values():
            if instance.state is not InstanceState.READY or instance.is_spare:
                continue
            seen = reading.instance(instance.instance_id)
            rate = InstanceRate(
                1.0,
                seen.answered_per_s,
                seen.outstanding_before,
                seen.outstanding,
                instance.concurrency or spec.concurrency,
                seen.mean_response_s,
                door_waited=bool(self._waiting and reading.waiting),
            )
            self._rates[instance.instance_id] = rate
            self._capacities.setdefault(instance.instance_id, InstanceCapacity()).see(rate)
        self._waiting = reading.waiting
        newest = max((one.version for one in instances), default=0)
        usual = typical(
            known.per_s for one, known in self._capacities.items() if there[one].version == newest
        ) or typical(known.per_s for known in self._capacities.values())
        # If no current instance has a known capacity, the last usual value is the best guess,
        # unless the current ones have shown more.
        self._usual_per_s = usual or self._usual_per_s
        shown = typical(known.proven_per_s for known in self._capacities.values())
        if self._usual_per_s is not None and shown is not None:
            self._usual_per_s = max(self._usual_per_s, shown)

    def remember(self, capacity_per_s: float | None) -> None:
        """Use the capacity that the last leader stored, until one is measured here."""
        if self._usual_per_s is None and capacity_per_s and capacity_per_s > 0.0:
            self._usual_per_s = capacity_per_s

    def see_starts(self, instances: Sequence[Instance]) -> list[tuple[Instance, float]]:
        """Return the instances that became ready since the last call, with their start times."""
        came = [
            (one, one.ready_at - one.ordered_at)
            for one in instances
            if one.ready_at is not None
            and one.instance_id not in self._timed
            and 0.0 <= one.ready_at - one.ordered_at <= _START_S_MAX
        ]
        self._starts_s.extend(took_s for _, took_s in came)
        # An instance that died and came back has an old order time, so each is timed only once.
        ready = {one.instance_id for one in instances if one.ready_at is not None}
        self._timed = (self._timed | ready) & {one.instance_id for one in instances}
        return came

    @property
    def start_s(self) -> float:
        """Median seconds from an order until an instance answers."""
        return median(self._starts_s) if self._starts_s else START_S

    @property
    def usual_per_s(self) -> float | None:
        """Measured capacity of one instance, else the agreement's; None if unknown."""
        return self._usual_per_s or self.said_per_s

    @property
    def hoped_per_s(self) -> float | None:
        """Estimated capacity from the limit and the best response time, if nothing better is known.

        Good enough to order one more instance, but not to remove one.
        """
        if self.usual_per_s:
            return self.usual_per_s
        return typical(
            rate.concurrency / known.best_response_s
            for one, rate in self._rates.items()
            if (known := self._capacities[one]).best_response_s
        )

    @property
    def proven_per_s(self) -> float | None:
        """The rate that one instance has reached at least, if nothing better is known.

        Good enough to remove an instance, but not to order one more.
        """
        if self.usual_per_s:
            return self.usual_per_s
        return typical(known.proven_per_s for known in self._capacities.values())

    @property
    def is_learned(self) -> bool:
        return self._usual_per_s is not None

    def capacity(self, instance_id: int) -> InstanceCapacity | None:
        return self._capacities.get(instance_id)

    def rate(self, instance_id: int) -> InstanceRate | None:
        """Return its rate in the last sample; None if it did not serve or is not known."""
        return self._rates.get(instance_id)

    def capacity_per_s(self, instance_id: int) -> float | None:
        """Return the capacity of this instance, the usual one if it was not measured."""
        known = self._capacities.get(instance_id)
        seen = None if known is None else known.per_s
        # A capacity of 0 was measured on an instance that hangs, and says nothing about it.
        return seen or self.usual_per_s

    def effective(self, instance_ids: Sequence[int]) -> float:
        """Return how many usual instances these are worth; a slow one counts as a part."""
        usual = self.usual_per_s
        if not usual:
            return float(len(instance_ids))
        parts = [(self.capacity_per_s(one) or usual) / usual for one in instance_ids]
        return sum(part if part < SLOW else 1.0 for part in parts)

    def mean_responses(self, suspected: Collection[int] = ()) -> Mapping[int, float]:
        """Return mean response times of instances with enough responses in the last sample.

        Any response counts for `suspected` instances, because they get few requests.
        """
        return {
            one: rate.mean_response_s
            for one, rate in self._rates.items()
            if rate.mean_response_s is not None
            and (rate.answered >= _ANSWERS_MIN or one in suspected)
        }

    def tail(self, percentile: float) -> float:
        """Return the ratio of a percentile of response times to the mean, while requests wait."""
        return self._tails.setdefault(percentile, Tail()).value

    def _see_tails(self, reading: ServiceReading) -> None:
        # Without waiting requests the spread of response times does not depend on the load. If only
        # a few wait, they take twice as long as the others, which is no tail either.
        if reading.waiting < max(reading.in_hand - reading.waiting, 1):
            self._responses.clear()
            return
        self._responses.append(reading.response)
        pooled = [pair for one in self._responses for pair in one]
        if sum(count for _, count in pooled) < _TAIL_REQUESTS_MIN:
            return
        mean = mean_s(pooled)
        for percentile, tail in self._tails.items():
            at_percentile = percentile_s(pooled, percentile)
            if mean is not None and at_percentile is not None:
                tail.see(at_percentile, mean)
