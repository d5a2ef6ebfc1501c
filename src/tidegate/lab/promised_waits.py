"""The waiting times that clients recorded, judged against an agreement window by window.

    history → a wait from the confirmation of a put to the first delivery → agreement.windows

Nodes measure waits themselves, and the leader judges its agreements by those. This module applies
the same rules to the clients' records, so that an error in the nodes' meters is found. A confirmed
message that was never delivered has no wait here; the checker counts it as lost or undrained.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.agreement.document import Agreement
from tidegate.agreement.windows import Sample, WindowVerdict, judged, windows_of
from tidegate.lab.history import Event, MessageKey


def waits(events: Iterable[Event], queue: str) -> list[tuple[float, float]]:
    """Return the time of the first delivery and the wait of each confirmed message of a queue."""
    confirmed: dict[MessageKey, float] = {}
    delivered: dict[MessageKey, float] = {}
    for event in events:
        if event.queue != queue or event.phase != "ok":
            continue
        if event.op == "put":
            confirmed[event.key] = event.t
        elif event.op == "deliver":
            delivered.setdefault(event.key, event.t)
    # A delivery may come before the confirmation of the put; its wait is 0.
    return sorted(
        (at_s, max(at_s - confirmed[key], 0.0))
        for key, at_s in delivered.items()
        if key in confirmed
    )


def judged_waits(
    events: Iterable[Event], agreement: Agreement, queue: str
) -> tuple[list[WindowVerdict], float]:
    """Return the verdict of every window of an agreement, and the longest wait in seconds."""
    seen = waits(events, queue)
    samples = [Sample(at_s=at_s, times={"wait": [(wait_s, 1.0)]}) for at_s, wait_s in seen]
    verdicts = [
        judged(agreement, begins_s, together)
        for begins_s, together in windows_of(agreement, samples)
    ]
    return verdicts, max((wait_s for _, wait_s in seen), default=0.0)
