"""Batches on their way to one replica of a logical queue, and what becomes of them when it goes.

    refused for certain    dealt to other replicas at once, under new numbers
    no room for it         offered to each of the others, once; refused when none has room
    outcome unknown        sent again to the same replica, until somebody answers for it
    its replica is gone    its fate is asked for: stored, or dealt to others

What has to stay together (a group, a receiver's messages, a dedup id) has a home and goes nowhere
else: it waits for its home, in order, and follows when the home moves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidegate.client.batch import Batch
from tidegate.client.outbox import Outbox
from tidegate.client.unsent import Unsent
from tidegate.core.errors import (
    IoFailure,
    LimitReached,
    NotHome,
    QueueNotExisting,
    RetryLater,
    TidegateError,
)
from tidegate.wire.packet import Packet
from tidegate.wire.packets.puts import PutMessageResponse

if TYPE_CHECKING:
    from tidegate.client.spread import Spread

# A replica that confirms nothing for so long is left to the others, until it does.
STALL_S = 1.0
# Answers to a batch that was stored, by whoever stored it.
_STORED = PutMessageResponse(0)


class ReplicaOutbox(Outbox):
    """What is on its way to one replica, or to the alias itself."""

    __slots__ = ("_answered_at", "_fates", "_spread")

    def __init__(self, spread: Spread, queue_id: int) -> None:
        super().__init__(spread.client, spread.queue)
        self._spread = spread
        self.queue_id = queue_id
        # When it was last heard of, or began to be waited for.
        self._answered_at = 0.0
        # Batches whose fate is being asked for.
        self._fates: set[asyncio.Task[None]] = set()

    @property
    def unconfirmed(self) -> int:
        return super().unconfirmed + len(self._fates)

    @property
    def is_idle(self) -> bool:
        return not (self._payloads or self._in_flight or self._resend or self._fates)

    def is_stalled(self, now: float) -> bool:
        """Whether it has been silent for longer than anybody who works is."""
        return bool(self._in_flight) and now - self._answered_at > STALL_S

    def _send(self, batch: Batch) -> None:
        if not self._in_flight:
            self._answered_at = self._loop.time()
        super()._send(batch)

    def _take_answer(self, batch: Batch, answer: Packet) -> None:
        self._answered_at = self._loop.time()
        self._spread.answered(self)
        super()._take_answer(batch, answer)

    def _failed(self, batch: Batch, error: TidegateError) -> None:
        if isinstance(error, IoFailure):
            batch.is_unknown = True
        if isinstance(error, NotHome):
            # It was looked for, and whatever was feared, it is not stored there.
            batch.is_unknown = False
            self._not_home(batch, error)
        elif isinstance(error, QueueNotExisting):
            if batch.is_unknown:
                self._ask_fate(batch)
            else:
                self._refused(batch, error)
        elif (
            isinstance(error, RetryLater)
            and not isinstance(error, LimitReached)
            and not batch.is_unknown
            and self._has_patience(batch)
        ):
            self._refused(batch, error)
        elif isinstance(error, LimitReached) and not batch.is_unknown and self._finds_room(batch):
            return
        else:
            if batch.is_unknown:
                self._spread.away(self)
            super()._failed(batch, error)

    def _has_patience(self, batch: Batch) -> bool:
        now = self._loop.time()
        if batch.failing_since is None:
            batch.failing_since = now
        return now - batch.failing_since <= self._client.reconnect_s

    def _refused(self, batch: Batch, error: TidegateError) -> None:
        """Nothing of it is stored: others may have it."""
        link = self._client.link
        if link is None or not link.alive:
            # Not the replica's fault: everything goes on when we are connected again.
            self._put_back(batch)
            return
        self._spread.away(self, gone=isinstance(error, QueueNotExisting))
        if not self._spread.deal_again(self, batch):
            self._try_later(batch)

    def _finds_room(self, batch: Batch) -> bool:
        """Whether there is a replica left that may have room for it; then it goes there."""
        return self._spread.find_room(self, batch)

    def _not_home(self, batch: Batch, error: TidegateError) -> None:
        """Some of it has to go somewhere in particular."""
        unsent = Unsent.of(batch)
        if unsent is not None and self._has_patience(batch):
            self._spread.take(unsent)
        else:
            batch.give_up(error)

    def _ask_fate(self, batch: Batch) -> None:
        task = self._client.spawn(self._find_fate(batch))
        self._fates.add(task)
        task.add_done_callback(self._fate_known)

    def _fate_known(self, task: asyncio.Task[None]) -> None:
        """Or no longer asked for: something may have waited for that."""
        self._fates.discard(task)
        if not task.cancelled():
            self.flush()

    async def _find_fate(self, batch: Batch) -> None:
        assert self.queue_id is not None
        packet = batch.packet
        try:
            stored = await self._spread.fate(packet.queue_id, packet.producer, packet.batch)
        except asyncio.CancelledError:
            batch.give_up(IoFailure("closed before it was known whether it was stored"))
            raise
        except TidegateError as error:
            if isinstance(error, RetryLater) and self._has_patience(batch):
                self._try_later(batch)
            else:
                batch.give_up(IoFailure(f"{error}; whether it was stored is not known"))
            return
        if stored:
            super()._take_answer(batch, _STORED)
            return
        batch.is_unknown = False
        self._refused(batch, QueueNotExisting("the replica is gone"))


class HomeOutbox(ReplicaOutbox):
    """What has one home in common, wherever that is."""

    __slots__ = ("_index", "_may_wait_at_alias")

    def __init__(self, spread: Spread, index: int, *, may_wait_at_alias: bool) -> None:
        super().__init__(spread, 0)
        self._index = index
        # Addressed messages may: only order and dedup ids need the one place.
        self._may_wait_at_alias = may_wait_at_alias
        self.queue_id = self._target() or spread.queue_id

    def _target(self) -> int | None:
        return self._spread.home(self._index, may_be_alias=self._may_wait_at_alias)

    def _flush(self) -> None:
        if self._fates:
            # What is asked for may have to be sent again, before all that was put after it.
            self._scheduled = False
            return
        target = self._target()
        if target == self.queue_id:
            super()._flush()
            return
        self._scheduled = False
        link = self._client.link
        if link is None or not link.alive:
            return
        # Only what must still go to the old home.
        self._send_unknown()
        if target is not None and not self._in_flight:
            self.queue_id = target
            super()._flush()

    def _not_home(self, batch: Batch, error: TidegateError) -> None:
        """Somebody knows better than we do where its home is."""
        if self._has_patience(batch):
            self._spread.membership.join_again()
            self._try_later(batch)
        else:
            batch.give_up(error)

    def _refused(self, batch: Batch, error: TidegateError) -> None:
        self._spread.away(self, gone=isinstance(error, QueueNotExisting))
        self._try_later(batch)

    def _finds_room(self, batch: Batch) -> bool:
        return False
