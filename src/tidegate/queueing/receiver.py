"""The receiver of a message, or any client."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.core.segment import Segment
from tidegate.queueing.span import Span

# The receiver of an unaddressed message.
ANYONE = 0


def receiver_of(segment: Segment, offset: int) -> int:
    receivers = segment.receivers
    if receivers is None:
        return ANYONE
    return receivers[offset] if len(receivers) > 1 else receivers[0]


def by_receiver(span: Span) -> Iterator[tuple[int, Span]]:
    """Split a span into pieces with one receiver each."""
    receivers = span.segment.receivers
    if receivers is None:
        yield ANYONE, span
        return
    if len(receivers) == 1:
        yield receivers[0], span
        return
    low = span.low
    for offset in range(span.low + 1, span.high + 1):
        if offset == span.high or receivers[offset] != receivers[low]:
            yield receivers[low], Span(span.segment, low, offset, span.state)
            low = offset
