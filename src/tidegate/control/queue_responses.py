"""How long messages took from put to acknowledgement, put together from waits and services.

    P(response = w + s) = P(wait = w) · P(service = s)        as if neither knew of the other

Nodes count how long messages wait and how long handlers take; who waited how long is forgotten when
it is handed out, for a broker has better things to do than to remember it. What is recorded of
single messages (lifecycles) says it exactly, later: `tidegate learn` judges by that.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tidegate.agreement.windows import Durations, Sample
from tidegate.telemetry.histogram import bucket_of, upper_bound_s

# Two durations come as upper bounds of their buckets: so much larger than they were, on average.
_HALF_A_BUCKET = 2.0 ** (1.0 / 16.0)


class QueueResponses:
    """Of one queue."""

    def __init__(self) -> None:
        # Of the last interval in which something was handed out.
        self._waits: Durations = ()

    def complete(self, sample: Sample) -> Sample:
        """The same sample with the responses of those that were acknowledged in it."""
        self._waits = sample.times.get("wait") or self._waits
        services = sample.times.get("service", ())
        return replace(sample, times={**sample.times, "response": added(self._waits, services)})


def added(waits: Durations, services: Durations) -> Durations:
    """As many as there are services; none without either."""
    waited = sum(count for _, count in waits)
    if not waited:
        return ()
    counts: defaultdict[int, float] = defaultdict(float)
    for service_s, count in services:
        for wait_s, of_waits in waits:
            bucket = bucket_of((wait_s + service_s) / _HALF_A_BUCKET)
            counts[bucket] += count * of_waits / waited
    return [(upper_bound_s(bucket), count) for bucket, count in sorted(counts.items())]
