"""A replica: one queue that this node owns, from put to acknowledgement.

Theory of operation

The parts of a replica share a `ReplicaContext`, which holds the queue in memory
(`queueing.queue.Queue`), the epoch of the claim, limits and meters.

    Intake -> commit -> Dispatch -> Settling -> commit -> done
                 |         ^
             SpillReader: segments that memory cannot hold

- `Intake` collects the batches of producers into segments. `Writer` commits them, then
  `Replica.admit` adds them to the queue and the producers get their confirmations.
- `Dispatch` delivers ready messages to consumers and to pending reads.
- `Settling` collects acknowledgements and failures. `Settler` commits them.
- `SpillReader` and `DelayedReader` read segments back from the store before their turn.
- `IncomingTransfers` and `OutgoingTransfers` are the ways in and out beside puts and
  acknowledgements: transactions, transfers between replicas, dead letters.
- `ReplicaAssignments` keeps the order of groups and receivers while their assigned replica changes.

Invariants:

- The store is the truth and memory is an index of it. A message becomes ready only after its
  segment is committed. Only transient queues live in memory alone.
- All methods run in the event loop and change the queue without awaiting in between. Only the
  writer, the settler and the readers wait for the store.
- Every write carries the epoch. The store refuses a write with an old epoch.

Failures:

- The store does not answer: writer, settler and readers retry. Producers and consumers wait.
- The store refuses the epoch: `fence` fails all waiting puts and reads, ends all consumers and
  drops the queue from memory. The new owner reads it from the store.
- Memory is ahead of the store and the result of a call is unknown, as after a failed purge: the
  replica fences itself. The queue is then loaded again.
- The node dies: the next owner claims the queue with a higher epoch and loads it. Messages that
  were delivered and not acknowledged are delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain

from tidegate.broker.batch import segment_assignments
from tidegate.broker.context import NodeEvents, RateLimiter, ReplicaContext
from tidegate.broker.dispatch import Dispatch
from tidegate.broker.intake import Intake
from tidegate.broker.recording import DROPPED, MOVED, LifecycleRecorder
from tidegate.broker.settling import Settling
from tidegate.broker.stats import SummaryStatsCache, detailed_stats
from tidegate.core.errors import NotOwner, QueueNotExisting, TidegateError
from tidegate.core.model import DeathReason, IdRange, Overflow, QueueInfo, QueuePolicy, merge_ranges
from tidegate.core.runtime import NodeLimits
from tidegate.core.segment import Budget, Segment
from tidegate.core.store import Clock, Settlement, Store
from tidegate.core.topology import ASSIGNMENT_SLOTS, Topology
from tidegate.queueing.lanes import NO_ID
from tidegate.queueing.spans import MessageEvent, Span
from tidegate.storage.writer import Settler, Writer
from tidegate.telemetry.meters import QueueMeters
from tidegate.telemetry.stats import QueueStats

_DRAIN_POLL_S = 0.002


class Replica:
    """One queue of this node: its intake, dispatch and settling, and what concerns all of them."""

    def __init__(
        self,
        info: QueueInfo,
        epoch: int,
        *,
        store: Store,
        writer: Writer,
        settler: Settler,
        budget: Budget,
        limits: NodeLimits,
        clock: Clock,
        may_deliver: Callable[[], bool],
        events: NodeEvents,
    ) -> None:
        self._events = events
        self._context = ReplicaContext(
            info,
            epoch,
            store=store,
            budget=budget,
            limits=limits,
            clock=clock,
            may_deliver=may_deliver,
            listener=self,
        )
        self.intake = Intake(self._context, writer)
        self._settling = Settling(self._context, settler)
        self.dispatch = Dispatch(self._context, self.intake, self._settling)
        self.by_id = BrowseHandlers(self._context, self.dispatch, self._settling)
        self.outgoing = OutgoingTransfers(self._context, self.intake, self.dispatch, self._settling)
        self.assignments = ReplicaAssignments(
            self._context, self.intake, self.dispatch, self.outgoing
        )
        self.brief = SummaryStatsCache(self)
        # Held while a transfer or a purge runs: a purge must not run between the steps of a
        # transfer.
        self.exchanging = asyncio.Lock()

    @property
    def context(self) -> ReplicaContext:
        """The state that the parts share."""
        return self._context

    @property
    def info(self) -> QueueInfo:
        return self._context.info

    @property
    def epoch(self) -> int:
        return self._context.epoch

    @property
    def fenced(self) -> bool:
        return self._context.fenced

    async def load(self) -> None:
        """Load from the store: reserved ids, batch marks, and the extent of the messages.

        The messages themselves are read later, when their turn is near.
        """
        await self.intake.load()
        if self.info.durable:
            # A node may have died between committing a transaction and deleting its finished
            # segments.
            await self._context.store.drop_done(self.info.queue_id, self.epoch)
            await self.dispatch.tail.load()
            await self.dispatch.later.load()

    @property
    def lease_s(self) -> float:
        return self._context.lease_s

    def admit(self, segment: Segment) -> None:
        """Add a stored segment to the queue, in memory if there is room.

        Otherwise it stays in the store until its turn is near.
        """
        context = self._context
        if segment.due_at is not None:
            self.dispatch.later.add(segment)
            return
        queue = context.queue
        tail = self.dispatch.tail
        keep = (
            not context.info.durable
            or context.budget.has_room_for(segment.cost_bytes)
            or queue.in_memory.cost_bytes < tail.head_bytes_least()
        )
        if queue.add(segment, keep=keep):
            self.dispatch.serve(segment.receivers)
        else:
            self.dispatch.spilled(segment)
        if context.info.elastic:
            for listener in self._events.forwarding_due:
                listener(self)
        if context.policy.overflow is Overflow.DROP:
            self._shed()

    def _shed(self) -> None:
        """Give up the oldest messages until the queue is within its limits."""
        policy, queue = self._context.policy, self._context.queue
        while policy.length_max is not None and len(queue) > policy.length_max:
            if not self.dispatch.giving_up.shed(len(queue) - policy.length_max):
                break
        while policy.bytes_max is not None and queue.waiting_bytes > policy.bytes_max:
            # The oldest message may be in the store only. The next call takes it after it was read.
            if not self.dispatch.giving_up.shed(1):
                break

    async def settled(self) -> None:
        """Wait until all acknowledgements and failures so far are on disk."""
        await self._settling.on_disk()

    @property
    def meters(self) -> QueueMeters:
        return self._context.meters

    # End of ownership

    def fence(self, error: TidegateError) -> None:
        """Stop serving: the node no longer owns the queue.

        Fails waiting puts and reads with `error`, ends all consumers and frees the memory. Messages
        that consumers hold do not return to the queue: the new owner delivers them again.
        """
        context = self._context
        if context.fenced:
            return
        context.fenced = True
        self.intake.fenced(error)
        self.dispatch.end_all(error, give_back=False)
        self.dispatch.tail.fenced()
        self.dispatch.later.fenced()
        self._settling.fenced()
        context.queue.in_memory.clear()
        if context.watch is not None:
            context.watch.over()
        for listener in self._events.queue_released:
            listener(self)

    def dead_letter(self, spans: list[Span], reason: DeathReason, error: str | None) -> None:
        """Move messages, already taken out of the queue, to its dead letters."""
        for listener in self._events.messages_given_up:
            listener(self, spans, reason, error)

    async def quiesce(self) -> None:
        """End all consumers, then wait until everything accepted is on disk.

        Called before the queue goes to another node and before the node stops.
        """
        moving = NotOwner(f"queue {self.info.title} is moving to another node")
        self.intake.close()
        self.dispatch.end_all(moving, give_back=True)
        while self.intake.busy or self._settling.busy:
            self._settling.hurry()
            await asyncio.sleep(_DRAIN_POLL_S)

    # The topology and the recorder

    def apply_topology(self, topology: Topology | None) -> None:
        """Apply the topology of the logical queue: assigned slots, stores and rate limit.

        `None` means that the queue is a plain queue from now on. The caller has read the dedup ids
        of slots that are new to this replica.
        """
        context = self._context
        if topology is None:
            context.assignments = None
            self._become_elastic(False)
        elif context.info.alias_id:
            context.spans_stores = len({place.store_number for place in topology.replicas}) > 1
            context.assignments = topology.homes
            self._limit_rate(topology.scaling.rate_max_per_s)
            self.assignments.freeze()
        else:
            if context.assignments != topology.homes:
                context.assignments = topology.homes
                self.intake.assignments.changed()
            self._become_elastic(True)

    def _limit_rate(self, rate_max_per_s: float | None) -> None:
        context = self._context
        if rate_max_per_s is None:
            context.rate_limiter = None
        elif context.rate_limiter is None or context.rate_limiter.per_s != rate_max_per_s:
            context.rate_limiter = RateLimiter(rate_max_per_s, context.clock.monotonic())

    def set_recorder(self, *, lifecycles: LifecycleRecorder | None) -> None:
        """Note producers and departed consumers for the telemetry recorder from now on.

        `lifecycles` records the lifecycles of messages; `None` means that none are recorded.
        """
        self._context.watch = lifecycles
        self._context.producers = set()
        self.dispatch.holders.departed = []

    def _become_elastic(self, elastic: bool) -> None:
        """Set whether replicas hold the messages of this queue from now on.

        If they do, all consumers and reads end here and come back at a replica.
        """
        if self.info.elastic == elastic and not (elastic and not self.dispatch.is_idle):
            return
        self._context.set_elastic(elastic)
        if elastic:
            # Consumers join a replica: the client learns the replicas through the logical queue.
            spread = NotOwner(f"queue {self.info.title} is spread over replicas now: join it")
            self.dispatch.end_all(spread, give_back=True)

    def deleted(self) -> None:
        self.fence(QueueNotExisting(f"queue {self.info.title} was deleted"))

    # Operations on the whole queue

    async def set_policy(self, policy: QueuePolicy, before: QueuePolicy | None = None) -> None:
        """Store a new policy and apply it.

        With `before`, only if the stored policy equals it; otherwise raises `ChangedMeanwhile` and
        changes nothing. Raises `QueueNotExisting` if the queue was deleted.
        """
        context = self._context
        if not await context.store.set_policy(self.info.queue_id, policy, before):
            raise QueueNotExisting(f"no queue {self.info.title}")
        context.set_policy(policy)
        for listener in self._events.policy_changed:
            listener(self)
        self.intake.on_space_freed()
        self.dispatch.serve_all()

    async def purge(self) -> int:
        """Remove all messages that no consumer holds; return how many.

        Runs to its end even if the caller is cancelled: after memory has dropped the messages the
        store must do so too.
        """
        return await asyncio.shield(asyncio.create_task(self._purge()))

    async def _purge(self) -> int:
        async with self.exchanging:
            return await self._purge_now()

    async def _purge_now(self) -> int:
        context = self._context
        below_id = self.intake.ids.next_id
        dropped, count = context.queue.purge()
        self.dispatch.later.clear()
        kept = self.intake.first_ids_under_way() | self.dispatch.first_ids_held()
        kept.update(self.outgoing.segments)
        if context.watch is not None:
            context.watch.purged(dropped, kept, context.clock.monotonic())
        for span in dropped:
            if span.segment.open:
                kept.add(span.segment.first_id)
                self._settling.note_done(span, False)
        if context.info.durable:
            try:
                purged = await context.store.purge(
                    context.info.queue_id, context.epoch, below_id, sorted(kept)
                )
            except TidegateError:
                # The store may or may not have purged the queue. A reload finds out.
                self.fence(context.taken_over())
                raise
            if not purged:
                self.fence(context.taken_over())
                raise context.taken_over()
        # Some segments are kept since consumers hold a part of them. The rest of their messages is
        # settled as done.
        await self._settling.on_disk()
        if context.fenced:
            raise context.taken_over()
        return count

    @property
    def is_empty(self) -> bool:
        return len(self._context.queue) == 0 and self.dispatch.holders.unacknowledged == 0

    def has_for(self, client_id: int) -> bool:
        return self._context.queue.lanes.has_for(client_id)

    def knows_all_for(self, client_id: int) -> bool:
        """Return whether no message for the client can be in the store only."""
        return self._context.queue.spilled.unsearched_from(client_id) is None

    # Periodic work

    def tick(self) -> None:
        """Expire leases and messages, release due messages, dispatch and resume waiting puts.

        Called every 0.25 s.
        """
        self.dispatch.expire(self._context.clock.monotonic())
        self.dispatch.giving_up.expire()
        self.dispatch.later.release()
        self.dispatch.dispatch()
        # Messages may have expired or been purged, which makes room even if none is delivered.
        self.intake.on_space_freed()

    def tick_rates(self, now: float) -> None:
        self._context.meters.tick(now)
        for consumer in self.dispatch.holders.consumers:
            consumer.meters.tick(now)

    def numbers(self, steps: int | None = 1) -> QueueStats:
        """Return the stats of the queue.

        `steps` is the number of control steps of each consumer; None: no consumers.
        """
        return detailed_stats(self, steps)


# Order of assigned messages while assignment slots move between replicas.
#
# A message with a receiver, a group or a dedup id belongs to one of `ASSIGNMENT_SLOTS` slots. The
# topology assigns each slot to a replica. While slots move, messages of one slot may be at several
# replicas. This module tells which slots a replica has messages of, and holds back messages whose
# predecessors are elsewhere.


class ReplicaAssignments:
    """The assignment slots of which one replica has messages."""

    def __init__(
        self,
        context: ReplicaContext,
        intake: Intake,
        dispatch: Dispatch,
        departures: OutgoingTransfers,
    ) -> None:
        self._context = context
        self._intake = intake
        self._dispatch = dispatch
        self._outgoing = departures
        # Slots of segments that are being split.
        self._cut_homes: set[int] = set()
        # First ids of the blocks under which messages of groups are being transferred here.
        # Messages that were put meanwhile have to wait for them.
        self._coming_before: set[int] = set()

    def held(self) -> set[int]:
        """Return the slots of which the replica has, or may have, messages or dedup ids.

        All slots if messages are in the store only or on their way here.
        """
        queue = self._context.queue
        if queue.delayed.in_store or queue.spilled.may_hold_homed or self._coming_before:
            return set(range(ASSIGNMENT_SLOTS))
        held = self._intake.assignments.held()
        if queue.in_memory.has_homed:
            for segment in queue.segments():
                held |= segment_assignments(segment)
        return held | self.in_hand()

    def in_hand(self) -> set[int]:
        """Return the slots of messages that are leased, wait for a retry, or are about to leave.

        A later message of such a slot must not be delivered at another replica before them.
        """
        if not self._context.queue.in_memory.has_homed:
            return set()
        return {
            index for segment in self._segments_in_hand() for index in segment_assignments(segment)
        }

    def _segments_in_hand(self) -> set[Segment]:
        retried = self._context.queue.delayed.retried(self._context.clock.wall())
        return self._dispatch.segments_held() | retried | set(self._outgoing.segments.values())

    def freeze(self) -> None:
        """Stop delivering messages of groups whose slot is assigned to another replica.

        The other replica may have messages of the same group and delivers them in order.
        """
        homes, number = self._context.assignments or (), self._context.info.number
        elsewhere = {index for index, home in enumerate(homes) if abs(home) != number}
        self._context.queue.group_gate.freeze(elsewhere | self._cut_homes)
        self._dispatch.serve_all()

    def cut_up(self, homes: set[int]) -> None:
        """Hold back the messages of these slots while segments with them are being split."""
        self._cut_homes = homes
        if self._context.info.alias_id:
            self.freeze()

    def groups_wait(self, from_id: int) -> None:
        """Hold back messages of groups with ids from `from_id` on, until a transfer has ended.

        Older messages of the same groups arrive in that transfer under lower ids. Their source
        forgets them before this replica has them. The slot may therefore be opened, and put to, in
        between.
        """
        self._coming_before.add(from_id)
        self._context.queue.group_gate.hold_from(self.waits_from)

    @property
    def waits_from(self) -> int:
        """The id from which on no assigned message is delivered or transferred.

        Earlier messages are still arriving, and their slot may have moved on since they were
        requested.
        """
        return min(self._coming_before, default=NO_ID)

    def groups_go_on(self, from_id: int) -> None:
        """End the wait for the transfer that began at `from_id`, whether or not messages came."""
        self._coming_before.discard(from_id)
        if not self._context.fenced:
            self._context.queue.group_gate.hold_from(self.waits_from)
            self._dispatch.serve_all()

    def ahead(self) -> set[int]:
        """Return the slots that the replica accepts puts for, or has older messages of.

        The leader uses it to decide when a slot may be opened at its new replica. Delayed messages
        do not count: they enter when they are due and precede nothing.
        """
        queue = self._context.queue
        below_id = (
            NO_ID if self._context.info.alias_id else self._intake.assignments.ordered_below()
        )
        if below_id is None or queue.spilled.may_hold_homed or self._outgoing.has_open_moves:
            return set(range(ASSIGNMENT_SLOTS))
        if self._coming_before:
            # No other node knows these messages: their source has forgotten them already.
            return set(range(ASSIGNMENT_SLOTS))
        ahead = self._intake.assignments.taken() | self._intake.assignments.accepted()
        if queue.in_memory.has_homed:
            for segment in chain(queue.contents.segments(), self._segments_in_hand()):
                if segment.first_id < below_id:
                    ahead |= segment_assignments(segment)
        return ahead


# Messages that leave a replica by another way than an acknowledgement.
#
# The caller takes messages out and then reports the result with one of `stay`, `handed_over`,
# `on_left` or `drop`. In between the messages are in the state `LEAVING`: no consumer gets them.


class OutgoingTransfers:
    """Takes messages out of one replica and records what became of them."""

    def __init__(
        self, context: ReplicaContext, intake: Intake, dispatch: Dispatch, settling: Settling
    ) -> None:
        self._context = context
        self._intake = intake
        self._dispatch = dispatch
        self._settling = settling
        # First ids of whole segments that are being transferred; a purge must leave them alone.
        self.segments: dict[int, Segment] = {}
        # Whether a transfer from here is unfinished, so that its messages are in no queue.
        self.has_open_moves = False

    def take_ready(self, count: int) -> list[Span]:
        """Take up to `count` unaddressed messages, oldest first."""
        spans = self._context.queue.take_regardless(count)
        return [span.advance(MessageEvent.GIVEN_UP) for span in spans]

    def stay(self, spans: list[Span]) -> None:
        """Return messages to the queue that were taken out but did not leave."""
        self._no_longer_leaving(spans)
        if not self._context.fenced:
            self._context.queue.stay(spans)
            self._dispatch.serve_all()

    def take_segments(
        self, is_wanted: Callable[[Segment, bool], bool], count: int, bytes_max: int, ids_max: int
    ) -> list[list[Span]]:
        """Take whole segments, oldest first, for which `is_wanted` returns true.

        See `MessagesById.take_segments` for the limits.
        """
        chosen = self._context.queue.contents.take_segments(is_wanted, count, bytes_max, ids_max)
        for spans in chosen:
            self.segments[spans[0].segment.first_id] = spans[0].segment
            for span in spans:
                span.advance(MessageEvent.GIVEN_UP)
        return chosen

    def _no_longer_leaving(self, spans: list[Span]) -> None:
        for span in spans:
            self.segments.pop(span.segment.first_id, None)

    def handed_over(self, chosen: list[list[Span]]) -> None:
        """Remove whole segments that another replica has now, after the transfer is on disk."""
        if self._context.fenced:
            return
        spans = [span for pieces in chosen for span in pieces]
        self._no_longer_leaving(spans)
        self._context.note_ended(spans, MOVED)
        for span in spans:
            self._context.queue.done(span, MessageEvent.MOVED)
        self._context.meters.handed_over.add(sum(map(len, spans)))
        self._dispatch.serve_all()
        self._intake.on_space_freed()

    def settlement_of(self, spans: list[Span]) -> Settlement | None:
        """Return what to store when these messages leave; None for a transient queue."""
        if not self._context.info.durable:
            return None
        settlement = Settlement(self._context.info.queue_id, self._context.epoch)
        leaving: dict[Segment, list[Span]] = {}
        for span in spans:
            leaving.setdefault(span.segment, []).append(span)
        for segment, pieces in leaving.items():
            if segment.open == sum(map(len, pieces)):
                settlement.finished.append(segment.first_id)
                if segment.failed is not None:
                    settlement.forgotten.append(segment.first_id)
            else:
                settlement.partly[segment.first_id] = [(span.low, span.high) for span in pieces]
        return settlement

    def on_left(self, spans: list[Span], settlement: Settlement | None, outcome: str) -> None:
        """Remove messages that have left, after their `settlement` is on disk."""
        if self._context.fenced:
            return
        self._context.note_ended(spans, outcome)
        written = set(settlement.finished) if settlement is not None else set()
        for span in spans:
            finished = self._context.queue.done(span, MessageEvent.MOVED)
            # The rest of the segment may have been settled since `settlement` was made.
            if finished and span.segment.first_id not in written:
                self._settling.note_done(span, True)
        self._dispatch.serve_all()
        self._intake.on_space_freed()

    def drop(self, spans: list[Span], outcome: str = DROPPED) -> None:
        """Settle messages that were given up and go nowhere, or are in their target already."""
        if self._context.fenced:
            return
        self._context.note_ended(spans, outcome)
        for span in spans:
            self._settling.note_done(span, self._context.queue.done(span, MessageEvent.MOVED))
        self._intake.on_space_freed()


# Messages by their ids: browsed, listed and acknowledged without a lease.
#
# Some waiting messages are in memory, others in the store only. Browsing reads the latter in chunks
# and leaves them there. Acknowledging brings them into memory first, one chunk at a time. Long
# operations let the event loop run in between.


# Ranges of waiting ids in one answer; the client asks again for the rest.
WAITING_RANGES_MAX = 10_000
# Spans that are listed before the event loop runs; some milliseconds.
WAITING_SPANS_PER_TURN = 5000
# Ranges of ids that are acknowledged before the event loop runs.
RANGES_PER_TURN = 200


class BrowseHandlers:
    """Browses, lists and acknowledges the messages of one replica by their ids."""

    def __init__(self, context: ReplicaContext, dispatch: Dispatch, settling: Settling) -> None:
        self._context = context
        self._dispatch = dispatch
        self._settling = settling

    async def browse(
        self, limit: int, first_id: int = 0, last_id: int = NO_ID
    ) -> tuple[list[Span], int | None]:
        """Return waiting messages with these ids, in order.

        Also returns the id from which on there may be more; None: there are no more.
        """
        queue = self._context.queue
        segments, through = await self._dispatch.tail.read(first_id, last_id)
        if self._context.fenced:
            raise self._context.taken_over()
        # Listed only after the store was read: messages may have come into memory meanwhile.
        spans = queue.contents.browse(limit, first_id, through)
        for segment in segments:
            spans += queue.spilled.pieces(segment, first_id, through)
        spans.sort(key=lambda span: span.first_id)
        shown: list[Span] = []
        for span in spans:
            if len(span) > limit:
                span = span.split(limit)
            shown.append(span)
            limit -= len(span)
            if limit <= 0:
                through = span.first_id + len(span) - 1
                break
        return shown, through + 1 if through < last_id else None

    async def waiting_ids(self, limit: int, last_id: int) -> list[IdRange]:
        """Return the ids of unaddressed messages in memory, lowest first, as ranges.

        The result is empty only if nothing waits or the queue is paused: messages in the store only
        are brought into memory first.
        """
        context = self._context
        if context.policy.paused:
            return []
        queue = context.queue
        through = min(last_id, queue.spilled.anyones_begin - 1)
        while not (spans := self._waiting(limit, 0, through)):
            if queue.spilled.anyones_begin > last_id:
                break
            if not await self._dispatch.tail.more():
                # Memory is short: ids out of order are better than none.
                through = last_id
                spans = self._waiting(limit, 0, through)
                break
            through = min(last_id, queue.spilled.anyones_begin - 1)
        ids = merge_ranges(map(_ids_of, spans))
        while len(spans) == WAITING_SPANS_PER_TURN and len(ids) < WAITING_RANGES_MAX:
            limit -= sum(map(len, spans))
            await asyncio.sleep(0)
            spans = self._waiting(limit, ids[-1][1] + 1, through)
            ids = merge_ranges([*ids, *map(_ids_of, spans)])
        if context.fenced or not context.may_deliver():
            # Another owner may have delivered these messages.
            raise context.taken_over()
        return ids[:WAITING_RANGES_MAX]

    def _waiting(self, limit: int, first_id: int, last_id: int) -> list[Span]:
        return self._context.queue.contents.browse(
            limit, first_id, last_id, for_anyone=True, spans_max=WAITING_SPANS_PER_TURN
        )

    async def acknowledge(self, ranges: list[IdRange]) -> int:
        """Acknowledge unaddressed waiting messages and wait for the disk; return their number."""
        context = self._context
        apart = merge_ranges(ranges)
        count = 0
        try:
            for at in range(0, len(apart), RANGES_PER_TURN):
                some = apart[at : at + RANGES_PER_TURN]
                for first_id, last_id in some:
                    count += await self._acknowledge_tail(first_id, last_id)
                if context.fenced:
                    break
                count += self._settling.settle_waiting(context.queue.contents.take_between(some))
                await asyncio.sleep(0)
        finally:
            if not context.fenced:
                # Groups may have been freed, heads may be short, and limits may have room.
                self._dispatch.dispatch()
        await self._settling.on_disk()
        if context.fenced:
            raise context.taken_over()
        return count

    async def _acknowledge_tail(self, first_id: int, last_id: int) -> int:
        """Acknowledge messages of a range that are in the store only, one chunk at a time."""
        context = self._context
        queue = context.queue
        count = 0
        while first_id <= last_id and queue.spilled.has_between(first_id, last_id, for_anyone=True):
            through = await self._dispatch.tail.pull_between(first_id, last_id)
            if context.fenced:
                break
            taken = queue.contents.take_between([(first_id, through)])
            count += self._settling.settle_waiting(taken)
            first_id = through + 1
        return count


def _ids_of(span: Span) -> IdRange:
    return span.first_id, span.first_id + len(span) - 1
