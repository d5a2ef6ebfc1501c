"""The measured performance of a service: its load, the capacity of an instance, the tail.

It is updated from samples in the order of time, with the laws of instance_capacity, load_trend and
http_sizing. An instance of another version is another program: its capacity is learned again, and
the usual capacity is assumed until then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tidegate.agreements.evaluation import Verdict, WindowVerdict
from tidegate.core.services import (
    DoorSample,
    Durations,
    Instance,
    InstanceState,
    Service,
    ServiceSpec,
    sample_delta,
)
from tidegate.laws.http.sizing import (
    InstanceCapacity,
    InstanceRate,
    LoadTrend,
    TailRatio,
    typical_capacity,
)

# The samples of all doors of a service, merged into one sample that decisions use.
#
#     door samples → differences per door → sum → `MergedServiceSample`
#
# Doors report about once a second, each with its own clock. The newest interval of each door counts
# until it is too old. Rates belong to its interval, so a lost sample makes an interval longer and
# changes no rate. A new door counts from zero, unless it says that it began long ago. The first
# samples of a service only give the totals to start from.


# A door that is silent for this many seconds no longer counts.
FRESH_S = 5.0
# A door that an earlier leader knew reports within this time; a later one is new.
_FIRST_SAMPLE_S = FRESH_S
# Seconds by which doors' reports may differ and still be merged.
_APART_S = 0.6
# Durations are upper bounds of buckets; each bound is the previous one times this factor.
BUCKET = 2.0 ** (1.0 / 8.0)
# Totals of silent doors are kept for this many seconds, because a door may return.
_REMEMBERED_S = 600.0


@dataclass(frozen=True)
class MergedInstanceSample:
    """One instance over the last interval, seen by all doors."""

    outstanding_before: int = 0
    outstanding: int = 0
    answered_per_s: float = 0.0
    # Responses with status 500 and above, and requests without a complete response.
    bad_per_s: float = 0.0
    # From sending the request to the end of the response; None without responses.
    mean_response_s: float | None = None
    # Why no door sends it requests; None if at least one door does.
    ejected: str | None = None


@dataclass(frozen=True)
class MergedServiceSample:
    """A service over the last intervals, seen by all its doors."""

    # Seconds of the loop's clock.
    at: float
    in_hand: int
    waiting: int
    answered_per_s: float
    accepted_per_s: float
    refused_per_s: float
    # Response times of clients, in the last interval of each door.
    response: Durations = field(default_factory=list)
    instances: Mapping[int, MergedInstanceSample] = field(default_factory=dict)
    # Doors that have had an instance; the others owe no response yet.
    addresses: tuple[str, ...] = ()
    trouble: str = ""

    def instance(self, instance_id: int) -> MergedInstanceSample:
        return self.instances.get(instance_id, MergedInstanceSample())


@dataclass(frozen=True)
class DoorInterval:
    """What one door counted between two of its samples."""

    between: DoorSample
    interval_s: float
    # Outstanding requests per instance at the beginning, and the loop's time of arrival.
    outstanding_before: Mapping[int, int]
    came_at: float


class DoorReader:
    """Turns the samples of all doors of one service into intervals and merged samples."""

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._last: dict[str, tuple[float, DoorSample]] = {}
        self._intervals: dict[str, DoorInterval] = {}
        self._read_at = -math.inf
        self._unread: set[str] = set()

    def read(self, samples: Sequence[DoorSample], at: float) -> list[DoorInterval]:
        """Return the new intervals since the last call, each of one door."""
        if self._began_at is None and samples:
            self._began_at = at
        found = [one for sample in samples if (one := self._interval(sample, at)) is not None]
        for interval in found:
            self._intervals[interval.between.door] = interval
            self._unread.add(interval.between.door)
        self._last = {k: v for k, v in self._last.items() if at - v[0] < _REMEMBERED_S}
        self._intervals = {
            k: v for k, v in self._intervals.items() if at - v.came_at < FRESH_S and k in self._last
        }
        return found

    def reading(self, at: float) -> MergedServiceSample | None:
        """Merge all doors into one sample; None if nothing is new or some have not reported yet."""
        self._unread &= self._intervals.keys()
        is_whole = self._unread == self._intervals.keys()
        if not self._unread or not (is_whole or at - self._read_at >= 2 * _APART_S):
            return None
        self._unread.clear()
        self._read_at = at
        return merge_door_samples(self._intervals.values(), at)

    def is_silent(self, at: float) -> bool:
        """Return whether no door has reported for a while; True before the first interval."""
        return all(at - one.came_at >= FRESH_S for one in self._intervals.values())

    def _interval(self, sample: DoorSample, at: float) -> DoorInterval | None:
        known = self._last.get(sample.door)
        if known is not None and sample.at == known[1].at:
            return None
        self._last[sample.door] = (at, sample)
        if known is not None and sample.at < known[1].at:
            # The door's clock was set back, so the length of the interval is unknown.
            return None
        before = None if known is None else known[1]
        began_at = at if self._began_at is None else self._began_at
        if before is None and at - began_at < _FIRST_SAMPLE_S:
            return None
        # The door was away for long, or another node led: its totals are not of this interval.
        since_s = 0.0 if sample.began_at is None else sample.at - sample.began_at
        if before is None and since_s > _FIRST_SAMPLE_S:
            return None
        # Doors report every second, so a new one has counted for one second at most.
        interval_s = 1.0 if before is None else sample.at - before.at
        return DoorInterval(
            between=sample_delta(before, sample),
            interval_s=interval_s,
            outstanding_before={}
            if before is None
            else {one.instance_id: one.outstanding for one in before.instances},
            came_at=at,
        )


def merge_door_samples(intervals: Iterable[DoorInterval], at: float) -> MergedServiceSample:
    """Merge intervals of several doors into one sample."""
    found = list(intervals)
    doors = [one.between for one in found]
    ids = {one.instance_id for door in doors for one in door.instances}
    return MergedServiceSample(
        at=at,
        in_hand=sum(door.in_flight for door in doors),
        waiting=sum(door.waiting for door in doors),
        answered_per_s=sum(one.between.answered / one.interval_s for one in found),
        accepted_per_s=sum(one.between.accepted / one.interval_s for one in found),
        refused_per_s=sum(one.between.refused / one.interval_s for one in found),
        response=[pair for door in doors for pair in door.response],
        instances={instance_id: _instance(instance_id, found) for instance_id in sorted(ids)},
        addresses=tuple(door.address for door in doors if door.has_begun),
        trouble="; ".join(dict.fromkeys(door.trouble for door in doors if door.trouble)),
    )


def _instance(instance_id: int, intervals: Iterable[DoorInterval]) -> MergedInstanceSample:
    seen = [
        (one, interval)
        for interval in intervals
        for one in interval.between.instances
        if one.instance_id == instance_id
    ]
    ejected = [one.ejected for one, _ in seen]
    return MergedInstanceSample(
        outstanding_before=sum(
            interval.outstanding_before.get(instance_id, 0) for _, interval in seen
        ),
        outstanding=sum(one.outstanding for one, _ in seen),
        answered_per_s=sum(one.answered / interval.interval_s for one, interval in seen),
        bad_per_s=sum(
            (one.server_errors + one.failed) / interval.interval_s for one, interval in seen
        ),
        mean_response_s=mean_s([pair for one, _ in seen for pair in one.response]),
        ejected=next(filter(None, ejected), None) if ejected and all(ejected) else None,
    )


def mean_s(durations: Durations) -> float | None:
    """Return the mean of a histogram of durations; None if it is empty."""
    count = sum(count for _, count in durations)
    if not count:
        return None
    return sum(bound_s * count for bound_s, count in durations) / count / math.sqrt(BUCKET)


def percentile_s(durations: Durations, fraction: float) -> float | None:
    """Return a percentile of a histogram, interpolated within its bucket; None if it is empty."""
    count, so_far = sum(count for _, count in durations), 0
    for bound_s, one in sorted(durations):
        if so_far + one >= fraction * count:
            lower_s = bound_s / BUCKET
            return lower_s + (bound_s - lower_s) * (fraction * count - so_far) / one
        so_far += one
    return None


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
# An instance below this fraction of the usual capacity counts as a fraction of an instance.
SLOW = 0.6


class ServicePerformance:
    """What has been measured of one service so far."""

    def __init__(self) -> None:
        # The capacity of an instance according to the agreement; None if it names none.
        self.said_per_s: float | None = None
        self.trend = LoadTrend()
        # By the promised percentile of response times.
        self._tails: dict[float, TailRatio] = {}
        self.answered_per_s = 0.0
        self._capacities: dict[int, InstanceCapacity] = {}
        self._rates: dict[int, InstanceRate] = {}
        self._usual_per_s: float | None = None
        self._responses: deque[Durations] = deque(maxlen=_TAIL_READINGS)
        self._starts_s: deque[float] = deque(maxlen=_STARTS_KEPT)
        self._timed: set[int] = set()
        # Requests that waited in doors, in the last sample.
        self._waiting = 0

    def observe(
        self, reading: MergedServiceSample, spec: ServiceSpec, instances: Sequence[Instance]
    ) -> None:
        """Update everything from a new sample of the doors."""
        self.trend.observe(reading.at, float(reading.in_hand))
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
            self._capacities.setdefault(instance.instance_id, InstanceCapacity()).observe(rate)
        self._waiting = reading.waiting
        newest = max((one.version for one in instances), default=0)
        usual = typical_capacity(
            known.per_s for one, known in self._capacities.items() if there[one].version == newest
        ) or typical_capacity(known.per_s for known in self._capacities.values())
        # If no current instance has a known capacity, the last usual value is the best guess,
        # unless the current ones have shown more.
        self._usual_per_s = usual or self._usual_per_s
        shown = typical_capacity(known.proven_per_s for known in self._capacities.values())
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
        return typical_capacity(
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
        return typical_capacity(known.proven_per_s for known in self._capacities.values())

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
        return self._tails.setdefault(percentile, TailRatio()).value

    def _see_tails(self, reading: MergedServiceSample) -> None:
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
                tail.observe(at_percentile, mean)


# Part of a window that must have samples, one a second, before its verdict is used.
_PRESSED_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class ServiceSample:
    """The measurements of one service at one moment."""

    # Seconds of the loop's clock.
    at: float
    service: Service
    instances: Sequence[Instance]
    # None if no door has reported anything new.
    reading: MergedServiceSample | None = None
    # Whether no door has reported for some seconds, or ever.
    is_silent: bool = False
    # The verdict of the open window so far; None if it has no sample.
    window: WindowVerdict | None = None
    admission: int | None = None
    # Free slots on running machines; None if not known.
    slots_free: int | None = None
    # Why no machine may be available; empty if nothing is known to prevent it.
    fleet_trouble: str = ""

    def is_pressed(self, window_s: float) -> bool:
        """Return whether the open window is certainly warned of or breached."""
        # One sample is not enough to judge a window.
        if self.window is None or self.window.samples < _PRESSED_PART * window_s:
            return False
        return any(
            one.verdict in (Verdict.WARNED, Verdict.BREACHED)
            and one.value is not None
            # Low free memory does not show load, and more instances would use more memory.
            and one.metric.name != "free_memory"
            # A time is the upper bound of its bucket, so the real value may be one bucket lower.
            and (one.metric.percentile is None or one.value >= BUCKET * one.metric.warning)
            # Judge answered requests only: a rejected request says nothing about busy instances.
            for one in (found.of_answers for found in self.window.findings)
        )

    @property
    def is_breached_for_certain(self) -> bool:
        """Whether the answered requests of the open window certainly break a promised time."""
        return self.window is not None and any(
            one.value is not None and one.value >= BUCKET * one.metric.breach
            for one in (found.of_answers for found in self.window.findings)
            if one.metric.percentile is not None
        )

    @property
    def leaves_unanswered(self) -> bool:
        """Whether unanswered requests break a promise of the open window, or soon will."""
        return self.window is not None and any(
            one.unanswered and one.verdict in (Verdict.WARNED, Verdict.BREACHED)
            for one in self.window.findings
        )
