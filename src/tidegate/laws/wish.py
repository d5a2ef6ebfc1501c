"""The input and the output of a scaling law: a `QueueSituation` and a `Proposal`.

A scaling law maps the situation of one logical queue to a proposed number of replicas. It does
not act. The autoscaler applies the guards that hold for every law: the bounds of the settings,
steps, the cool-down and a human's override.
"""

from __future__ import annotations

from typing import NamedTuple


class Situation(NamedTuple):
    """One sample of a logical queue, as every scaling law reads it.

    Rates are messages per second.
    """

    # Time in seconds on the control loop's clock.
    at: float
    # k: replicas that serve and are not being removed.
    serving: int
    # Ordered replicas that do not serve yet, because they start or wait for a slot.
    coming: int = 0
    draining: int = 0
    # Unreachable replicas among the serving and draining ones. `waiting` excludes their messages.
    away: int = 0
    # Waiting messages, including those in the alias.
    waiting: int = 0
    unacknowledged: int = 0
    arrived_per_s: float = 0.0
    consumed_per_s: float = 0.0
    oldest_age_s: float = 0.0
    # What one replica can consume: the mean of the serving replicas. `None` means not known yet.
    capacity_per_s: float | None = None
    # `capacity_per_s` if only 1, 2, … of the serving replicas remained. Empty means that all
    # replicas are alike.
    capacity_of_fewer_per_s: tuple[float, ...] = ()
    # Waiting messages per replica.
    min_load: float = 50.0
    max_load: float = 200.0
    # Whether `min_load` and `max_load` are computed from a tolerated wait and the capacity.
    loads_follow_capacity: bool = False
    # The last scale-up has not shown its effect yet.
    inhibited: bool = False
    # Seconds until a new replica serves: with a free slot, and when a machine must boot first.
    start_s: float = 5.0
    boot_s: float = 5.0
    # Free slots on running machines. `None` means not known.
    slots_free: int | None = None
    slots_per_machine: int = 1
    # Whether a warm machine is kept for growth that no forecast predicts.
    keeps_warm: bool = False

    @property
    def replicas(self) -> int:
        """Replicas that will serve once all ordered ones have started."""
        return self.serving + self.coming

    def with_fewer(self, count: int) -> Situation:
        """Return the situation right after all but `count` replicas have begun to drain.

        Laws use it to check a removal: `capacity_per_s` becomes the mean of the remaining
        replicas, and loads that follow the capacity change with it.
        """
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
        """Waiting messages per reachable replica that consumes them; draining replicas count."""
        return self.waiting / max(self.serving + self.draining - self.away, 1)


class Wish(NamedTuple):
    """The number of replicas that a law proposes, and why."""

    replicas: int
    # The rule in a few words, such as "avg_load > max_load".
    rule: str
    reason: str
    # What would have changed the proposal.
    otherwise: str
