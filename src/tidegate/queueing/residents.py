"""The residents of a queue: its open segments in memory, ready or leased, and what they cost."""

from __future__ import annotations

from tidegate.core.budget import Budget
from tidegate.core.segment import Segment
from tidegate.queueing.groups import has_groups


class Residents:
    """Counters of one queue, which are part of a node's."""

    __slots__ = ("_budget", "cost_bytes", "has_homed")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.cost_bytes = 0
        # Whether, since that was last nothing, any of them was of groups or addressed.
        self.has_homed = False

    def add(self, segment: Segment) -> None:
        cost_bytes = segment.cost_bytes
        self.cost_bytes += cost_bytes
        self._budget.used_bytes += cost_bytes
        if segment.receivers is not None or (
            segment.attributes is not None and has_groups(segment)
        ):
            self.has_homed = True

    def remove(self, segment: Segment) -> None:
        cost_bytes = segment.cost_bytes
        self.cost_bytes -= cost_bytes
        self._budget.used_bytes -= cost_bytes
        if not self.cost_bytes:
            self.has_homed = False

    def clear(self) -> None:
        """Give all their memory back."""
        self._budget.used_bytes -= self.cost_bytes
        self.cost_bytes = 0
        self.has_homed = False
