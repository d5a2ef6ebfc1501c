"""A replica: one queue that this node owns, from put to acknowledgement.

Theory of operation

The parts of a replica share a `ReplicaContext`, which holds the queue in memory (`queueing.Queue`),
the epoch of the claim, limits and meters.

    Intake -> commit -> Dispatch -> Settling -> commit -> done
                 |         ^
             SpillReader: segments that memory cannot hold

- `Intake` collects the batches of producers into segments. `Writer` commits them, then
  `Replica._admit` adds them to the queue and the producers get their confirmations.
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

from tidegate.core.budget import Budget
from tidegate.core.errors import NotOwner, QueueNotExisting, TidegateError
from tidegate.core.model import DeathReason, Overflow, QueueInfo, QueuePolicy
from tidegate.core.ports import Clock, Store
from tidegate.core.segment import Segment
from tidegate.node.brief_numbers import BriefNumbers
from tidegate.node.by_id import ById
from tidegate.node.departures import Departures
from tidegate.node.dispatch import Dispatch
from tidegate.node.full_numbers import full_numbers
from tidegate.node.holding import Holding
from tidegate.node.intake import Intake
from tidegate.node.limits import Limits
from tidegate.node.replica_homes import ReplicaHomes
from tidegate.node.settling import Settling
from tidegate.queueing.span import Span
from tidegate.storage.writer import Settler, Writer
from tidegate.telemetry.meters import QueueMeters
from tidegate.telemetry.numbers import QueueNumbers

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
        limits: Limits,
        clock: Clock,
        may_deliver: Callable[[], bool],
        on_fenced: Callable[[Replica], None],
        give_up: Callable[[Replica, list[Span], DeathReason, str | None], None],
    ) -> None:
        self._holding = Holding(
            info,
            epoch,
            store=store,
            budget=budget,
            limits=limits,
            clock=clock,
            may_deliver=may_deliver,
        )
        self._holding.fence = self.fence
        self._holding.give_up = lambda spans, reason, error: give_up(self, spans, reason, error)
        self._on_fenced = on_fenced
        self._settling = Settling(self._holding, settler)
        self.dispatch = Dispatch(
            self._holding, self._settling, lambda found: self.intake.without_under_way(found)
        )
        self.intake = Intake(self._holding, writer, self._admit)
        self._holding.made_room = self.intake.made_room
        self.by_id = ById(self._holding, self.dispatch, self._settling)
        self.departures = Departures(self._holding, self.dispatch, self._settling)
        self.homes = ReplicaHomes(self._holding, self.intake, self.dispatch, self.departures)
        self.brief = BriefNumbers(self)
        # Held while a transfer or a purge runs: a purge must not run between the steps of a
        # transfer.
        self.exchanging = asyncio.Lock()
        # Called when a message became ready; set by `LogicalQueues`.
        self.on_ready: Callable[[], None] = lambda: None
        # Called when the policy has changed; set by `Ownership`.
        self.on_policy: Callable[[], None] = lambda: None

    @property
    def holding(self) -> Holding:
        """The state that the parts share."""
        return self._holding

    @property
    def info(self) -> QueueInfo:
        return self._holding.info

    @property
    def epoch(self) -> int:
        return self._holding.epoch

    @property
    def fenced(self) -> bool:
        return self._holding.fenced

    async def load(self) -> None:
        """Load from the store: reserved ids, batch marks, and the extent of the messages.

        The messages themselves are read later, when their turn is near.
        """
        await self.intake.load()
        if self.info.durable:
            # A node may have died between committing a transaction and deleting its finished
            # segments.
            await self._holding.store.drop_done(self.info.queue_id, self.epoch)
            await self.dispatch.tail.load()
            await self.dispatch.later.load()

    @property
    def lease_s(self) -> float:
        return self._holding.lease_s

    def _admit(self, segment: Segment) -> None:
        """Add a stored segment to the queue, in memory if there is room.

        Otherwise it stays in the store until its turn is near.
        """
        holding = self._holding
        if segment.due_at is not None:
            self.dispatch.later.add(segment)
            return
        queue = holding.queue
        tail = self.dispatch.tail
        keep = (
            not holding.info.durable
            or holding.budget.has_room_for(segment.cost_bytes)
            or queue.residents.cost_bytes < tail.head_bytes_least()
        )
        if queue.add(segment, keep=keep):
            self.dispatch.serve(segment.receivers)
        else:
            self.dispatch.spilled(segment)
        self.on_ready()
        if holding.policy.overflow is Overflow.DROP:
            self._shed()

    def _shed(self) -> None:
        """Give up the oldest messages until the queue is within its limits."""
        policy, queue = self._holding.policy, self._holding.queue
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
        return self._holding.meters

    # End of ownership

    def fence(self, error: TidegateError) -> None:
        """Stop serving: the node no longer owns the queue.

        Fails waiting puts and reads with `error`, ends all consumers and frees the memory. Messages
        that consumers hold do not return to the queue: the new owner delivers them again.
        """
        holding = self._holding
        if holding.fenced:
            return
        holding.fenced = True
        self.intake.fenced(error)
        self.dispatch.end_all(error, give_back=False)
        self.dispatch.tail.fenced()
        self.dispatch.later.fenced()
        self._settling.fenced()
        holding.queue.residents.clear()
        if holding.watch is not None:
            holding.watch.over()
        self._on_fenced(self)

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

    def become_elastic(self, elastic: bool) -> None:
        """Set whether replicas hold the messages of this queue from now on.

        If they do, all consumers and reads end here and come back at a replica.
        """
        if self.info.elastic == elastic and not (elastic and not self.dispatch.is_idle):
            return
        self._holding.set_elastic(elastic)
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
        holding = self._holding
        if not await holding.store.set_policy(self.info.queue_id, policy, before):
            raise QueueNotExisting(f"no queue {self.info.title}")
        holding.set_policy(policy)
        self.on_policy()
        self.intake.made_room()
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
        holding = self._holding
        below_id = self.intake.ids.next_id
        dropped, count = holding.queue.purge()
        self.dispatch.later.forget()
        kept = self.intake.first_ids_under_way() | self.dispatch.first_ids_held()
        kept.update(self.departures.segments)
        if holding.watch is not None:
            holding.watch.purged(dropped, kept, holding.clock.monotonic())
        for span in dropped:
            if span.segment.open:
                kept.add(span.segment.first_id)
                self._settling.note_done(span, False)
        if holding.info.durable:
            try:
                purged = await holding.store.purge(
                    holding.info.queue_id, holding.epoch, below_id, sorted(kept)
                )
            except TidegateError:
                # The store may or may not have purged the queue. A reload finds out.
                self.fence(holding.taken_over())
                raise
            if not purged:
                self.fence(holding.taken_over())
                raise holding.taken_over()
        # Some segments are kept since consumers hold a part of them. The rest of their messages is
        # settled as done.
        await self._settling.on_disk()
        if holding.fenced:
            raise holding.taken_over()
        return count

    @property
    def is_empty(self) -> bool:
        return len(self._holding.queue) == 0 and self.dispatch.holders.unacknowledged == 0

    def has_for(self, client_id: int) -> bool:
        return self._holding.queue.lanes.has_for(client_id)

    def knows_all_for(self, client_id: int) -> bool:
        """Return whether no message for the client can be in the store only."""
        return self._holding.queue.tails.unsearched_from(client_id) is None

    # Periodic work

    def tick(self) -> None:
        """Expire leases and messages, release due messages, dispatch and resume waiting puts.

        Called every 0.25 s.
        """
        self.dispatch.expire(self._holding.clock.monotonic())
        self.dispatch.giving_up.expire()
        self.dispatch.later.release()
        self.dispatch.dispatch()
        # Messages may have expired or been purged, which makes room even if none is delivered.
        self._holding.made_room()

    def tick_rates(self, now: float) -> None:
        self._holding.meters.tick(now)
        for consumer in self.dispatch.holders.consumers:
            consumer.meters.tick(now)

    def numbers(self, steps: int | None = 1) -> QueueNumbers:
        """Return the stats of the queue.

        `steps` is the number of control steps of each consumer; None: no consumers.
        """
        return full_numbers(self, steps)
