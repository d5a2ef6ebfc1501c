"""Batches on their way to one replica of a logical queue, and their handling when it fails.

    refused for certain      goes to other replicas at once, under new numbers
    no room                  offered to each other replica once; fails if none has room
    result unknown           sent again to the same replica until a node knows the result
    replica does not exist   ask the alias whether it was stored; if not, send it elsewhere

Messages with an assigned replica (a group, a receiver, a dedup id) go nowhere else. They wait for
that replica, in order, and follow when the assignment changes.
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

# A replica that confirms nothing for this long gets no new messages until it answers, in seconds.
STALL_S = 1.0
# The answer for a batch that was stored at a replica that is gone; its ids are not known.
_STORED = PutMessageResponse(0)


class ReplicaOutbox(Outbox):
    """Collects and sends messages to one replica, or to the alias."""

    __slots__ = ("_answered_at", "_fates", "_spread")

    def __init__(self, spread: Spread, queue_id: int) -> None:
        super().__init__(spread.client, spread.queue)
        self._spread = spread
        self.queue_id = queue_id
        # The time of its last answer, or of the first batch sent after a pause.
        self._answered_at = 0.0
        # Look-ups of results of batches.
        self._fates: set[asyncio.Task[None]] = set()

    @property
    def unconfirmed(self) -> int:
        return super().unconfirmed + len(self._fates)

    @property
    def is_idle(self) -> bool:
        return not (self._payloads or self._in_flight or self._resend or self._fates)

    def is_stalled(self, now: float) -> bool:
        """Return whether batches in flight have had no answer for longer than `STALL_S`."""
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
            # The replica has looked for the batch and does not have it.
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
        """Give a batch that is certainly not stored to another replica."""
        link = self._client.link
        if link is None or not link.alive:
            # The transport failed, not the replica: keep the batch for the reconnect.
            self._put_back(batch)
            return
        self._spread.away(self, gone=isinstance(error, QueueNotExisting))
        if not self._spread.deal_again(self, batch):
            self._try_later(batch)

    def _finds_room(self, batch: Batch) -> bool:
        """Pass the batch to a replica that may have room; return `False` if there is none."""
        return self._spread.find_room(self, batch)

    def _not_home(self, batch: Batch, error: TidegateError) -> None:
        """Distribute a batch again, since another replica is assigned to some of its messages."""
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
        """Flush after a look-up has ended, since batches may have waited for it."""
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
    """Collects and sends the messages of one assignment slot to its current replica."""

    __slots__ = ("_index", "_may_wait_at_alias")

    def __init__(self, spread: Spread, index: int, *, may_wait_at_alias: bool) -> None:
        super().__init__(spread, 0)
        self._index = index
        # Addressed messages may wait at the alias. Groups and dedup ids need a single place: an
        # order or a duplicate is only known there.
        self._may_wait_at_alias = may_wait_at_alias
        self.queue_id = self._target() or spread.queue_id

    def _target(self) -> int | None:
        return self._spread.home(self._index, may_be_alias=self._may_wait_at_alias)

    def _flush(self) -> None:
        if self._fates:
            # The looked-up batch may have to be sent again, before everything that was put after
            # it.
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
        # Send to the former replica only batches that it may have stored.
        self._send_unknown()
        if target is not None and not self._in_flight:
            self.queue_id = target
            super()._flush()

    def _not_home(self, batch: Batch, error: TidegateError) -> None:
        """Refresh the topology and try again, since the assignment has changed."""
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
