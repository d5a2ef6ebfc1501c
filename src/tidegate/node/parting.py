"""Splits segments whose messages are assigned to different replicas.

Only a queue that had no replicas before has such segments, or one that gets publications. Each run
of neighbouring messages with the same slot becomes a segment of its own. Messages keep their ids,
so the order stays the same. The first run stays in the old segment. Each segment is split in one
transaction.
"""

from __future__ import annotations

from tidegate.core.ports import Settlement, Write
from tidegate.core.replication import Topology
from tidegate.node.homes import homes_of, runs_by_home
from tidegate.node.joint_commit import commit_once
from tidegate.node.lifecycle_watch import MOVED
from tidegate.node.replica import Replica
from tidegate.queueing.lifecycle import State
from tidegate.queueing.span import Span

_COUNT_MAX = 20_000
_BYTES_MAX = 8 * 1024 * 1024
_IDS_MAX = 1 << 62


async def part(replica: Replica, topology: Topology) -> int:
    """Split ready segments up to a limit of messages; return how many segments were split."""
    homes = topology.homes
    if not homes or not replica.holding.queue.residents.has_homed:
        return 0
    chosen = replica.departures.take_segments(
        lambda segment, _: len({abs(homes[index]) for index in homes_of(segment)}) > 1,
        _COUNT_MAX,
        _BYTES_MAX,
        _IDS_MAX,
    )
    if not chosen:
        return 0
    replica.homes.cut_up({home for spans in chosen for home in homes_of(spans[0].segment)})
    try:
        for at, spans in enumerate(chosen):
            try:
                await _cut_up(replica, spans)
            except BaseException:
                replica.departures.stay([span for rest in chosen[at + 1 :] for span in rest])
                raise
    finally:
        replica.homes.cut_up(set())
    return len(chosen)


async def _cut_up(replica: Replica, spans: list[Span]) -> None:
    segment = spans[0].segment
    first, *others = runs_by_home(segment)
    pieces = [segment.cut(low, high) for low, high in others]
    kept = Span(segment, *first, State.LEAVING)
    cut = [Span(segment, low, high, State.LEAVING) for low, high in others]
    settlement = Settlement(replica.info.queue_id, replica.epoch)
    settlement.partly[segment.first_id] = others
    for piece in pieces:
        replica.intake.arrivals.on_its_way(piece.first_id)
    try:
        # Acknowledgements must be on disk first, or they would be lost for the new segments.
        await replica.settled()
        writes = [Write(piece, replica.epoch, [], []) for piece in pieces]
        await commit_once(replica.holding.store, writes, [settlement])
    except BaseException:
        for piece in pieces:
            replica.intake.arrivals.not_coming(piece.first_id)
        replica.departures.stay([kept, *cut])
        raise
    replica.departures.left(cut, settlement, MOVED)
    replica.departures.stay([kept])
    for piece in pieces:
        replica.intake.arrivals.came_apart(piece)
