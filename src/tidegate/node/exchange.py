"""Waiting messages go from a queue to its sibling, in whole segments.

    taker   reserves ids → asks the giver's owner → reads what came → admits it
    giver   takes whole ready segments out → acknowledgements on disk → store.move → forgets them

The move is one transaction, fenced by the epochs of both. Whoever dies, it happened or it did not:
the giver's next owner finds what stayed, the taker's next owner finds what came. When an answer
was lost the store is asked whether the move has arrived; if not, the question itself cancels it, so
that a giver which is still at it is refused and keeps what it has. Who cannot tell what the store
has of what memory has not, giver or taker, lets go of its queue: it is loaded anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidegate.core.crash import crash_point
from tidegate.core.ending import ended
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    LimitReached,
    NotOwner,
    QueueNotExisting,
    StaleEpoch,
    Unavailable,
)
from tidegate.core.id_ranges import Range
from tidegate.core.replication import Move, ReplicaState, Topology
from tidegate.core.segment import Segment
from tidegate.node.checks import BATCH_COUNT_MAX
from tidegate.node.homes import homes_of
from tidegate.node.replica import Replica
from tidegate.queueing.groups import has_groups
from tidegate.wire.packet import Packet
from tidegate.wire.packets.exchange import GiveAway, GiveAwayResponse

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# What goes in one move.
MOVE_COUNT_MAX = 20_000
MOVE_BYTES_MAX = 8 * 1024 * 1024
# Ids that are reserved at first; for a segment of more messages it is asked again.
_ID_COUNT = 8192
_READ_SEGMENTS = 10_000
_READ_BYTES = 64 * 1024 * 1024
_ANSWER_S = 10.0
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
# Tries of what is certain not to have happened.
_TRIES = 5
# Moves of late whose outcome is remembered, for who did not hear it.
_REMEMBERED = 1000

# Then nothing was done.
_REFUSALS = (NotOwner, StaleEpoch, LimitReached)

Result = TypeVar("Result")


class Exchange:
    """Both sides, for all queues of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._given: dict[str, asyncio.Task[GiveAwayResponse]] = {}
        self._pulls: set[asyncio.Task[int]] = set()

    async def close(self) -> None:
        """End what is under way: the store knows how far it came."""
        await ended([*self._given.values(), *self._pulls])

    # The taker

    async def pull(self, taker: Replica, source_id: int, count: int, *, homed: bool = False) -> int:
        """Take about so many messages over that may be anywhere, or (`homed`) all at home here.

        How many came. What has a home comes the one way only, so that its order is kept.
        """
        _check(taker)
        if count < 1:
            raise InvalidValue(f"count must be at least 1, not {count}")
        if self._node.aliases.topology_with(taker.info.queue_id, source_id) is None:
            raise InvalidValue(f"queue {source_id} and {taker.info.title} are no siblings")
        if not _has_room(taker):
            return 0
        task = asyncio.create_task(self._pull(taker, source_id, min(count, MOVE_COUNT_MAX), homed))
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)
        # Who asked may go away: what was begun is ended all the same.
        return await asyncio.shield(task)

    async def _pull(self, taker: Replica, source_id: int, count: int, homed: bool) -> int:
        came, ids_needed = await self._pull_under(taker, source_id, count, homed, _ID_COUNT)
        if ids_needed:
            ids = min(ids_needed, BATCH_COUNT_MAX)
            came, _ = await self._pull_under(taker, source_id, count, homed, ids)
        if homed:
            # Its home may be elsewhere by now, and so may be that of what waited for it.
            self._node.aliases.wake_hand_over(taker)
        return came

    async def _pull_under(
        self, taker: Replica, source_id: int, count: int, homed: bool, id_count: int
    ) -> tuple[int, int]:
        """How many messages came; or how many ids have to be reserved for the first."""
        block = taker.intake.arrivals.expect(id_count)
        came: list[Segment] = []
        if homed:
            taker.homes.groups_wait(block[0])
        try:
            answer = await self._ask(taker, source_id, block, count, homed)
            crash_point("after-pull-answer")
            if not answer.segments:
                return 0, answer.ids_needed
            untouched = set(answer.untouched)
            async with taker.exchanging:
                try:
                    came = await self._read(taker, block)
                except Exception:
                    # It is stored here, and nobody would serve it.
                    _load_anew(taker)
                    raise
                for segment in came:
                    segment.reloaded = segment.first_id not in untouched
                crash_point("before-came-over")
                taker.intake.arrivals.came_over(block, came)
        finally:
            taker.intake.arrivals.came_over(block, [])
            if homed:
                taker.homes.groups_go_on(block[0])
        return sum(segment.open for segment in came), 0

    async def _ask(
        self, taker: Replica, source_id: int, block: Range, count: int, homed: bool
    ) -> GiveAwayResponse:
        """Have the giver move what it can, and hear what came."""
        # All that is known of what came when nobody says it.
        something, nothing = GiveAwayResponse([block]), GiveAwayResponse([])
        request = GiveAway(
            source_id,
            taker.info.queue_id,
            taker.epoch,
            block[0],
            block[1] - block[0] + 1,
            count,
            # Ids are given out once.
            f"{taker.info.queue_id}/{block[0]}",
            homed,
        )
        in_doubt = False
        tries = 0
        backoff_s = _BACKOFF_FIRST_S
        while not taker.fenced:
            tries += 1
            try:
                if in_doubt:
                    # It came, or it was cancelled by our asking: whoever still is at it is refused.
                    came = await self._has_come(request.move_id, request.target)
                    return something if came else nothing
                giver = await self._node.ownership.route(source_id)
                crash_point("before-pull")
                if isinstance(giver, Replica):
                    answer: Packet = await self.give_away(giver, request)
                else:
                    answer = await self._node.neighbours.ask(giver, request, _ANSWER_S)
                assert isinstance(answer, GiveAwayResponse)
                return answer
            except QueueNotExisting:
                return nothing
            except _REFUSALS as refusal:
                # Between stores a refused move is cancelled: a store that is full is asked for
                # another one, by whoever pulls next. What may have come is not given up.
                is_over = tries >= _TRIES or isinstance(refusal, LimitReached)
                if is_over and not in_doubt:
                    raise Unavailable(f"nothing can be taken over now: {refusal}") from None
            except (Unavailable, IoFailure):
                in_doubt = True
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
        return nothing

    async def _has_come(self, move_id: str, target: int) -> bool:
        return await self._node.store.has_arrived(move_id, target)

    async def _read(self, taker: Replica, block: Range) -> list[Segment]:
        """What came, as the store has it."""
        first_id, last_id = block
        found: list[Segment] = []
        while not taker.fenced:
            some = await self._insist(taker, partial(self._read_from, taker, first_id, last_id))
            if not some:
                return found
            found += some
            first_id = some[-1].last_id + 1
            if first_id > last_id:
                return found
        return []

    async def _read_from(self, taker: Replica, first_id: int, last_id: int) -> list[Segment]:
        return await self._node.store.read_between(
            taker.info.queue_id, first_id, last_id, _READ_SEGMENTS, _READ_BYTES
        )

    async def _insist(self, replica: Replica, work: Callable[[], Awaitable[Result]]) -> Result:
        """While the store is away, and the queue ours."""
        backoff_s = _BACKOFF_FIRST_S
        while True:
            try:
                return await work()
            except Unavailable:
                if replica.fenced:
                    raise
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    # The giver

    async def give_away(self, giver: Replica, request: GiveAway) -> GiveAwayResponse:
        """Move what is ready, and may go there, to the queue that asks."""
        task = self._given.get(request.move_id)
        if task is None:
            _check(giver)
            task = asyncio.create_task(self._give_away(giver, request))
            self._given[request.move_id] = task
            task.add_done_callback(partial(self._over, request.move_id))
            while len(self._given) > _REMEMBERED:
                oldest = next(iter(self._given))
                if not self._given[oldest].done():
                    break
                del self._given[oldest]
        return await asyncio.shield(task)

    def _over(self, move_id: str, task: asyncio.Task[GiveAwayResponse]) -> None:
        """Who was refused may ask again, and is not told what was so then."""
        if not task.cancelled() and isinstance(task.exception(), _REFUSALS):
            self._given.pop(move_id, None)

    async def _give_away(self, giver: Replica, request: GiveAway) -> GiveAwayResponse:
        topology = self._node.aliases.topology_with(giver.info.queue_id, request.target)
        if topology is None:
            raise NotOwner("the topology is not known here yet: ask again")
        limits = (request.count, MOVE_BYTES_MAX, request.id_count)
        chosen = giver.departures.take_segments(_Wish(topology, giver, request), *limits)
        while not chosen and await giver.dispatch.tail.more_of_all():
            chosen = giver.departures.take_segments(_Wish(topology, giver, request), *limits)
        if not chosen:
            wish = _Wish(topology, giver, request)
            return GiveAwayResponse([], ids_needed=_ids_needed(giver, wish))
        segments = [spans[0].segment for spans in chosen]
        new_first_ids: list[int] = []
        next_id = request.first_id
        for segment in segments:
            new_first_ids.append(next_id)
            next_id += segment.count
        moved = False
        try:
            if any(segment.open < segment.count or segment.failed for segment in segments):
                # What is done of them must be so wherever they are.
                await giver.settled()
            if giver.fenced:
                raise NotOwner(f"queue {giver.info.title} has moved: ask again")
            crash_point("before-exchange")
            move = Move(
                request.move_id,
                giver.info.queue_id,
                giver.epoch,
                request.target,
                request.target_epoch,
                [segment.first_id for segment in segments],
                new_first_ids,
            )
            moved = await self._move(giver, move)
            crash_point("after-exchange")
        except BaseException as failure:
            if not isinstance(failure, _REFUSALS):
                # They must neither stay nor go: only the stores know where they are.
                _load_anew(giver)
            raise
        finally:
            if not moved:
                giver.departures.stay([span for spans in chosen for span in spans])
        if not moved:
            await self._find_out(giver)
            raise StaleEpoch("the queue that asked has a new owner: nothing was moved")
        untouched = [
            first_id
            for first_id, segment in zip(new_first_ids, segments, strict=True)
            if not segment.reloaded and segment.attempts is None
        ]
        counts = [segment.count for segment in segments]
        giver.departures.handed_over(chosen)
        return GiveAwayResponse(list(zip(new_first_ids, counts, strict=True)), untouched)

    async def _move(self, giver: Replica, move: Move) -> bool:
        """Whether they are the other queue's now; IoFailure: nobody here knows."""
        tries = 0

        def again() -> Awaitable[bool]:
            nonlocal tries
            tries += 1
            return self._node.store.move(move)

        try:
            moved = await self._insist(giver, again)
        except _REFUSALS:
            if tries == 1:
                raise
            moved = False
        if moved or tries == 1:
            return moved
        # That was said of the last try: one before it may have moved them.
        try:
            return await self._insist(giver, lambda: self._has_come(move.move_id, move.target))
        except _REFUSALS as failure:
            raise IoFailure(f"a move from {giver.info.title} is not finished: {failure}") from None

    async def _find_out(self, giver: Replica) -> None:
        """Whose epoch was refused? If it was ours, we have a successor."""
        still_ours = await self._node.store.drop_done(giver.info.queue_id, giver.epoch)
        if not still_ours:
            giver.fence(giver.holding.taken_over())


