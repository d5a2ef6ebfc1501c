"""Segments from one store to another: copied under the move's id, then deleted, never twice.

    1  source   out of their queue, held under the move's id
    2  target   copied, together with the move's id, in one transaction fenced by the target's epoch
    3  source   deleted, and their batches remembered, fenced by the source's epoch

Whoever stops between two steps leaves a departure in the source's store. The next owner of the
source asks the target's store whether the move has arrived; a move that has not is cancelled there
by its id, so that a copy which is still under way is refused, and its segments come back. While the
target's store does not answer nobody knows, and they stay out of their queue.

A mover whom one of the stores refuses, because it is full, say, does the same at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tidegate.core.crash import crash_point
from tidegate.core.errors import IoFailure, TidegateError, Unavailable
from tidegate.core.replication import Move
from tidegate.storage.postgres import PostgresStore

log = logging.getLogger(__name__)

_TO_COPY, _REFUSED, _HERE = range(3)


async def move_between(source: PostgresStore, target: PostgresStore, move: Move) -> bool:
    """Whether they are in the target. An error: they are not, and are in their queue as before.

    Unavailable: nobody knows; ask again, or let `finish_departures` do it. IoFailure: nobody knows,
    and whoever asks again copies everything once more; `finish_departures` does not.
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


async def _move(source: PostgresStore, target: PostgresStore, move: Move) -> bool:
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
    # Refused for certain; and if this is a second try, the first one may have come before.
    return await _resolve(source, target, move)


async def _resolve(source: PostgresStore, target: PostgresStore, move: Move) -> bool:
    """Whether it has arrived, now or never; what has not is in its queue again."""
    try:
        arrived = await PostgresStore.has_arrived(target, move.move_id, move.target)
        await _end(source, target, move.move_id, move.source_epoch, arrived=arrived)
    except Unavailable:
        raise
    except TidegateError as failure:
        raise IoFailure(f"a move from queue {move.source} is not finished: {failure}") from None
    return arrived


async def _copy(source: PostgresStore, target: PostgresStore, move: Move) -> bool:
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
    """False: the source has another owner, who will do it."""
    rows = await source.ask("select end_departure(%s, %s, %s)", move_id, epoch, arrived)
    if rows[0][0]:
        return False
    try:
        await target.ask("select arrival_resolved(%s)", move_id)
    except TidegateError as failure:
        # Then it is remembered for ever, which is what it would be without this.
        log.info("a move stays remembered: %s", failure)
    return True


async def finish_departures(
    source: PostgresStore,
    holder: Callable[[int], Awaitable[PostgresStore]],
    queue_id: int,
    epoch: int,
) -> int:
    """Bring to an end what a mover of this queue left half done; how many came to it.

    There may be more, until it is 0. Unavailable: there are, and none of them can be ended now.
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
            # One store that is away, or full, keeps back nothing of the others.
            unknown = failure
    # Else whoever asked would not hear that something has come back.
    if unknown is not None and not ended:
        raise Unavailable(f"a move from queue {queue_id} is not finished: {unknown}")
    return ended
