"""Percentiles of the durations between two snapshots, from totals that only grow.

Nodes and doors count durations in buckets since they began. The difference of two snapshots is the
histogram of the interval. A histogram that has shrunk comes from a new owner, which counts from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Upper bound of a bucket in seconds, and its count.
Buckets = Sequence[tuple[float, int]]

FRACTIONS = (0.50, 0.95, 0.99)


class Waits(NamedTuple):
    """The 50th, 95th and 99th percentile in seconds; None means that nothing was delivered."""

    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


NOTHING = Waits()


def added(before: Buckets, now: Buckets) -> dict[float, int]:
    """Return the increments of the buckets; the present counts if the histogram began again."""
    known = dict(before)
    grown = {bound: count - known.get(bound, 0) for bound, count in now}
    if any(count < 0 for count in grown.values()) or not known.keys() <= grown.keys():
        return dict(now)
    return {bound: count for bound, count in grown.items() if count}


def percentiles(parts: Iterable[dict[float, int]]) -> Waits:
    """Return the percentiles of several histograms together."""
    total: dict[float, int] = {}
    for part in parts:
        for bound, count in part.items():
            total[bound] = total.get(bound, 0) + count
    if not total:
        return NOTHING
    found: list[float] = []
    seen, of_all = 0, sum(total.values())
    for bound in sorted(total):
        seen += total[bound]
        while len(found) < len(FRACTIONS) and seen >= FRACTIONS[len(found)] * of_all:
            found.append(bound)
    return Waits(*found)
