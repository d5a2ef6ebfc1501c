"""The samples of all doors of a service, merged into one sample that decisions use.

    door samples → differences per door → sum → `MergedServiceSample`

Doors report about once a second, each with its own clock. The newest interval of each door counts
until it is too old. Rates belong to its interval, so a lost sample makes an interval longer and
changes no rate. A new door counts from zero, unless it says that it began long ago. The first
samples of a service only give the totals to start from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.core.door_interval import since
from tidegate.core.hosting import DoorSample, Durations

# A door that is silent for this many seconds no longer counts.
FRESH_S = 5.0
# A door that an earlier leader knew reports within this time; a later one is new.
_FIRST_LOOK_S = FRESH_S
# Seconds by which doors' reports may differ and still be merged.
_APART_S = 0.6
# Durations are upper bounds of buckets; each bound is the previous one times this factor.
BUCKET = 2.0 ** (1.0 / 8.0)
# Totals of silent doors are kept for this many seconds, because a door may return.
_REMEMBERED_S = 600.0


@dataclass(frozen=True)
class InstanceReading:
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
class ServiceReading:
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
    instances: Mapping[int, InstanceReading] = field(default_factory=dict)
    # Doors that have had an instance; the others owe no response yet.
    addresses: tuple[str, ...] = ()
    trouble: str = ""

    def instance(self, instance_id: int) -> InstanceReading:
        return self.instances.get(instance_id, InstanceReading())


@dataclass(frozen=True)
class Interval:
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
        self._intervals: dict[str, Interval] = {}
        self._read_at = -math.inf
        self._unread: set[str] = set()

    def take(self, samples: Sequence[DoorSample], at: float) -> list[Interval]:
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

    def reading(self, at: float) -> ServiceReading | None:
        """Merge all doors into one sample; None if nothing is new or some have not reported yet."""
        self._unread &= self._intervals.keys()
        is_whole = self._unread == self._intervals.keys()
        if not self._unread or not (is_whole or at - self._read_at >= 2 * _APART_S):
            return None
        self._unread.clear()
        self._read_at = at
        return added(self._intervals.values(), at)

    def is_silent(self, at: float) -> bool:
        """Return whether no door has reported for a while; True before the first interval."""
        return all(at - one.came_at >= FRESH_S for one in self._intervals.values())

    def _interval(self, sample: DoorSample, at: float) -> Interval | None:
        known = self._last.get(sample.door)
        if known is not None and sample.at == known[1].at:
            return None
        self._last[sample.door] = (at, sample)
        if known is not None and sample.at < known[1].at:
            # The door's clock was set back, so the length of the interval is unknown.
            return None
        before = None if known is None else known[1]
        began_at = at if self._began_at is None else self._began_at
        if before is None and at - began_at < _FIRST_LOOK_S:
            return None
        # The door was away for long, or another node led: its totals are not of this interval.
        since_s = 0.0 if sample.began_at is None else sample.at - sample.began_at
        if before is None and since_s > _FIRST_LOOK_S:
            return None
        # Doors report every second, so a new one has counted for one second at most.
        interval_s = 1.0 if before is None else sample.at - before.at
        return Interval(
            between=since(before, sample),
            interval_s=interval_s,
            outstanding_before={}
            if before is None
            else {one.instance_id: one.outstanding for one in before.instances},
            came_at=at,
        )


def added(intervals: Iterable[Interval], at: float) -> ServiceReading:
    """Merge intervals of several doors into one sample."""
    found = list(intervals)
    doors = [one.between for one in found]
    ids = {one.instance_id for door in doors for one in door.instances}
    return ServiceReading(
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


def _instance(instance_id: int, intervals: Iterable[Interval]) -> InstanceReading:
    seen = [
        (one, interval)
        for interval in intervals
        for one in interval.between.instances
        if one.instance_id == instance_id
    ]
    ejected = [one.ejected for one, _ in seen]
    return InstanceReading(
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