def _load_anew(replica: Replica) -> None:
    """Let go of a queue whose messages the store knows better; who claims it finishes moves."""
    replica.fence(StaleEpoch(f"queue {replica.info.title} is loaded anew"))


def _ids_needed(giver: Replica, wish: _Wish) -> int:
    """By the first segment that may go; 0: there is none."""
    chosen = giver.departures.take_segments(wish, 1, 1, BATCH_COUNT_MAX)
    giver.departures.stay([span for spans in chosen for span in spans])
    return chosen[0][0].segment.count if chosen else 0


def _check(replica: Replica) -> None:
    if not replica.info.durable:
        raise InvalidValue(
            f"queue {replica.info.title} is transient: only what is stored can change its queue"
        )


def _has_room(taker: Replica) -> bool:
    try:
        return taker.intake.room.lets_in(1, 1)
    except LimitReached:
        return False


class _Wish:
    """Which segments of a queue may go to another one of the same logical queue.

    Asked in their order: behind one of a home that cannot go, none of that home does.
    """

    def __init__(self, topology: Topology, giver: Replica, request: GiveAway) -> None:
        # The last replicas go, and nobody else is there: the alias keeps what need not stay.
        self._goes_home = request.target == topology.queue_id
        self._is_over = all(each.state is ReplicaState.DRAINING for each in topology.replicas)
        place = next((each for each in topology.replicas if each.queue_id == request.target), None)
        if self._goes_home:
            return
        if place is None:
            raise InvalidValue(f"queue {request.target} is no replica of {topology.queue!r}")
        self._number = place.number
        self._homes = topology.homes
        self._homed = request.homed
        self._takes_any = place.state is ReplicaState.SERVING and not request.homed
        self._is_alias = giver.info.queue_id == topology.queue_id
        self._kept_back = giver.homes.in_hand()
        self._below_id = giver.homes.waits_from

    def __call__(self, segment: Segment, is_whole: bool) -> bool:
        if self._goes_home:
            may_leave = segment.receivers is None and not has_groups(segment)
            return is_whole and self._is_over and may_leave
        if segment.receivers is None and not has_groups(segment):
            # A dedup id is remembered where it was stored: from there its message may go anywhere.
            at_home = homes_of(segment) if self._is_alias and self._homes else None
            if not at_home:
                return is_whole and self._takes_any
        else:
            at_home = homes_of(segment)
        # What stays together goes home, and nowhere else.
        numbers = {abs(self._homes[index]) for index in at_home} if self._homes else set()
        is_next = segment.first_id < self._below_id and self._kept_back.isdisjoint(at_home)
        goes = self._homed and is_whole and is_next and numbers == {self._number}
        if not goes:
            self._kept_back |= at_home
        return goes
