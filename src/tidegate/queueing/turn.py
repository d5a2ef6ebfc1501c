"""Decides from which lane the next message comes.

Unaddressed messages and those for one receiver are merged by id. Messages of one producer and one
priority therefore stay in order. With ageing, priorities are merged by

    arrival - ageing * priority

A message's value never changes, so a low priority waits longer, but not forever.

While a message that may come first is in the store only, no lane is next. A span is never cut for
another lane, since no other message has an id within its segment.
"""

from __future__ import annotations

from tidegate.queueing.lane import Lane
from tidegate.queueing.tails import Tails


def next_lane(
    anyones: dict[int, Lane], mine: dict[int, Lane], tails: Tails, client_id: int, by_priority: bool
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
    best: Lane, best_id: int, tails: Tails, client_id: int, by_priority: bool
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
    anyones: dict[int, Lane], mine: dict[int, Lane], tails: Tails, client_id: int, ageing_s: float
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
