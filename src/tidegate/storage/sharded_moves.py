"""Moves segments between stores: copied under the move's id, then deleted, never twice.

The steps of a move:

    1  source   takes them out of their queue and holds them under the move's id
    2  target   stores copies and the move's id, in one transaction fenced by its epoch
    3  source   deletes them and remembers their batches, fenced by its epoch

If the node stops between two steps, a departure is left in the source's store. The next owner of
the source asks the target's store whether the move has arrived. If not, that question cancels the
move: a copy that is still running is refused, and the segments return to their queue. While the
target's store does not answer, the result is unknown, and the segments are in no queue.

If one of the stores refuses a step, for example because it is full, the node resolves the move in
the same way at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tidegate.core.errors import IoFailure, TidegateError, Unavailable
from tidegate.core.runtime import crash_point
from tidegate.core.topology import SegmentMove
from tidegate.storage.postgres.store import PostgresStore

log = logging.getLogger(__name__)

_TO_COPY, _REFUSED, _HERE = range(3)


async def move_segments(source: PostgresStore, target: PostgresStore, move: SegmentMove) -> bool:
    """Move segments; return whether they are in the target.

    After `Unavailable` the result is unknown: the caller repeats the move or calls `finish_moves`.
    After `IoFailure` it is unknown too, but repeating would copy everything again, so only
    `finish_moves` should be used. After any other error the segments are in their queue as before.
    """
    try:
        return await _move(source, target, move)
    except Unavailable:
        raise
    except TidegateError as failure:
        log.warning("a move from queue %d is given up: %s", move.source, failure)
        if await _resolve(source, target, move):
            return True
        raise


async def _move(source: PostgresStore, target: PostgresStore, move: SegmentMove) -> bool:
    crash_point("before-departure")
    rows = await source.ask(
        "select depart(%s, %s::int, %s, %s::int, %s::bigint[], %s::bigint[])",
        move.move_id,
        move.source,
        move.source_epoch,
        move.target,
        list(move.first_ids),
        list(move.new_first_ids),
    )
    if rows[0][0]:
        return False
    crash_point("after-departure")
    if await _copy(source, target, move):
        crash_point("after-arrival")
        await _end(source, target, move.move_id, move.source_epoch, arrived=True)
        crash_point("after-leaving")
        return True
    # This copy was refused. If it was a second attempt, the first one may have arrived.
    return await _resolve(source, target, move)


async def _resolve(source: PostgresStore, target: PostgresStore, move: SegmentMove) -> bool:
    """Find out whether the move has arrived, or cancel it; return whether it has.

    The segments of a cancelled move return to their queue.
    """
    try:
        arrived = await PostgresStore.has_arrived(target, move.move_id, move.target)
        await _end(source, target, move.move_id, move.source_epoch, arrived=arrived)
    except Unavailable:
        raise
    except TidegateError as failure:
        raise IoFailure(f"a move from queue {move.source} is not finished: {failure}") from None
    return arrived


async def _copy(source: PostgresStore, target: PostgresStore, move: SegmentMove) -> bool:
    rows = await source.ask("select * from departing(%s)", move.move_id)
    async with target.transaction() as call:
        answer = (
            await call(
                "select arrive(%s, %s::int, %s)", move.move_id, move.target, move.target_epoch
            )
        )[0][0]
        if answer == _TO_COPY:
            for row in rows:
                await call(_ARRIVE, move.target, *row)
        crash_point("before-arrival")
    return bool(answer != _REFUSED)


_ARRIVE = """
select arrive_segment(%s::int, %s, %s::smallint, %s, %s, %s::int[], %s::int[], %s::int[],
                      %s::bigint[], %s, %s::bytea, %s, %s)
"""


async def _end(
    source: PostgresStore, target: PostgresStore, move_id: str, epoch: int, *, arrived: bool
) -> bool:
    """End a departure; return False if the source has another owner, which will do it."""
    rows = await source.ask("select end_departure(%s, %s, %s)", move_id, epoch, arrived)
    if rows[0][0]:
        return False
    try:
        await target.ask("select arrival_resolved(%s)", move_id)
    except TidegateError as failure:
        # The move then stays recorded in the target's store, which is harmless.
        log.info("a move stays remembered: %s", failure)
    return True


async def finish_moves(
    source: PostgresStore,
    holder: Callable[[int], Awaitable[PostgresStore]],
    queue_id: int,
    epoch: int,
) -> int:
    """Finish the moves from a queue that were interrupted; return how many.

    More may be left until the result is 0. Raises `Unavailable` if there are some and none can be
    finished now.
    """
    ended = 0
    unknown: TidegateError | None = None
    for move_id, target_id in await source.ask("select * from departures(%s::int)", queue_id):
        try:
            target = await holder(target_id)
            arrived = await PostgresStore.has_arrived(target, move_id, target_id)
            crash_point("after-asking")
            ended += await _end(source, target, move_id, epoch, arrived=arrived)
        except TidegateError as failure:
            # A store that does not answer, or is full, must not delay moves to the others.
            unknown = failure
    # If some were finished, the caller must learn that messages have come back.
    if unknown is not None and not ended:
        raise Unavailable(f"a move from queue {queue_id} is not finished: {unknown}")
    return ended
