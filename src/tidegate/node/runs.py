"""Turns spans of a queue into runs of a packet, by slicing columns."""

from __future__ import annotations

from typing import TypeVar

from tidegate.node.holding import Holding
from tidegate.queueing.lease import Lease
from tidegate.queueing.span import Span
from tidegate.wire.packets.run import Run

Entry = TypeVar("Entry")


def run_of(span: Span, tag: int) -> Run:
    """Return a span as a run with tags from `tag`; 0 for messages that are not leased."""
    segment = span.segment
    low, high = span.low, span.high
    attempts = segment.attempts
    now = 1 if tag else 0
    if attempts is None:
        deliveries = [now]
    else:
        deliveries = [attempts.get(offset, 0) + now for offset in range(low, high)]
    return Run(
        tag=tag,
        message_id=segment.first_id + low,
        lengths=segment.lengths if high - low == segment.count else segment.lengths[low:high],
        senders=_cut(segment.senders, low, high),
        priority=segment.priority,
        arrived_at=segment.arrived_at,
        receivers=None if segment.receivers is None else _cut(segment.receivers, low, high),
        contexts=None if segment.contexts is None else segment.contexts[low:high],
        attributes=None if segment.attributes is None else segment.attributes[low:high],
        redelivered=segment.reloaded,
        deliveries=deliveries,
    )


def counted_run(holding: Holding, lease: Lease) -> Run:
    """Return a leased span as a run, and count its delivery."""
    span = lease.span
    segment = span.segment
    meters = holding.meters
    meters.delivered.add(len(span))
    watch = holding.watch
    if watch is not None and segment.first_id in watch.segments:
        watch.delivered(span, lease.granted_at)
    if segment.reloaded or segment.attempts is not None:
        meters.redelivered.add(len(span))
    else:
        # A requested delay is no wait.
        waited_s = holding.clock.wall() - (segment.due_at or segment.arrived_at)
        meters.wait.add(max(waited_s, 0.0), len(span))
    return run_of(span, lease.tag)


def _cut(column: list[Entry], low: int, high: int) -> list[Entry]:
    """Slice a column; one with a single element applies to all messages and stays as it is."""
    return column if len(column) in (1, high - low) else column[low:high]
