"""What is known of a service's performance: its load, what an instance can do, how far the tail is.

Made from readings, in the order of time, by the laws of instance_capacity, load_trend and
http_sizing. An instance of another version is another program: what it can do is learned anew, and
until then it counts as what is usual.
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

# From an order to an answer, until one was seen.
START_S = 3.0
_STARTS_KEPT = 8
# What seems to have taken longer was started again by its machine: nobody saw it start.
_START_S_MAX = 600.0
# Readings that have the percentile and the mean of a tail, and requests in them at least.
_TAIL_READINGS = 3
_TAIL_REQUESTS_MIN = 20
# Answers of a second of which the mean says something.
_ANSWERS_MIN = 3.0
# An instance that does less than this part of the usual counts as a part.
SLOW = 0.6


class Performance:
    """One service, as it was seen so far."""

    def __init__(self) -> None:
        # What somebody said that one instance can do.
        self.said_per_s: float | None = None
        self.trend = LoadTrend()
        # By the percentile that is promised of responses.
        self._tails: dict[float, Tail] = {}
        self.answered_per_s = 0.0
        self._capacities: dict[int, InstanceCapacity] = {}
        self._rates: dict[int, InstanceRate] = {}
        self._usual_per_s: float | None = None
        self._responses: deque[Durations] = deque(maxlen=_TAIL_READINGS)
        self._starts_s: deque[float] = deque(maxlen=_STARTS_KEPT)
        self._timed: set[int] = set()
        # In the door, by the last reading.
        self._waiting = 0

    def see(
        self, reading: ServiceReading, spec: ServiceSpec, instances: Sequence[Instance]
    ) -> None:
        """What doors have seen."""
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
        # Of none that is there anybody may know: what was usual is the best guess, unless those
        # that are there have shown more.
        self._usual_per_s = usual or self._usual_per_s
        shown = typical(known.proven_per_s for known in self._capacities.values())
        if self._usual_per_s is not None and shown is not None:
            self._usual_per_s = max(self._usual_per_s, shown)

    def remember(self, capacity_per_s: float | None) -> None:
        """What whoever led before has seen of one, until it is seen here."""
        if self._usual_per_s is None and capacity_per_s and capacity_per_s > 0.0:
            self._usual_per_s = capacity_per_s

    def see_starts(self, instances: Sequence[Instance]) -> list[tuple[Instance, float]]:
        """Instances that have become ready since the last look, and how long each took."""
        came = [
            (one, one.ready_at - one.ordered_at)
            for one in instances
            if one.ready_at is not None
            and one.instance_id not in self._timed
            and 0.0 <= one.ready_at - one.ordered_at <= _START_S_MAX
        ]
        self._starts_s.extend(took_s for _, took_s in came)
        # One that died and is back where it was had been ordered long ago: it is timed once.
        ready = {one.instance_id for one in instances if one.ready_at is not None}
        self._timed = (self._timed | ready) & {one.instance_id for one in instances}
        return came

    @property
    def start_s(self) -> float:
        """From an order to an answer."""
        return median(self._starts_s) if self._starts_s else START_S

    @property
    def usual_per_s(self) -> float | None:
        """What one instance can do: as it was seen, or said; None: nobody knows."""
        return self._usual_per_s or self.said_per_s

    @property
    def hoped_per_s(self) -> float | None:
        """What one may be able to do, by its limit: enough to order one more, not to end one."""
        if self.usual_per_s:
            return self.usual_per_s
        return typical(
            rate.concurrency / known.best_response_s
            for one, rate in self._rates.items()
            if (known := self._capacities[one]).best_response_s
        )

    @property
    def proven_per_s(self) -> float | None:
        """What one can do at least: good enough to end one, not to order one more."""
        if self.usual_per_s:
            return self.usual_per_s
        return typical(known.proven_per_s for known in self._capacities.values())

    @property
    def is_learned(self) -> bool:
        return self._usual_per_s is not None

    def capacity(self, instance_id: int) -> InstanceCapacity | None:
        return self._capacities.get(instance_id)

    def rate(self, instance_id: int) -> InstanceRate | None:
        """In the last reading; None: it served not, or nobody knows."""
        return self._rates.get(instance_id)

    def capacity_per_s(self, instance_id: int) -> float | None:
        """What this one can do; the usual if nobody has seen."""
        known = self._capacities.get(instance_id)
        seen = None if known is None else known.per_s
        # 0 is what stands still: what it can do was not seen.
        return seen or self.usual_per_s

    def effective(self, instance_ids: Sequence[int]) -> float:
        """So many usual instances they are worth: a slow one is a part of one."""
        usual = self.usual_per_s
        if not usual:
            return float(len(instance_ids))
        parts = [(self.capacity_per_s(one) or usual) / usual for one in instance_ids]
        return sum(part if part < SLOW else 1.0 for part in parts)

    def mean_responses(self, suspected: Collection[int] = ()) -> Mapping[int, float]:
        """Of instances that have answered enough in the last reading to tell.

        Of those that are suspected any answer counts: they are given few.
        """
        return {
            one: rate.mean_response_s
            for one, rate in self._rates.items()
            if rate.mean_response_s is not None
            and (rate.answered >= _ANSWERS_MIN or one in suspected)
        }

    def tail(self, percentile: float) -> float:
        """How far a percentile of responses lies above the mean, while requests wait."""
        return self._tails.setdefault(percentile, Tail()).value

    def _see_tails(self, reading: ServiceReading) -> None:
        # What does not wait takes as long as it takes: its spread is no matter of the load. Where
        # few wait, those who do take twice as long as the others, which is no tail either.
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
