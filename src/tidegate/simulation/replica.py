"""One simulated replica: messages that wait in the order they came, and workers that take them.

Strategy: a fluid in whole messages. What comes within one tick is one cohort with one time; a tick
serves `capacity · tick` messages, the fraction carried over, oldest cohorts first. So the age of
the oldest message is known to a tick, nothing is ever lost in rounding, and an hour costs as much
at ten messages a second as at a million.
"""

from __future__ import annotations

from collections import deque

from tidegate.core.replication import ReplicaState
from tidegate.core.steering import ReplicaSample


class Replica:
    """A replica and its workers."""

    __slots__ = (
        "allowance",
        "arrived",
        "capacity_factor",
        "cohorts",
        "consumed",
        "consumers",
        "in_service",
        "machine_id",
        "number",
        "producers",
        "reachable",
        "sampled_arrived",
        "sampled_consumed",
        "serving_since",
        "share",
        "state",
        "taken_at",
        "waited_s",
        "waiting",
        "waits",
    )

    def __init__(
        self, number: int, machine_id: int | None, waits: list[tuple[float, float]] | None = None
    ) -> None:
        self.number = number
        # Where it is written how long how many waited; None: nobody asks.
        self.waits = waits
        self.machine_id = machine_id
        self.state = ReplicaState.STARTING
        # Whether its process runs.
        self.reachable = False
        self.share = 0.0
        self.capacity_factor = 1.0
        self.waiting = 0
        self.in_service = 0
        # When what is in service came.
        self.taken_at = 0.0
        # (when they came, how many), the oldest first; waiting is their sum.
        self.cohorts: deque[tuple[float, int]] = deque()
        # Service that was not used up, below one message.
        self.allowance = 0.0
        self.arrived = 0
        self.consumed = 0
        # The sum over all consumed messages.
        self.waited_s = 0.0
        self.sampled_arrived = 0
        self.sampled_consumed = 0
        self.serving_since = 0.0
        self.producers = 0
        self.consumers = 0

    def put(self, count: int, at: float) -> None:
        """Messages come."""
        self.cohorts.append((at, count))
        self.waiting += count
        self.arrived += count

    def serve(self, capacity_per_s: float, tick_s: float, now: float, in_service_max: int) -> float:
        """One tick of work that ends now; how long the longest waiter of it waited."""
        allowance = self.allowance + capacity_per_s * self.capacity_factor * tick_s
        due = int(allowance)
        longest_s = 0.0
        held = self.in_service
        if due < held:
            # Slow work: what is in hand stays there for longer than a tick.
            self.allowance = allowance
            return 0.0
        if held:
            longest_s = max(0.0, now - self.taken_at)
            self.waited_s += held * longest_s
            if self.waits is not None:
                self.waits.append((longest_s, held))
            self.consumed += held
            self.in_service = 0
        done = held
        cohorts = self.cohorts
        while done < due and cohorts:
            came_at, count = cohorts[0]
            take = min(count, due - done)
            if take == count:
                cohorts.popleft()
            else:
                cohorts[0] = (came_at, count - take)
            done += take
            self.waiting -= take
            self.consumed += take
            waited_s = now - came_at
            self.waited_s += take * waited_s
            if self.waits is not None:
                self.waits.append((waited_s, take))
            if waited_s > longest_s:
                longest_s = waited_s
        # An idle worker saves up no work; a fraction of a message goes on.
        self.allowance = allowance - done if cohorts else min(allowance - done, 1.0 - 1e-9)
        if cohorts and in_service_max:
            self._take(in_service_max)
        return longest_s

    def _take(self, count_max: int) -> None:
        """Workers take what they work on next."""
        self.taken_at = self.cohorts[0][0]
        while self.in_service < count_max and self.cohorts:
            came_at, count = self.cohorts[0]
            take = min(count, count_max - self.in_service)
            if take == count:
                self.cohorts.popleft()
            else:
                self.cohorts[0] = (came_at, count - take)
            self.in_service += take
            self.waiting -= take

    def crash(self) -> None:
        """Its process dies: what was in hand waits again, behind what came before it."""
        self.reachable = False
        self.allowance = 0.0
        if self.in_service:
            # Not always at the front: an exchange may have brought older ones meanwhile.
            self.take_over([(self.taken_at, self.in_service)])
            self.in_service = 0

    def give(self, count: int) -> list[tuple[float, int]]:
        """About so many waiting messages leave for another replica: the newest, whose turn here
        would be last."""
        gone: list[tuple[float, int]] = []
        while count > 0 and self.cohorts:
            came_at, there = self.cohorts.pop()
            take = min(there, count)
            if take < there:
                self.cohorts.append((came_at, there - take))
            gone.append((came_at, take))
            self.waiting -= take
            count -= take
        return gone[::-1]

    def take_over(self, cohorts: list[tuple[float, int]]) -> None:
        """Messages from another replica find their place by the time they came."""
        self.cohorts = deque(sorted([*self.cohorts, *cohorts]))
        self.waiting += sum(count for _, count in cohorts)

    def oldest_age_s(self, now: float) -> float:
        """How long the oldest message that is not done has been here."""
        came_at = now
        if self.in_service:
            came_at = min(came_at, self.taken_at)
        if self.cohorts:
            # An exchange may bring messages that are older than what is in hand.
            came_at = min(came_at, self.cohorts[0][0])
        return now - came_at

    def sample(self, now: float, period_s: float) -> ReplicaSample:
        """What its owner would say about the period that ends now."""
        arrived = self.arrived - self.sampled_arrived
        consumed = self.consumed - self.sampled_consumed
        self.sampled_arrived = self.arrived
        self.sampled_consumed = self.consumed
        return ReplicaSample(
            number=self.number,
            state=self.state,
            produced_per_s=arrived / period_s,
            consumed_per_s=consumed / period_s,
            waiting=self.waiting,
            unacknowledged=self.in_service,
            oldest_age_s=self.oldest_age_s(now),
            producers=self.producers,
            consumers=self.consumers,
            share=self.share,
            machine_id=self.machine_id,
            age_s=now - self.serving_since if self.state is not ReplicaState.STARTING else 0.0,
            reachable=self.reachable,
            waiting_consumers=0 if self.waiting or not self.reachable else max(self.consumers, 1),
        )
