"""What an agreement judges, measured of one logical queue: counts and waits since the last look.

Nodes count since they own a queue. What came since the last look is the difference, and with
another owner (another epoch) all that it has counted; a queue that is seen for the first time says
nothing yet. A replica that nobody answers for is not measured, and what waits in it gets older.
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
    """Of telemetry.numbers.Durations as much as is needed."""

    buckets: list[tuple[float, int]] = []


_HISTOGRAM = msgspec.json.Decoder(_Histogram)
_STEMS = ("wait", "service")


@dataclass
class _Counted:
    """All that one owner has counted of one queue."""

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
        """What was counted after that; everything, if it was another owner who counted."""
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
    """Samples of one logical queue for its agreement, from what the sensor has last seen."""

    def __init__(self, sensor: NativeSensor) -> None:
        self._sensor = sensor
        self._before: dict[int, _Counted] = {}
        # Queues that there were when it last looked.
        self._known: set[int] = set()
        self._looked_at: float | None = None

    def sample(self, topology: Topology, now: float, wall_s: float) -> Sample | None:
        """What came since the last one; None: it is the first, or nobody answers."""
        queue_ids = [topology.queue_id, *(place.queue_id for place in topology.replicas)]
        counted = {
            queue_id: _Counted.of(numbers)
            for queue_id in queue_ids
            if (numbers := self._sensor.numbers_of(queue_id)) is not None
        }
        if topology.queue_id not in counted:
            # What is counted while its owner is silent belongs to all of the time until it speaks.
            return None
        before, known, began = self._before, self._known, self._looked_at
        self._known = set(queue_ids)
        # Who does not answer now is compared with what it said last, when it answers again.
        kept = {queue_id: one for queue_id, one in before.items() if queue_id in queue_ids}
        self._before, self._looked_at = kept | counted, now
        if began is None or not now > began:
            return None
        # A replica that has come since has begun with nothing; of one that never answered before
        # nobody knows with what.
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
