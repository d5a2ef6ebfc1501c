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
from tidegate.core.ports import Clock, Settlement, Store
from tidegate.core.segment import Segment
from tidegate.node.by_id import ById
from tidegate.node.dispatch import Dispatch
from tidegate.node.holding import Holding
from tidegate.node.intake import Intake
from tidegate.node.lifecycle_watch import DROPPED
from tidegate.node.limits import Limits
from tidegate.node.settling import Settling
from tidegate.queueing.lifecycle import Event
from tidegate.queueing.span import Span
from tidegate.storage.writer import Settler, Writer
from tidegate.telemetry.meters import QueueMeters
from tidegate.telemetry.numbers import ConsumerNumbers, QueueNumbers, durations

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
            self._holding, self._settling, lambda: self.intake.first_ids_under_way()
        )
        self.intake = Intake(self._holding, writer, self._admit)
        self._holding.made_room = self.intake.made_room
        self.by_id = ById(self._holding, self.dispatch, self._settling)

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
            or queue.resident_bytes < tail.head_bytes_least()
        )
        if queue.add(segment, keep=keep):
            self.dispatch.serve(segment.receivers)
        else:
            self.dispatch.spilled(segment)
        if holding.policy.overflow is Overflow.DROP:
            self._shed()

    def _shed(self) -> None:
        """Beyond the limit the oldest are given up."""
        policy, queue = self._holding.policy, self._holding.queue
        while policy.length_max is not None and len(queue) > policy.length_max:
            if not self.dispatch.shed(len(queue) - policy.length_max):
                break
        while policy.bytes_max is not None and queue.waiting_bytes > policy.bytes_max:
            # The oldest may be in the store only: then it has to wait.
            if not self.dispatch.shed(1):
                break

    # Messages that move to another queue

    def take_ready(self, count: int) -> list[Span]:
        """Up to `count` messages for anyone, the oldest first, which thereby are nobody's."""
        spans = self._holding.queue.take_regardless(count)
        return [span.advance(Event.GIVEN_UP) for span in spans]

    async def more_from_store(self) -> bool:
        """Bring back what only the store holds; whether there is something to take now."""
        return await self.dispatch.tail.more()

    def stay(self, spans: list[Span]) -> None:
        """Messages that were to leave do not."""
        if not self.fenced:
            self._holding.queue.stay(spans)
            self.dispatch.serve_all()

    def settlement_of(self, spans: list[Span]) -> Settlement | None:
        """What to write when these messages leave; None when nothing of them is in the store."""
        if not self.info.durable:
            return None
        settlement = Settlement(self.info.queue_id, self.epoch)
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

    def left(self, spans: list[Span], settlement: Settlement | None, outcome: str) -> None:
        """They have left, and that is on disk."""
        if self.fenced:
            return
        self._holding.note_ended(spans, outcome)
        written = set(settlement.finished) if settlement is not None else set()
        for span in spans:
            finished = self._holding.queue.done(span, Event.MOVED)
            # The others of its segment may have been settled meanwhile.
            if finished and span.segment.first_id not in written:
                self._settling.note_done(span, True)
        self.dispatch.serve_all()
        self._holding.made_room()

    def drop(self, spans: list[Span]) -> None:
        """Messages that were given up, and have nowhere to go."""
        self._holding.note_ended(spans, DROPPED)
        for span in spans:
            self._settling.note_done(span, self._holding.queue.done(span, Event.MOVED))
        self._holding.made_room()

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
        holding.queue.forget()
        if holding.watch is not None:
            holding.watch.over()
        self._on_fenced(self)

    async def quiesce(self) -> None:
        """Before handing over: end consumers, then let everything accepted reach the disk."""
        moving = NotOwner(f"queue {self.info.name!r} is moving to another node")
        self.intake.close()
        self.dispatch.end_all(moving, give_back=True)
        while self.intake.busy or self._settling.busy:
            self._settling.hurry()
            await asyncio.sleep(_DRAIN_POLL_S)

    def deleted(self) -> None:
        self.fence(QueueNotExisting(f"queue {self.info.name!r} was deleted"))

    # The whole queue

    async def set_policy(self, policy: QueuePolicy) -> None:
        """Promise something else from now on."""
        holding = self._holding
        if not await holding.store.set_policy(self.info.queue_id, policy):
            raise QueueNotExisting(f"no queue {self.info.name!r}")
        holding.set_policy(policy)
        self.intake.made_room()
        self.dispatch.serve_all()

    async def purge(self) -> int:
        """Drop what waits; what consumers hold stays theirs.

        Once memory has forgotten, the store must too: not even its caller's end stops it.
        """
        return await asyncio.shield(asyncio.create_task(self._purge()))

    async def _purge(self) -> int:
        holding = self._holding
        below_id = self.intake.ids_given_below
        dropped, count = holding.queue.purge()
        self.dispatch.later.forget()
        kept = self.intake.first_ids_under_way() | self.dispatch.first_ids_held()
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
        return len(self._holding.queue) == 0 and self.dispatch.unacknowledged == 0

    def has_for(self, client_id: int) -> bool:
        return self._holding.queue.has_for(client_id)

    def knows_all_for(self, client_id: int) -> bool:
        """Whether nothing is addressed to the client that only the store knows of."""
        return self._holding.queue.unsearched_from(client_id) is None

    # Once in a while

    def tick(self) -> None:
        """Lapsed leases go back; whoever waits for room gets another chance."""
        self.dispatch.expire(self._holding.clock.monotonic())
        self.dispatch.expire_messages()
        self.dispatch.later.release()
        self.dispatch.dispatch()
        # What has expired or was purged has left, even while nothing is delivered.
        self._holding.made_room()

    def tick_rates(self, now: float) -> None:
        self._holding.meters.tick(now)
        for consumer in self.dispatch.consumers:
            consumer.meters.tick(now)

    def numbers(self) -> QueueNumbers:
        holding = self._holding
        meters, queue = holding.meters, holding.queue
        oldest = queue.oldest()
        return QueueNumbers(
            queue_id=self.info.queue_id,
            name=self.info.name,
            durable=self.info.durable,
            epoch=self.epoch,
            waiting=len(queue),
            waiting_in_store=queue.tail_count,
            unacknowledged=self.dispatch.unacknowledged,
            oldest_age_s=ready_for_s(oldest, holding.clock.wall()) if oldest else 0.0,
            resident_bytes=queue.resident_bytes,
            put=meters.put.total,
            delivered=meters.delivered.total,
            acked=meters.acked.total,
            returned=meters.returned.total,
            redelivered=meters.redelivered.total,
            refused=meters.refused.total,
            put_per_s=meters.put.per_s,
            delivered_per_s=meters.delivered.per_s,
            acked_per_s=meters.acked.per_s,
            readers_waiting=self.dispatch.readers_waiting,
            wait=durations(meters.wait),
            service=durations(meters.service),
            consumers=[
                ConsumerNumbers(
                    consumer=consumer.consumer,
                    client_id=consumer.outlet.client_id,
                    client_name=consumer.outlet.client_name,
                    prefetch=consumer.prefetch,
                    unacknowledged=consumer.book.outstanding,
                    delivered=consumer.meters.delivered.total,
                    acked=consumer.meters.acked.total,
                    delivered_per_s=consumer.meters.delivered.per_s,
                    acked_per_s=consumer.meters.acked.per_s,
                    automatic=consumer.automatic,
                    service=durations(consumer.meters.service),
                )
                for consumer in self.dispatch.consumers
            ],
            delayed=queue.later_count,
            dead_lettered=meters.dead_lettered.total,
            dropped=meters.dropped.total,
            expired=meters.expired.total,
            deduplicated=meters.deduplicated.total,
            paused=holding.policy.paused,
        )


def ready_for_s(segment: Segment, now: float) -> float:
    """How long it could have been delivered."""
    # A delay that was asked for is no wait.
    return max(now - (segment.due_at or segment.arrived_at), 0.0)
