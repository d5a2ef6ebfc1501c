"""What a law of scaling sees, and what it says: a queue's situation in, a number of replicas out.

Laws wish; they do not act. Bounds, steps, cool-down, a person's word and everything else that holds
for all of them is the autoscaler's (control/autoscaler.py).
"""

from __future__ import annotations

from typing import NamedTuple


class Situation(NamedTuple):
    """A logical queue at one moment, as every law reads it. Rates are messages a second."""

    # Seconds, of the loop's own clock.
    at: float
    # k: replicas that serve and are to stay.
    serving: int
    # Ordered ones that do not serve yet: starting, or without a slot.
    coming: int = 0
    draining: int = 0
    # Of those that serve or drain: cannot be reached, and what waits in them is not counted.
    away: int = 0
    # Messages that wait, those of the alias too.
    waiting: int = 0
    unacknowledged: int = 0
    arrived_per_s: float = 0.0
    consumed_per_s: float = 0.0
    oldest_age_s: float = 0.0
    # What one replica can consume: the mean of those that serve; None: not known yet.
    capacity_per_s: float | None = None
    # The same if only so many served, of those that would stay: one, two, …; empty: all are alike.
    capacity_of_fewer_per_s: tuple[float, ...] = ()
    # Messages per replica.
    min_load: float = 50.0
    max_load: float = 200.0
    # Whether loads are a tolerated wait times the capacity.
    loads_follow_capacity: bool = False
    # A scale-up is still to show what it does.
    inhibited: bool = False
    # Until a replica that has a slot serves, and until one that needs a machine first does.
    start_s: float = 5.0
    boot_s: float = 5.0
    # Slots without a replica on machines that run; None: not known.
    slots_free: int | None = None
    slots_per_machine: int = 1
    # Whether a machine is kept warm for what nobody foresees.
    keeps_warm: bool = False

    @property
    def replicas(self) -> int:
        """Those that are to stay, once all have come."""
        return self.serving + self.coming

    def with_fewer(self, count: int) -> Situation:
        """The moment after all but so many have begun to go: the same facts, and who is left."""
        serving = min(count, self.serving)
        before = self.capacity_per_s
        capacity, part = before, 1.0
        if before and 0 < serving <= len(self.capacity_of_fewer_per_s):
            capacity = self.capacity_of_fewer_per_s[serving - 1]
            part = capacity / before if self.loads_follow_capacity else 1.0
        return self._replace(
            serving=serving,
            coming=count - serving,
            draining=self.draining + self.serving - serving,
            capacity_per_s=capacity,
            min_load=part * self.min_load,
            max_load=part * self.max_load,
        )

    @property
    def average_load(self) -> float:
        """Waiting messages per replica that consumes them: going ones, and none that is away."""
        return self.waiting / max(self.serving + self.draining - self.away, 1)


class Wish(NamedTuple):
    """How many replicas a law wants, and why."""

    replicas: int
    # In a few words: "avg_load > max_load".
    rule: str
    reason: str
    # What would have changed it.
    otherwise: str
