"""Packets to ask for live stats."""

from __future__ import annotations

from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request


class StatsResponse(Answer):
    """Live stats as JSON in the body."""

    method = 0x62


class Stats(Request):
    """Get live stats of one queue, or of all; `cluster` includes the other nodes."""

    method = 0x61
    answer = StatsResponse
    right = Right.SEE
    queue_id: int | None = None
    cluster: bool = True
    # How many of the latest control steps to include per consumer with a controlled prefetch.
    steps: int = 1
    # False leaves out the consumers.
    consumers: bool = True
    # False leaves out histograms, and stats for control loops. This takes a tenth of the work, for
    # clients that poll all queues.
    durations: bool = True
