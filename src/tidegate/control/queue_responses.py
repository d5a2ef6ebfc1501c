"""Response times of messages, put together from waits and service times.

    P(response = w + s) = P(wait = w) · P(service = s)        assuming that they are independent

Nodes count waits and service times in two histograms and do not remember the wait of a message
after its delivery, to save memory. The recorded lifecycles of single messages give exact response
times later; `tidegate learn` judges by them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tidegate.agreement.windows import Durations, Sample
from tidegate.telemetry.histogram import bucket_of, upper_bound_s

# The sum of two durations, each the upper bound of its bucket, is too large by this factor on
# average.
_HALF_A_BUCKET = 2.0 ** (1.0 / 16.0)


class QueueResponses:
    """Response times of one queue."""

    def __init__(self) -> None:
        # Waits of the last interval in which a message was delivered.
        self._waits: Durations = ()

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with the response times of the messages acknowledged in it."""
        self._waits = sample.times.get("wait") or self._waits
        services = sample.times.get("service", ())
        return replace(sample, times={**sample.times, "response": added(self._waits, services)})


def added(waits: Durations, services: Durations) -> Durations:
    """Return as many response times as there are service times; empty without waits or services."""
    waited = sum(count for _, count in waits)
    if not waited:
        return ()
    counts: defaultdict[int, float] = defaultdict(float)
    for service_s, count in services:
        for wait_s, of_waits in waits:
            bucket = bucket_of((wait_s + service_s) / _HALF_A_BUCKET)
            counts[bucket] += count * of_waits / waited
    return [(upper_bound_s(bucket), count) for bucket, count in sorted(counts.items())]
