"""The samples that a door process records: each second a row for itself and for each instance.

    sampler = HttpSampler(recorder)                        when the door starts
    sampler.take(await door.sample(), instances, 100)      each second
    sampler.requests                                       where the door adds single requests

Differences of consecutive totals give the counts of an interval (core.door_interval). The length of
the interval comes from the monotonic clock, because the wall clock may jump. The recorder never
waits. If it drops rows, the door's next row reports how many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tidegate.core.door_interval import since
from tidegate.core.hosting import DoorSample, Durations, Instance, InstanceSample
from tidegate.telemetry.histogram import bucket_up_to
from tidegate.telemetry.http_requests import HttpRequestSamples
from tidegate.telemetry.recorder import Recorder, Row
from tidegate.telemetry.sampler import Sampler

KIND = "http_samples"
_NOTHING: list[tuple[int, int]] = []
_OF_NO_INSTANCE = (None, None, None, None)


class HttpSampler:
    """Makes rows from the samples of one door."""

    def __init__(self, recorder: Recorder, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._monotonic = monotonic
        self._sampled_at = monotonic()
        self._before: DoorSample | None = None
        self._dropped_told = 0
        self.requests: HttpRequestSamples | None = None
        options = recorder.options
        if options.requests_per_s:
            self.requests = HttpRequestSamples(
                Sampler(options.requests_per_s, interval_s=options.interval_s)
            )

    def take(
        self, sample: DoorSample, instances: Sequence[Instance] = (), concurrency: int | None = None
    ) -> None:
        """Record the counts since the previous sample.

        `concurrency` is the service's limit per instance, for instances without their own.
        """
        now = self._monotonic()
        interval_s, self._sampled_at = max(now - self._sampled_at, 1e-9), now
        between, self._before = since(self._before, sample), sample
        recorder = self._recorder
        dropped = recorder.rows_dropped
        rows = rows_of(between, interval_s, recorder.writer, instances, concurrency)
        if recorder.add(KIND, [(*rows[0][:-1], dropped - self._dropped_told), *rows[1:]]):
            # If these rows are dropped, too, the next row reports them.
            self._dropped_told = dropped
        if self.requests is not None:
            at_us = int(sample.at * 1e6)
            found = self.requests.tick(recorder.writer, sample.service, sample.door, now, at_us)
            recorder.add("http_requests", found)


def rows_of(
    between: DoorSample,
    interval_s: float,
    node: str,
    instances: Sequence[Instance],
    concurrency: int | None,
) -> list[Row]:
    """Return the row of a door, followed by a row for each instance."""
    begins = (int(between.at * 1e6), interval_s, node, between.service, between.door)
    of_door = (
        *(*begins, None, between.accepted, between.answered, between.refused, 0, 0, 0, 0),
        *(buckets_of(between.response), _NOTHING, between.in_flight, between.waiting, 0),
        *(*_OF_NO_INSTANCE, "", between.trouble, 0),
    )
    known = {one.instance_id: one for one in instances}
    return [
        of_door,
        *(
            (*begins, *_of_instance(one, known.get(one.instance_id), concurrency))
            for one in between.instances
        ),
    ]


def _of_instance(seen: InstanceSample, known: Instance | None, concurrency: int | None) -> Row:
    stored: Row = _OF_NO_INSTANCE
    if known is not None:
        limit = concurrency if known.concurrency is None else known.concurrency
        stored = (known.version, known.weight, limit, known.free_memory_bytes)
    return (
        *(seen.instance_id, 0, 0, 0, seen.sent, seen.answered, seen.server_errors, seen.failed),
        *(_NOTHING, buckets_of(seen.response), 0, 0, seen.outstanding),
        *(*stored, seen.ejected or "", "", 0),
    )


def buckets_of(durations: Durations) -> list[tuple[int, int]]:
    """Return durations as counts per lake bucket, in ascending order."""
    counts: dict[int, int] = {}
    for bound_s, count in durations:
        bucket = bucket_up_to(bound_s)
        counts[bucket] = counts.get(bucket, 0) + count
    return sorted(counts.items())
