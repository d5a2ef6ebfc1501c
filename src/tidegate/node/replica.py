"""A queue replica that this node owns: the way of a message between two sockets.

    intake → (commit) → dispatch → settling → (commit) → gone
                ↓          ↑
              tail: what memory cannot hold

The index of what is ready lies in memory (queueing), the truth in the store. Everything runs
between two turns of the event loop; only the writer, the settler and the tail reader wait for
the store. A replica whose epoch the store refuses is fenced: it tells everyone and is dropped.
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
    """One owned queue: its intake, its dispatch, its settling."""

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
        # What comes from other queues is not purged half way.
        self.exchanging = asyncio.Lock()
        # Told when something became ready, if anybody wants to know.
        self.on_ready: Callable[[], None] = lambda: None
        # The same of another policy.
        self.on_policy: Callable[[], None] = lambda: None

    @property
    def holding(self) -> Holding:
        """What its parts share, for whoever samples it."""
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
        """Learn what the store holds. Nothing is read yet but counts and marks."""
        await self.intake.load()
        if self.info.durable:
            # Of a transaction whose node died before it could delete what it had finished.
            await self._holding.store.drop_done(self.info.queue_id, self.epoch)
            await self.dispatch.tail.load()
            await self.dispatch.later.load()

    @property
    def lease_s(self) -> float:
        return self._holding.lease_s

    def _admit(self, segment: Segment) -> None:
        """A stored segment is ready: in memory while there is room, else at the end of the tail."""
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
        """Beyond the limit the oldest are given up."""
        policy, queue = self._holding.policy, self._holding.queue
        while policy.length_max is not None and len(queue) > policy.length_max:
            if not self.dispatch.giving_up.shed(len(queue) - policy.length_max):
                break
        while policy.bytes_max is not None and queue.waiting_bytes > policy.bytes_max:
            # The oldest may be in the store only: then it has to wait.
            if not self.dispatch.giving_up.shed(1):
                break

    async def settled(self) -> None:
        """Wait until what was acknowledged, and what failed, is on disk."""
        await self._settling.on_disk()

    @property
    def meters(self) -> QueueMeters:
        return self._holding.meters

    # The end of ownership

    def fence(self, error: TidegateError) -> None:
        """We no longer own the queue: refuse what waits, end who listens, forget."""
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
        """Before handing over: end consumers, then let everything accepted reach the disk."""
        moving = NotOwner(f"queue {self.info.title} is moving to another node")
        self.intake.close()
        self.dispatch.end_all(moving, give_back=True)
        while self.intake.busy or self._settling.busy:
            self._settling.hurry()
            await asyncio.sleep(_DRAIN_POLL_S)

    def become_elastic(self, elastic: bool) -> None:
        """From now on replicas hold the messages of this queue, or no longer."""
        if self.info.elastic == elastic and not (elastic and not self.dispatch.is_idle):
            return
        self._holding.set_elastic(elastic)
        if elastic:
            # Who consumes does so from a replica: it comes back through the alias.
            spread = NotOwner(f"queue {self.info.title} is spread over replicas now: join it")
            self.dispatch.end_all(spread, give_back=True)

    def deleted(self) -> None:
        self.fence(QueueNotExisting(f"queue {self.info.title} was deleted"))

    # The whole queue

    async def set_policy(self, policy: QueuePolicy, before: QueuePolicy | None = None) -> None:
        """Promise something else from now on; with `before` only if that was it, as in the store.

        ChangedMeanwhile: it was not, and nothing is done.
        """
        holding = self._holding
        if not await holding.store.set_policy(self.info.queue_id, policy, before):
            raise QueueNotExisting(f"no queue {self.info.title}")
        holding.set_policy(policy)
        self.on_policy()
        self.intake.made_room()
        self.dispatch.serve_all()

    async def purge(self) -> int:
        """Drop what waits; what consumers hold stays theirs.

        Once memory has forgotten, the store must too: not even its caller's end stops it.
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
                # Whether it was purged or not, a reload knows better than we do.
                self.fence(holding.taken_over())
                raise
            if not purged:
                self.fence(holding.taken_over())
                raise holding.taken_over()
        # Of segments that somebody still holds a part of, the rest is acknowledged.
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
        """Whether nothing is addressed to the client that only the store knows of."""
        return self._holding.queue.tails.unsearched_from(client_id) is None

    # Once in a while

    def tick(self) -> None:
        """Lapsed leases go back; whoever waits for room gets another chance."""
        self.dispatch.expire(self._holding.clock.monotonic())
        self.dispatch.giving_up.expire()
        self.dispatch.later.release()
        self.dispatch.dispatch()
        # What has expired or was purged has left, even while nothing is delivered.
        self._holding.made_room()

    def tick_rates(self, now: float) -> None:
        self._holding.meters.tick(now)
        for consumer in self.dispatch.holders.consumers:
            consumer.meters.tick(now)

    def numbers(self, steps: int | None = 1) -> QueueNumbers:
        """With so many control steps of each consumer at most; None: nothing of consumers."""
        return full_numbers(self, steps)
