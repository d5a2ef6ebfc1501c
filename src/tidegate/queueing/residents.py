"""What the segments of a queue in memory cost."""

from __future__ import annotations

from tidegate.core.budget import Budget
from tidegate.core.segment import Segment
from tidegate.queueing.groups import has_groups


class Residents:
    """Counts the memory of one queue's open segments, which is part of the node's budget."""

    __slots__ = ("_budget", "cost_bytes", "has_homed")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.cost_bytes = 0
        # Whether any segment since the last time there was none had groups or receivers.
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
        """Return all memory to the node's budget."""
        self._budget.used_bytes -= self.cost_bytes
        self.cost_bytes = 0
        self.has_homed = False
