"""How long a message has waited before its delivery, for stats and telemetry."""

from __future__ import annotations

from tidegate.core.segment import Segment


def ready_for_s(segment: Segment, now: float) -> float:
    """Return how many seconds the segment could have been delivered."""
    # A requested delay is no wait.
    return max(now - (segment.due_at or segment.arrived_at), 0.0)
