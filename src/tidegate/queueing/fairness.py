"""Decides from which lane the next message comes.

Unaddressed messages and those for one receiver are merged by id. Messages of one producer and one
priority therefore stay in order. With ageing, priorities are merged by

    arrival - ageing * priority

A message's value never changes, so a low priority waits longer, but not forever.

While a message that may come first is in the store only, no lane is next. A span is never cut for
another lane, since no other message has an id within its segment.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.core.model import IdRange
from tidegate.core.segment import Segment
from tidegate.queueing import spans as spans_module
from tidegate.queueing.spans import Row, Span

if TYPE_CHECKING:
    from tidegate.queueing.lanes import Lane
    from tidegate.queueing.spilled import SpilledRanges


def next_lane(
    anyones: dict[int, Lane],
    mine: dict[int, Lane],
    tails: SpilledRanges,
    client_id: int,
    by_priority: bool,
) -> Lane | None:
    """Return the lane of the next message; None if there is none, or it is in the store only."""
    best: Lane | None = None
    best_id = 0
    in_store = False
    for lanes in (anyones, mine):
        for lane in lanes.values():
            waits = lane.tail_count > 0 and lane.waits_for_tail
            if lane.stalled if waits else not lane.count:
                continue
            next_id = lane.tail_from if waits else lane.first.first_id
            if (
                best is None
                or (by_priority and lane.priority > best.priority)
                or (next_id < best_id and not (by_priority and lane.priority < best.priority))
            ):
                best, best_id, in_store = lane, next_id, waits
            if by_priority:
                break  # Priorities are kept from high to low
    if best is None or in_store:
        return None
    if tails.addressed and _is_overtaken(best, best_id, tails, client_id, by_priority):
        return None
    return best


def _is_overtaken(
    best: Lane, best_id: int, tails: SpilledRanges, client_id: int, by_priority: bool
) -> bool:
    """Return whether an earlier message for the client may be in the store only."""
    for tail, from_id in tails.unsearched(client_id):
        if by_priority and tail.priority != best.priority:
            if tail.priority > best.priority:
                return True
        elif from_id < best_id:
            return True
    return False


def next_aged_lane(
    anyones: dict[int, Lane],
    mine: dict[int, Lane],
    tails: SpilledRanges,
    client_id: int,
    ageing_s: float,
) -> Lane | None:
    """Return the lane of the next message, with ageing; otherwise as `next_lane`.

    All messages of a segment arrived together, so they stay together.
    """
    best: Lane | None = None
    best_rank = (0.0, 0)
    in_store = False
    for lane in (*anyones.values(), *mine.values()):
        waits = lane.waits_for_tail
        if waits and lane.stalled:
            continue
        if waits:
            arrived_at, next_id = lane.tail_arrived_at, lane.tail_from
        elif lane.count:
            first = lane.first
            arrived_at, next_id = first.segment.arrived_at, first.first_id
        else:
            continue
        rank = (arrived_at - ageing_s * lane.priority, next_id)
        if best is None or rank < best_rank:
            best, best_rank, in_store = lane, rank, waits
    if best is None or in_store:
        return None
    if not tails.addressed:
        return best
    for tail, from_id in tails.unsearched(client_id):
        rank = (tail.tail_arrived_at - ageing_s * tail.priority, from_id)
        # Within a lane ids decide, not arrival times.
        is_same_lane = mine.get(tail.priority) is best
        if rank[1] < best_rank[1] if is_same_lane else rank < best_rank:
            return None
    return best


# Tenants: the ready messages of a lane, shared fairly among the tenants that put them.
#
# This is start-time fair queueing with equal weights, in which every message costs one. The next
# message of a tenant has
#
#     start = max(virtual time, start of its previous message + 1)
#
# The tenant with the lowest start is next. The virtual time is the start of the message that was
# taken last. Tenants with waiting messages therefore get equal shares. A tenant that was idle has
# saved nothing, and a tenant that puts messages singly does not overtake tenants with a backlog.
# Messages without a tenant are a tenant of their own. The messages of one tenant stay in order of
# their ids.


# Idle tenants that are kept, in addition to as many as there are active ones.
IDLE_MAX = 256


def tenant_of(span: Span) -> str | None:
    """Return the tenant of the first message of a span."""
    return _tenant_at(span.segment, span.low)


def _tenant_at(segment: Segment, offset: int) -> str | None:
    attributes = segment.attributes
    mine = None if attributes is None else attributes[offset]
    return None if mine is None else mine.tenant


def carries_tenants(span: Span) -> bool:
    segment = span.segment
    if segment.attributes is None:
        return False
    return any(_tenant_at(segment, offset) is not None for offset in range(span.low, span.high))


def split_by_tenant(span: Span) -> Iterator[Span]:
    """Split a span into pieces of one tenant each."""
    segment = span.segment
    if segment.attributes is None:
        yield span
        return
    low, tenant = span.low, tenant_of(span)
    for offset in range(span.low + 1, span.high):
        if (other := _tenant_at(segment, offset)) != tenant:
            yield Span(segment, low, offset, span.state)
            low, tenant = offset, other
    yield Span(segment, low, span.high, span.state)


class Tenant:
    """The messages of one tenant, and the start of its next message."""

    __slots__ = ("in_turns", "row", "start")

    def __init__(self) -> None:
        self.row: Row = deque()
        self.start = 0
        # Whether it has an entry in the heap of turns.
        self.in_turns = False


class Tenants:
    """Rows of spans, one for each tenant, and whose turn it is."""

    __slots__ = ("_tenants", "_turns", "_virtual_time")

    def __init__(self) -> None:
        self._tenants: dict[str | None, Tenant] = {}
        # A heap of (start, id of the first message, tenant). An entry is corrected when it comes to
        # the top, if its tenant has no messages any more or a later start.
        self._turns: list[tuple[int, int, Tenant]] = []
        self._virtual_time = 0

    def insert(self, span: Span) -> None:
        """Add a span of any tenants, new or returned."""
        for piece in split_by_tenant(span):
            key = tenant_of(piece)
            tenant = self._tenants.get(key)
            if tenant is None:
                self._forget_idle()
                tenant = self._tenants[key] = Tenant()
            if not tenant.row:
                tenant.start = max(tenant.start, self._virtual_time)
            spans_module.insert_span(tenant.row, piece)
            if not tenant.in_turns:
                tenant.in_turns = True
                heapq.heappush(self._turns, (tenant.start, piece.first_id, tenant))

    def _forget_idle(self) -> None:
        if len(self._tenants) < IDLE_MAX + 2 * len(self._turns):
            return
        now = self._virtual_time
        self._tenants = {
            key: tenant
            for key, tenant in self._tenants.items()
            if tenant.in_turns or tenant.start > now
        }

    def _next(self) -> Tenant:
        """Return the tenant whose turn it is; there must be one with messages."""
        turns = self._turns
        while True:
            start, first_id, tenant = turns[0]
            if not tenant.row:
                heapq.heappop(turns)
                tenant.in_turns = False
            elif start != tenant.start:
                heapq.heapreplace(turns, (tenant.start, first_id, tenant))
            else:
                return tenant

    @property
    def first(self) -> Span:
        """The span from which the next message is taken."""
        return self._next().row[0]

    def take(self, count: int) -> Span:
        """Take the next messages, at most `count`, of one tenant and one span."""
        tenant = self._next()
        span = tenant.row[0]
        turns = self._turns
        # It is this tenant's turn until the start of the next one; without another, for all
        # messages.
        others = turns[1:3]
        if others:
            count = min(count, max(min(others)[0] - tenant.start, 1))
        if len(span) > count:
            span = span.split(count)
        else:
            tenant.row.popleft()
        tenant.start += len(span)
        self._virtual_time = tenant.start - 1
        if tenant.row:
            heapq.heapreplace(turns, (tenant.start, tenant.row[0].first_id, tenant))
        else:
            heapq.heappop(turns)
            tenant.in_turns = False
        return span

    def row_of(self, span: Span) -> Row:
        """Return the row of the tenant of `span`."""
        tenant = self._tenants.get(tenant_of(span))
        return deque() if tenant is None else tenant.row

    def rows(self) -> list[Row]:
        """Return the messages of each tenant, in order of their ids."""
        return [tenant.row for tenant in self._tenants.values()]

    def cut_out(self, span: Span, low: int, high: int) -> Span:
        """Take messages out of order; they count for their tenant's share all the same."""
        tenant = self._tenants[tenant_of(span)]
        tenant.start += high - low
        return spans_module.cut_out_range(tenant.row, span, low, high)

    def take_between(self, ranges: list[IdRange]) -> list[Span]:
        """Take the messages with these ids; they count for their tenant's share all the same."""
        taken: list[Span] = []
        for tenant in self._tenants.values():
            spans = spans_module.take_ranges(tenant.row, ranges)
            tenant.start += sum(map(len, spans))
            taken += spans
        return taken

    def __iter__(self) -> Iterator[Span]:
        """Iterate over all spans in order of their ids."""
        spans = [span for tenant in self._tenants.values() for span in tenant.row]
        return iter(sorted(spans, key=lambda span: span.first_id))

    @property
    def oldest(self) -> Span:
        rows = (tenant.row for tenant in self._tenants.values() if tenant.row)
        return min((spans[0] for spans in rows), key=lambda span: span.first_id)
