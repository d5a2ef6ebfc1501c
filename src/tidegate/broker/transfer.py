"""Transfer of segments between queues of one logical queue.

Theory of operation

The target pulls, the source gives.

    target: reserves ids, asks the source's owner, reads what arrived, admits it
    source: takes whole ready segments out, stores acknowledgements, calls store.move, drops them

The move is one transaction, fenced by the epochs of both queues. Segments get new ids from the
block that the target has reserved.

A request carries a move id made from the target's queue and the block. The source remembers recent
moves, so that a repeated request gets the same answer. `homed` requests take only messages assigned
to the target; other requests take only messages that may be at any replica. Messages with an
assignment therefore move in one way only, which keeps their order.

Failures:

- A node dies: the move has happened or it has not. The source's next owner finds what stayed, the
  target's next owner finds what arrived.
- The answer is lost: the target asks the store whether the move has arrived. If not, this question
  also cancels it. A source that is still working on it is then refused, and keeps its messages.
- Between stores a move is a copy and then a deletion. If a node dies in between, the next owner of
  the source finishes it (`finish_moves`).
- Source or target does not know what the store has: it fences its queue, which is then loaded
  again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidegate.broker.batch import BATCH_COUNT_MAX, segment_assignments, split_by_assignment
from tidegate.broker.recording import MOVED
from tidegate.broker.replica import Replica
from tidegate.broker.transactions import commit_once
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    LimitReached,
    NotOwner,
    QueueNotExisting,
    StaleEpoch,
    Unavailable,
)
from tidegate.core.model import IdRange
from tidegate.core.runtime import cancel_and_wait, crash_point
from tidegate.core.segment import Segment
from tidegate.core.store import Settlement, Write
from tidegate.core.topology import ReplicaState, SegmentMove, Topology
from tidegate.protocol.cluster import GiveAway, GiveAwayResponse
from tidegate.protocol.packet import Packet
from tidegate.queueing.lanes import has_groups
from tidegate.queueing.spans import MessageState, Span

if TYPE_CHECKING:
    from tidegate.broker.context import NodeContext
    from tidegate.broker.ownership import Ownership
    from tidegate.broker.relay import NodeClients
    from tidegate.broker.replication import Topologies


log = logging.getLogger(__name__)

# Upper bounds of one move.
MOVE_COUNT_MAX = 20_000
MOVE_BYTES_MAX = 8 * 1024 * 1024
# Ids reserved at first. If the first segment has more messages, it is requested again with as many
# ids as it needs.
_ID_COUNT = 8192
_READ_SEGMENTS = 10_000
_READ_BYTES = 64 * 1024 * 1024
_ANSWER_S = 10.0
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
# Attempts of a move that certainly did not happen.
_TRIES = 5
# Recent moves whose result the source remembers, for targets that did not get the answer.
_REMEMBERED = 1000

# With these errors, nothing was moved.
_REFUSALS = (NotOwner, StaleEpoch, LimitReached)

Result = TypeVar("Result")


class SegmentTransfer:
    """Both sides of transfers, for all queues of a node."""

    def __init__(
        self,
        context: NodeContext,
        ownership: Ownership,
        topologies: Topologies,
        clients: NodeClients,
    ) -> None:
        self._context = context
        self._ownership = ownership
        self._topologies = topologies
        self._clients = clients
        self._given: dict[str, asyncio.Task[GiveAwayResponse]] = {}
        self._pulls: set[asyncio.Task[int]] = set()

    async def close(self) -> None:
        """Cancel all running moves; the store knows how far each one came."""
        await cancel_and_wait([*self._given.values(), *self._pulls])

    # Target

    async def pull(self, taker: Replica, source_id: int, count: int, *, homed: bool = False) -> int:
        """Take about `count` messages over from `source_id`; return how many came.

        With `homed` messages assigned to `taker`, else messages that may be at any replica. Raises
        `InvalidValue` for queues of different logical queues and `Unavailable` if nothing can be
        taken now.
        """
        _check(taker)
        if count < 1:
            raise InvalidValue(f"count must be at least 1, not {count}")
        if self._topologies.with_both(taker.info.queue_id, source_id) is None:
            raise InvalidValue(f"queue {source_id} and {taker.info.title} are no siblings")
        if not _has_room(taker):
            return 0
        task = asyncio.create_task(self._pull(taker, source_id, min(count, MOVE_COUNT_MAX), homed))
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)
        # The caller may be cancelled: the transfer must come to an end all the same.
        return await asyncio.shield(task)

    async def _pull(self, taker: Replica, source_id: int, count: int, homed: bool) -> int:
        came, ids_needed = await self._pull_under(taker, source_id, count, homed, _ID_COUNT)
        if ids_needed:
            ids = min(ids_needed, BATCH_COUNT_MAX)
            came, _ = await self._pull_under(taker, source_id, count, homed, ids)
        if homed:
            # Their slot may have moved again meanwhile, as may that of messages that waited for
            # them.
            for listener in self._context.events.forwarding_due:
                listener(taker)
        return came

    async def _pull_under(
        self, taker: Replica, source_id: int, count: int, homed: bool, id_count: int
    ) -> tuple[int, int]:
        """Return how many messages came, or how many ids the first segment needs."""
        block = taker.intake.arrivals.expect(id_count)
        came: list[Segment] = []
        if homed:
            taker.assignments.groups_wait(block[0])
        try:
            answer = await self._request_pull(taker, source_id, block, count, homed)
            crash_point("after-pull-answer")
            if not answer.segments:
                return 0, answer.ids_needed
            untouched = set(answer.untouched)
            async with taker.exchanging:
                try:
                    came = await self._read(taker, block)
                except Exception:
                    # The messages are stored in this queue, and only a reload will serve them.
                    _load_anew(taker)
                    raise
                for segment in came:
                    segment.reloaded = segment.first_id not in untouched
                crash_point("before-came-over")
                taker.intake.arrivals.came_over(block, came)
        finally:
            taker.intake.arrivals.came_over(block, [])
            if homed:
                taker.assignments.groups_go_on(block[0])
        return sum(segment.open for segment in came), 0

    async def _request_pull(
        self, taker: Replica, source_id: int, block: IdRange, count: int, homed: bool
    ) -> GiveAwayResponse:
        """Ask the source to move what it can, until it is known what came."""
        # Without the answer it is known only whether anything came under the block.
        something, nothing = GiveAwayResponse([block]), GiveAwayResponse([])
        request = GiveAway(
            source_id,
            taker.info.queue_id,
            taker.epoch,
            block[0],
            block[1] - block[0] + 1,
            count,
            # Ids are used once, so this is unique
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
                    # It has arrived, or this question has cancelled it: a source still working on
                    # it is refused.
                    came = await self._has_come(request.move_id, request.target)
                    return something if came else nothing
                giver = await self._ownership.route(source_id)
                crash_point("before-pull")
                if isinstance(giver, Replica):
                    answer: Packet = await self.give_segments(giver, request)
                else:
                    answer = await self._clients.request(giver, request, _ANSWER_S)
                assert isinstance(answer, GiveAwayResponse)
                return answer
            except QueueNotExisting:
                return nothing
            except _REFUSALS as refusal:
                # Between stores a refused move is cancelled. If the store is full, the next pull
                # tries again. What may have arrived is not given up.
                is_over = tries >= _TRIES or isinstance(refusal, LimitReached)
                if is_over and not in_doubt:
                    raise Unavailable(f"nothing can be taken over now: {refusal}") from None
            except (Unavailable, IoFailure):
                in_doubt = True
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
        return nothing

    async def _has_come(self, move_id: str, target: int) -> bool:
        return await self._context.store.has_arrived(move_id, target)

    async def _read(self, taker: Replica, block: IdRange) -> list[Segment]:
        """Return the segments that arrived, as the store has them."""
        first_id, last_id = block
        found: list[Segment] = []
        while not taker.fenced:
            some = await self._retry_while_owner(
                taker, partial(self._read_from, taker, first_id, last_id)
            )
            if not some:
                return found
            found += some
            first_id = some[-1].last_id + 1
            if first_id > last_id:
                return found
        return []

    async def _read_from(self, taker: Replica, first_id: int, last_id: int) -> list[Segment]:
        return await self._context.store.read_between(
            taker.info.queue_id, first_id, last_id, _READ_SEGMENTS, _READ_BYTES
        )

    async def _retry_while_owner(
        self, replica: Replica, work: Callable[[], Awaitable[Result]]
    ) -> Result:
        """Repeat `work` while the store does not answer and the queue is this node's."""
        backoff_s = _BACKOFF_FIRST_S
        while True:
            try:
                return await work()
            except Unavailable:
                if replica.fenced:
                    raise
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    # Source

    async def give_segments(self, giver: Replica, request: GiveAway) -> GiveAwayResponse:
        """Move ready messages that may go there to the queue that asks.

        A repeated request shares the result of the first one.
        """
        task = self._given.get(request.move_id)
        if task is None:
            _check(giver)
            task = asyncio.create_task(self._give_segments(giver, request))
            self._given[request.move_id] = task
            task.add_done_callback(partial(self._over, request.move_id))
            while len(self._given) > _REMEMBERED:
                oldest = next(iter(self._given))
                if not self._given[oldest].done():
                    break
                del self._given[oldest]
        return await asyncio.shield(task)

    def _over(self, move_id: str, task: asyncio.Task[GiveAwayResponse]) -> None:
        """Forget a refused request: a repeated one must be tried again."""
        if not task.cancelled() and isinstance(task.exception(), _REFUSALS):
            self._given.pop(move_id, None)

    async def _give_segments(self, giver: Replica, request: GiveAway) -> GiveAwayResponse:
        topology = self._topologies.with_both(giver.info.queue_id, request.target)
        if topology is None:
            raise NotOwner("the topology is not known here yet: ask again")
        limits = (request.count, MOVE_BYTES_MAX, request.id_count)
        chosen = giver.outgoing.take_segments(_TransferRequest(topology, giver, request), *limits)
        while not chosen and await giver.dispatch.tail.more_of_all():
            chosen = giver.outgoing.take_segments(
                _TransferRequest(topology, giver, request), *limits
            )
        if not chosen:
            wish = _TransferRequest(topology, giver, request)
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
                # Acknowledgements must be on disk first, or they would be lost for the new
                # segments.
                await giver.settled()
            if giver.fenced:
                raise NotOwner(f"queue {giver.info.title} has moved: ask again")
            crash_point("before-exchange")
            move = SegmentMove(
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
                # Only the stores know where the messages are. They must neither stay here nor be
                # dropped.
                _load_anew(giver)
            raise
        finally:
            if not moved:
                giver.outgoing.stay([span for spans in chosen for span in spans])
        if not moved:
            await self._find_out(giver)
            raise StaleEpoch("the queue that asked has a new owner: nothing was moved")
        untouched = [
            first_id
            for first_id, segment in zip(new_first_ids, segments, strict=True)
            if not segment.reloaded and segment.attempts is None
        ]
        counts = [segment.count for segment in segments]
        giver.outgoing.handed_over(chosen)
        return GiveAwayResponse(list(zip(new_first_ids, counts, strict=True)), untouched)

    async def _move(self, giver: Replica, move: SegmentMove) -> bool:
        """Return whether the messages belong to the other queue now.

        Raises `IoFailure` if that cannot be found out.
        """
        tries = 0

        def again() -> Awaitable[bool]:
            nonlocal tries
            tries += 1
            return self._context.store.move(move)

        try:
            moved = await self._retry_while_owner(giver, again)
        except _REFUSALS:
            if tries == 1:
                raise
            moved = False
        if moved or tries == 1:
            return moved
        # That is the result of the last attempt; an earlier one may have moved them.
        try:
            return await self._retry_while_owner(
                giver, lambda: self._has_come(move.move_id, move.target)
            )
        except _REFUSALS as failure:
            raise IoFailure(f"a move from {giver.info.title} is not finished: {failure}") from None

    async def _find_out(self, giver: Replica) -> None:
        """Find out whether this queue's epoch was refused; if so, fence it."""
        still_ours = await self._context.store.drop_done(giver.info.queue_id, giver.epoch)
        if not still_ours:
            giver.fence(giver.context.taken_over())


def _load_anew(replica: Replica) -> None:
    """Fence a queue whose messages only the store knows, so that it is loaded again."""
    replica.fence(StaleEpoch(f"queue {replica.info.title} is loaded anew"))


def _ids_needed(giver: Replica, wish: _TransferRequest) -> int:
    """Return the number of ids that the first movable segment needs; 0 if there is none."""
    chosen = giver.outgoing.take_segments(wish, 1, 1, BATCH_COUNT_MAX)
    giver.outgoing.stay([span for spans in chosen for span in spans])
    return chosen[0][0].segment.count if chosen else 0


def _check(replica: Replica) -> None:
    if not replica.info.durable:
        raise InvalidValue(
            f"queue {replica.info.title} is transient: only what is stored can change its queue"
        )


def _has_room(taker: Replica) -> bool:
    try:
        return taker.intake.limits.has_room_for(1, 1)
    except LimitReached:
        return False


class _TransferRequest:
    """Decides which segments of a queue may move to another one of its logical queue.

    It is asked about segments in their order. After a segment that cannot move, no later one with
    the same assignment slots moves.
    """

    def __init__(self, topology: Topology, giver: Replica, request: GiveAway) -> None:
        # All replicas are leaving: the logical queue takes back messages without an assignment.
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
        self._kept_back = giver.assignments.in_hand()
        self._below_id = giver.assignments.waits_from

    def __call__(self, segment: Segment, is_whole: bool) -> bool:
        if self._goes_home:
            may_leave = segment.receivers is None and not has_groups(segment)
            return is_whole and self._is_over and may_leave
        if segment.receivers is None and not has_groups(segment):
            # A dedup id is remembered where it was stored. From a replica its message may go
            # anywhere.
            at_home = segment_assignments(segment) if self._is_alias and self._homes else None
            if not at_home:
                return is_whole and self._takes_any
        else:
            at_home = segment_assignments(segment)
        # Assigned messages go to their assigned replica only.
        numbers = {abs(self._homes[index]) for index in at_home} if self._homes else set()
        is_next = segment.first_id < self._below_id and self._kept_back.isdisjoint(at_home)
        goes = self._homed and is_whole and is_next and numbers == {self._number}
        if not goes:
            self._kept_back |= at_home
        return goes


# Splits segments whose messages are assigned to different replicas.
#
# Only a queue that had no replicas before has such segments, or one that gets publications. Each
# run of neighbouring messages with the same slot becomes a segment of its own. Messages keep their
# ids, so the order stays the same. The first run stays in the old segment. Each segment is split in
# one transaction.


_COUNT_MAX = 20_000
_BYTES_MAX = 8 * 1024 * 1024
_IDS_MAX = 1 << 62


async def split_segments(replica: Replica, topology: Topology) -> int:
    """Split ready segments up to a limit of messages; return how many segments were split."""
    homes = topology.homes
    if not homes or not replica.context.queue.in_memory.has_homed:
        return 0
    chosen = replica.outgoing.take_segments(
        lambda segment, _: len({abs(homes[index]) for index in segment_assignments(segment)}) > 1,
        _COUNT_MAX,
        _BYTES_MAX,
        _IDS_MAX,
    )
    if not chosen:
        return 0
    replica.assignments.cut_up(
        {home for spans in chosen for home in segment_assignments(spans[0].segment)}
    )
    try:
        for at, spans in enumerate(chosen):
            try:
                await _cut_up(replica, spans)
            except BaseException:
                replica.outgoing.stay([span for rest in chosen[at + 1 :] for span in rest])
                raise
    finally:
        replica.assignments.cut_up(set())
    return len(chosen)


async def _cut_up(replica: Replica, spans: list[Span]) -> None:
    segment = spans[0].segment
    first, *others = split_by_assignment(segment)
    pieces = [segment.cut(low, high) for low, high in others]
    kept = Span(segment, *first, MessageState.LEAVING)
    cut = [Span(segment, low, high, MessageState.LEAVING) for low, high in others]
    settlement = Settlement(replica.info.queue_id, replica.epoch)
    settlement.partly[segment.first_id] = others
    for piece in pieces:
        replica.intake.arrivals.on_its_way(piece.first_id)
    try:
        # Acknowledgements must be on disk first, or they would be lost for the new segments.
        await replica.settled()
        writes = [Write(piece, replica.epoch, [], []) for piece in pieces]
        await commit_once(replica.context.store, writes, [settlement])
    except BaseException:
        for piece in pieces:
            replica.intake.arrivals.not_coming(piece.first_id)
        replica.outgoing.stay([kept, *cut])
        raise
    replica.outgoing.on_left(cut, settlement, MOVED)
    replica.outgoing.stay([kept])
    for piece in pieces:
        replica.intake.arrivals.came_apart(piece)
