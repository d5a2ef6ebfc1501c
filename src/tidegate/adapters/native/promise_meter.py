"""Measurements of a logical queue for its agreement: counts and waits since the last sample.

A node counts from the moment it owns a queue. The meter returns the difference to the previous
sample. A new owner (a new epoch) has counted from 0, so then all its counts are new.

A queue that existed before, and answers for the first time, adds nothing to its first sample: it is
unknown when its messages were counted. A replica without an answer is not measured. The age of its
oldest message keeps growing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from tidegate.adapters.native.looks import QueueLook
from tidegate.adapters.native.sensor import NativeSensor
from tidegate.agreement.windows import Sample
from tidegate.core.replication import Topology


class _Histogram(msgspec.Struct):
    """The part of a queue's `Durations` that the meter needs."""

    buckets: list[tuple[float, int]] = []


_HISTOGRAM = msgspec.json.Decoder(_Histogram)
_STEMS = ("wait", "service")


@dataclass
class _Counted:
    """The counts of one queue by one owner."""

    epoch: int
    put: int = 0
    acked: int = 0
    refused: int = 0
    times: dict[str, dict[float, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: QueueLook) -> _Counted:
        return cls(
            numbers.epoch,
            numbers.put,
            numbers.acked,
            numbers.refused,
            {stem: _buckets(getattr(numbers, stem)) for stem in _STEMS},
        )

    def since(self, before: _Counted) -> _Counted:
        """Return the difference to earlier counts; all counts if another owner counted those."""
        went_back = self.put < before.put or self.acked < before.acked
        if before.epoch != self.epoch or went_back:
            return self
        return _Counted(
            self.epoch,
            self.put - before.put,
            self.acked - before.acked,
            max(self.refused - before.refused, 0),
            {
                stem: {
                    bound_s: count - before.times[stem].get(bound_s, 0)
                    for bound_s, count in self.times[stem].items()
                    if count > before.times[stem].get(bound_s, 0)
                }
                for stem in _STEMS
            },
        )


class PromiseMeter:
    """Samples of logical queues for their agreements, from what the sensor has polled last."""

    def __init__(self, sensor: NativeSensor) -> None:
        self._sensor = sensor
        self._before: dict[int, _Counted] = {}
        # Queues that existed at the last sample.
        self._known: set[int] = set()
        self._looked_at: float | None = None

    def sample(self, topology: Topology, now: float, wall_s: float) -> Sample | None:
        """Return the counts since the previous call.

        Returns None for the first call, and while the alias's owner does not answer.

        `now` is the loop's clock, and `wall_s` the time since 1970, both in seconds.
        """
        queue_ids = [topology.queue_id, *(place.queue_id for place in topology.replicas)]
        counted = {
            queue_id: _Counted.of(numbers)
            for queue_id in queue_ids
            if (numbers := self._sensor.numbers_of(queue_id)) is not None
        }
        if topology.queue_id not in counted:
            # Keep the previous sample: what the alias's owner counts while it is silent belongs to
            # the whole time until it answers.
            return None
        before, known, began = self._before, self._known, self._looked_at
        self._known = set(queue_ids)
        # Keep the last counts of silent queues, to compare with when they answer again.
        kept = {queue_id: one for queue_id, one in before.items() if queue_id in queue_ids}
        self._before, self._looked_at = kept | counted, now
        if began is None or not now > began:
            return None
        # A new replica began at 0, so all its counts are new. A replica that existed and never
        # answered before is left out, since its counts may be older than this interval.
        parts = [
            one.since(before[queue_id]) if queue_id in before else one
            for queue_id, one in counted.items()
            if queue_id in before or queue_id not in known
        ]
        return Sample(
            at_s=wall_s,
            interval_s=now - began,
            accepted=float(sum(one.put for one in parts)),
            served=float(sum(one.acked for one in parts)),
            refused=float(sum(one.refused for one in parts)),
            waiting=float(sum(self._waiting(queue_id) for queue_id in counted)),
            oldest_age_s=max(self._ages(queue_ids, now), default=None),
            free_memory_bytes=self._sensor.free_memory_bytes(queue_ids),
            times={stem: _merged(one.times[stem] for one in parts) for stem in _STEMS},
        )

    def _waiting(self, queue_id: int) -> int:
        numbers = self._sensor.numbers_of(queue_id)
        return 0 if numbers is None else numbers.waiting

    def _ages(self, queue_ids: Iterable[int], now: float) -> list[float]:
        ages = (self._sensor.age_of(queue_id, now) for queue_id in queue_ids)
        return [age for age in ages if age is not None]


def _buckets(raw: msgspec.Raw) -> dict[float, int]:
    return dict(_HISTOGRAM.decode(raw).buckets) if bytes(raw) else {}


def _merged(parts: Iterable[dict[float, int]]) -> tuple[tuple[float, int], ...]:
    total: dict[float, int] = {}
    for part in parts:
        for bound_s, count in part.items():
            total[bound_s] = total.get(bound_s, 0) + count
    return tuple(sorted(total.items()))
