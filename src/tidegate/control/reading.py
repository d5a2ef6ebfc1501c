"""A sample read once: whether it may be acted on, its sums, and what each replica can do.

Capacity is seen only when a replica is at its limit: messages wait in it for at least half a
period's work, and none of its consumers is idle. Then what it consumes is what it can. A higher
figure is believed at once by half, a lower one slowly: a pause is no loss of capacity.

What a replica was seen to do is remembered while it idles: one that was slow for a while, and is
well again, counts as slow until somebody needs more of it. So it is the first to go, and what those
that stay can do is asked of them (`of_fewer`), never of the mean of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tidegate.core.replication import ReplicaState
from tidegate.core.scaling import Scaling
from tidegate.core.steering import QueueSample, ReplicaSample

# A replica that has just begun shows how it starts, not what it can.
STARTED_S = 3.0
BUSY_WAITING_MIN = 5
RISE = 0.5
FALL = 0.1
# Of what the others do on average: below it a replica is slow.
SLOW = 0.75


class Reading:
    """The sums of one sample that may be acted on."""

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
                # A starting replica has no owner yet: that is no failure.
                self.unreachable += one.state is not ReplicaState.STARTING
                continue
            self.consumers += one.consumers
            self.waiting += one.waiting
            self.unacknowledged += one.unacknowledged
            self.consumed_per_s += one.consumed_per_s
            self.oldest_age_s = max(self.oldest_age_s, one.oldest_age_s)

    @property
    def is_busy(self) -> bool:
        """Whether there is anything at all to do."""
        return bool(self.waiting or self.unacknowledged or self.sample.arrived_per_s)

    @property
    def replicas(self) -> int:
        """Those that are to stay, once all have come."""
        return len(self.serving) + len(self.starting) + self.sample.pending


def complaint(sample: QueueSample, scaling: Scaling) -> tuple[str, str] | None:
    """Why a sample must not be acted on: the rule and a sentence; None: it may."""
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
    """What each replica was seen to consume at its limit."""

    def __init__(self) -> None:
        self._per_s: dict[int, float] = {}

    @property
    def per_s(self) -> Mapping[int, float]:
        return self._per_s

    def learn(self, reading: Reading, period_s: float) -> None:
        """From replicas that are at their limit now."""
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
        """What one replica can do: the mean of those that serve and are known, else of any."""
        known = self._per_s
        here = [known[one.number] for one in reading.serving if one.number in known]
        if not here:
            here = list(known.values())
        return sum(here) / len(here) if here else None

    def slow(self, reading: Reading) -> set[int]:
        """Those that serve and can do much less than the others."""
        known = self._per_s
        here = {one.number: known[one.number] for one in reading.serving if one.number in known}
        others, total = len(here) - 1, sum(here.values())
        return {number for number, rate in here.items() if rate * others < SLOW * (total - rate)}

    def of_fewer(self, staying: Iterable[int]) -> tuple[float, ...]:
        """`typical` if only the first of these served, the first two, …; empty: nothing is known.

        In the order in which they would stay: who goes first is the last.
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
