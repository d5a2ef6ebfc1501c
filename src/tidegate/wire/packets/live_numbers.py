"""Packets to ask for live numbers."""

from __future__ import annotations

from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request


class StatsResponse(Answer):
    """Live numbers, as in telemetry/numbers.py; JSON in the body."""

    method = 0x62


class Stats(Request):
    """Live numbers of one queue, or of all this node owns; `cluster` asks the other nodes too."""

    method = 0x61
    answer = StatsResponse
    right = Right.SEE
    queue_id: int | None = None
    cluster: bool = True
    # Of each consumer whose prefetch is steered, so many of the last control steps.
    steps: int = 1
    # False: of queues themselves, and not of each of their consumers.
    consumers: bool = True
    # False: no histograms either, nor what only loops read. For who looks at all queues all the
    # time: a tenth of the work.
    durations: bool = True
