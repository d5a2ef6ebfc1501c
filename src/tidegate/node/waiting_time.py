"""How long a message has waited: what everybody who counts it means by that."""

from __future__ import annotations

from tidegate.core.segment import Segment


def ready_for_s(segment: Segment, now: float) -> float:
    """How long it could have been delivered."""
    # A delay that was asked for is no wait.
    return max(now - (segment.due_at or segment.arrived_at), 0.0)
