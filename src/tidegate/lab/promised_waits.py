"""How long messages waited by what clients saw, window by window, against what was promised.

    history → a wait from the confirmation of a put to the first delivery → agreement.windows

Nodes measure their waits themselves and the leader judges its agreements by them. This is the same
judgement by the same law, from outside: who promises is not the only one who measures. A confirmed
message that was never delivered has no wait here; the checker calls it lost or undrained.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.agreement.document import Agreement
from tidegate.agreement.windows import Sample, WindowVerdict, judged, windows_of
from tidegate.lab.history import Event, MessageKey


def waits(events: Iterable[Event], queue: str) -> list[tuple[float, float]]:
    """Of each message of a queue: when it was first delivered, and how long it had waited."""
    confirmed: dict[MessageKey, float] = {}
    delivered: dict[MessageKey, float] = {}
    for event in events:
        if event.queue != queue or event.phase != "ok":
            continue
        if event.op == "put":
            confirmed[event.key] = event.t
        elif event.op == "deliver":
            delivered.setdefault(event.key, event.t)
    # A delivery may come before the word that it is stored: then it waited for nothing.
    return sorted(
        (at_s, max(at_s - confirmed[key], 0.0))
        for key, at_s in delivered.items()
        if key in confirmed
    )


def judged_waits(
    events: Iterable[Event], agreement: Agreement, queue: str
) -> tuple[list[WindowVerdict], float]:
    """Every window of an agreement by what clients of the queue saw, and the longest wait."""
    seen = waits(events, queue)
    samples = [Sample(at_s=at_s, times={"wait": [(wait_s, 1.0)]}) for at_s, wait_s in seen]
    verdicts = [
        judged(agreement, begins_s, together)
        for begins_s, together in windows_of(agreement, samples)
    ]
    return verdicts, max((wait_s for _, wait_s in seen), default=0.0)
