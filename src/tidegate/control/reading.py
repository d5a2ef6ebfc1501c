"""The totals of one sample, whether it is usable, and the capacity of each replica.

The capacity of a replica can be measured only while it is at its limit. Then at least half a
period's work waits in it, and none of its consumers is idle. The rate at which it consumes is then
its capacity. A higher measurement changes the estimate by half of the difference, a lower one by a
tenth: a short pause is not a loss of capacity.

An idle replica keeps its last estimate. A replica that was slow and has recovered therefore counts
as slow until it is needed again, and it is the first to be removed. Removals use the mean capacity
of the replicas that would stay (`of_fewer`), not the mean of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tidegate.core.replication import ReplicaState
from tidegate.core.scaling import Scaling
from tidegate.core.steering import QueueSample, ReplicaSample

# Seconds. The rate of a younger replica shows its start and not its capacity.
STARTED_S = 3.0
BUSY_WAITING_MIN = 5
RISE = 0.5
FALL = 0.1
# A replica is slow below this part of the mean capacity of the other replicas.
SLOW = 0.75


class Reading:
    """The sums over all replicas of one usable sample."""

    __slots__ = (
        "consumed_per_s",
        "consumers",
        "draining",
        "oldest_age_s",
        "sample",
        "serving",
        "starting",
        "unacknowledged",
        "unreachable",
        "waiting",
    )

    def __init__(self, sample: QueueSample) -> None:
        self.sample = sample
        self.serving: list[ReplicaSample] = []
        self.starting: list[ReplicaSample] = []
        self.draining: list[ReplicaSample] = []
        self.unreachable = 0
        self.consumers = 0
        self.waiting = sample.alias_waiting
        self.unacknowledged = 0
        self.consumed_per_s = 0.0
        self.oldest_age_s = 0.0
        for one in sample.replicas:
            if one.state is ReplicaState.SERVING:
                self.serving.append(one)
            elif one.state is ReplicaState.STARTING:
                self.starting.append(one)
            else:
                self.draining.append(one)
            if not one.reachable:
                # A starting replica has no owner yet, which is not a failure.
                self.unreachable += one.state is not ReplicaState.STARTING
                continue
            self.consumers += one.consumers
            self.waiting += one.waiting
            self.unacknowledged += one.unacknowledged
            self.consumed_per_s += one.consumed_per_s
            self.oldest_age_s = max(self.oldest_age_s, one.oldest_age_s)

    @property
    def is_busy(self) -> bool:
        """Whether any message waits, is unacknowledged, or arrives."""
        return bool(self.waiting or self.unacknowledged or self.sample.arrived_per_s)

    @property
    def replicas(self) -> int:
        """The number of replicas that serve, start or are ordered; draining ones do not count."""
        return len(self.serving) + len(self.starting) + self.sample.pending


def complaint(sample: QueueSample, scaling: Scaling) -> tuple[str, str] | None:
    """Return the rule and the sentence that say why a sample is unusable; None if it is usable."""
    if not sample.age_s <= scaling.stale_s:
        if not math.isfinite(sample.age_s):
            return "held: stale", "Nothing has been measured yet."
        return (
            "held: stale",
            f"The oldest measurement is {sample.age_s:.1f} s old, past {scaling.stale_s:g} s.",
        )
    figures = sample.at + sample.arrived_per_s + sample.resource_load
    least = min(sample.arrived_per_s, sample.resource_load, sample.alias_waiting, sample.pending)
    numbers = set()
    for one in sample.replicas:
        numbers.add(one.number)
        figures += (
            one.produced_per_s + one.consumed_per_s + one.oldest_age_s + one.share + one.age_s
        )
        least = min(
            least,
            one.produced_per_s,
            one.consumed_per_s,
            one.waiting,
            one.unacknowledged,
            one.producers,
            one.consumers,
            one.share,
        )
    if not math.isfinite(figures) or not least >= 0.0:
        return "held: no measurement", "A measurement is missing, not a number, or below 0."
    if len(numbers) != len(sample.replicas):
        return "held: no measurement", "A replica is in the sample twice."
    return None


class Capacities:
    """The estimated capacity of each replica, in messages per second."""

    def __init__(self) -> None:
        self._per_s: dict[int, float] = {}

    @property
    def per_s(self) -> Mapping[int, float]:
        return self._per_s

    def learn(self, reading: Reading, period_s: float) -> None:
        """Update the estimates from replicas that are at their limit now.

        A rate above the estimate raises it in any case: a replica cannot consume more than its
        capacity.
        """
        known = self._per_s
        for one in reading.serving:
            if not one.reachable or one.age_s < STARTED_S:
                continue
            seen = one.consumed_per_s
            before = known.get(one.number)
            busy = not one.waiting_consumers and one.waiting >= max(
                0.5 * seen * period_s, BUSY_WAITING_MIN
            )
            if busy and seen > 0.0:
                known[one.number] = (
                    seen
                    if before is None
                    else before + (RISE if seen > before else FALL) * (seen - before)
                )
            elif before is not None and seen > before:
                known[one.number] = before + RISE * (seen - before)
        if len(known) > 2 * len(reading.sample.replicas) + 8:
            here = {one.number for one in reading.sample.replicas}
            self._per_s = {number: rate for number, rate in known.items() if number in here}

    def typical(self, reading: Reading) -> float | None:
        """Return the mean capacity of the serving replicas; None if nothing is known.

        If no serving replica has an estimate, the mean of all known replicas is used.
        """
        known = self._per_s
        here = [known[one.number] for one in reading.serving if one.number in known]
        if not here:
            here = list(known.values())
        return sum(here) / len(here) if here else None

    def slow(self, reading: Reading) -> set[int]:
        """Return the serving replicas that can do much less than the mean of the others."""
        known = self._per_s
        here = {one.number: known[one.number] for one in reading.serving if one.number in known}
        others, total = len(here) - 1, sum(here.values())
        return {number for number, rate in here.items() if rate * others < SLOW * (total - rate)}

    def of_fewer(self, staying: Iterable[int]) -> tuple[float, ...]:
        """Return the mean capacity of the first of these replicas, of the first two, and so on.

        `staying` is in the order in which replicas stay, so the first to be removed comes last.
        Empty if no capacity is known.
        """
        known = self._per_s
        if not known:
            return ()
        usual = sum(known.values()) / len(known)
        total, count = 0.0, 0
        means = []
        for number in staying:
            if number in known:
                total += known[number]
                count += 1
            means.append(total / count if count else usual)
        return tuple(means)
