"""Pending reads, served in the order in which they came.

A read may ask for a sender or a context. If memory holds no match, the store is searched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.core.errors import (
    NoMessagesInQueue,
    NoMessagesRetrieved,
    TidegateError,
    Unavailable,
)
from tidegate.core.segment import Segment
from tidegate.node.consumer import Reader
from tidegate.node.giving_up import GivingUp
from tidegate.node.holding import Holding
from tidegate.node.pace_gate import PaceGate
from tidegate.node.runs import counted_run
from tidegate.node.settling import Settling
from tidegate.node.tail import TailReader
from tidegate.queueing.lifecycle import State
from tidegate.queueing.rank import EVERYTHING
from tidegate.queueing.span import Span


class Readers:
    """The pending reads of one replica."""

    def __init__(
        self,
        holding: Holding,
        settling: Settling,
        giving_up: GivingUp,
        tail: TailReader,
        gate: PaceGate,
        freed: Callable[[], None],
    ) -> None:
        self._holding = holding
        self._settling = settling
        self._giving_up = giving_up
        self._tail = tail
        self._gate = gate
        # Called when a read message has let out the next one of its group.
        self._freed = freed
        self.waiting: dict[Reader, None] = {}
        self._of_client: dict[int, dict[Reader, None]] = {}

    @property
    def count(self) -> int:
        """Return the number of pending reads."""
        return len(self.waiting)

    @property
    def clients(self) -> list[int]:
        return list(self._of_client)

    def has_client(self, client_id: int) -> bool:
        return client_id in self._of_client

    def want(self, segment: Segment) -> bool:
        """Return whether a pending read selects a message of `segment`."""
        whole = Span(segment, 0, segment.count, State.READY)
        return any(
            reader.match is not None and reader.match.find(whole) is not None
            for reader in self.waiting
        )

    def read(self, reader: Reader, wait_s: float) -> None:
        """Answer a read now, or when a message comes, or with an error after `wait_s`.

        With `wait_s` 0 the read fails as soon as memory and store are known to hold nothing for it.
        """
        if not self._holding.may_deliver():
            reader.miss(Unavailable("this node's lease has lapsed: ask again"))
            return
        if self._try(reader):
            if self._holding.queue.turnstile.freed:
                self._freed()
            return
        in_store = self._holding.queue.tails.count > 0
        if wait_s <= 0 and not in_store:
            self._miss(reader)
            return
        self.waiting[reader] = None
        self._of_client.setdefault(reader.client_id, {})[reader] = None
        if wait_s > 0:
            reader.timer = asyncio.get_running_loop().call_later(wait_s, self._miss, reader)
        if not in_store:
            # The store holds nothing older. `Dispatch.spilled` checks segments that stay there
            # later.
            reader.horizon = EVERYTHING
        else:
            # A match may be in the store only.
            self._tail.search(
                reader,
                lambda: reader not in self.waiting or self._try(reader),
                lambda: self._not_found(reader),
            )

    def _not_found(self, reader: Reader) -> None:
        if reader.timer is None:
            self._miss(reader)

    def _miss(self, reader: Reader) -> None:
        self.drop(reader)
        name = self._holding.logical_name
        if self._holding.policy.paused:
            reader.miss(NoMessagesRetrieved(f"queue {name!r} is paused: resume it"))
        elif len(self._holding.queue) == 0:
            reader.miss(NoMessagesInQueue(f"queue {name!r} is empty"))
        else:
            reader.miss(NoMessagesRetrieved(f"queue {name!r} holds no message that matches"))

    def drop(self, reader: Reader) -> None:
        """Remove a read that was answered, has timed out, or whose connection is gone."""
        if reader.timer is not None:
            reader.timer.cancel()
        self.waiting.pop(reader, None)
        mine = self._of_client.get(reader.client_id)
        if mine is not None:
            mine.pop(reader, None)
            if not mine:
                del self._of_client[reader.client_id]

    def end_all(self, error: TidegateError) -> None:
        """Fail all pending reads with `error`."""
        for reader in list(self.waiting):
            self.drop(reader)
            reader.miss(error)

    # Out

    def serve(self, receivers: list[int] | None) -> None:
        """Answer reads after messages became ready for `receivers`; None: for any client."""
        if receivers is None:
            for reader in list(self.waiting):
                if not self._holding.queue.lanes.head_count:
                    break
                self._try(reader)
        else:
            for receiver in set(receivers):
                for reader in list(self._of_client.get(receiver, ())):
                    if not self._try(reader) and reader.match is None:
                        break

    def _try(self, reader: Reader) -> bool:
        holding = self._holding
        if not holding.may_deliver() or holding.policy.paused:
            return False
        if holding.pace is not None and not self._gate.allowed(holding.pace):
            return False
        span = self._take_for(reader)
        if span is None:
            if reader.match is None:
                # A message for another client that is in the store only may come first.
                self._tail.search_for_receiver(reader.client_id)
            return False
        self.drop(reader)
        if holding.pace is not None:
            holding.pace.spend(1)
        holder = reader.book_for()
        lease = holder.book.grant(span, holding.clock.monotonic(), reader.lease_s or 0.0)
        run = counted_run(holding, lease)
        body = span.segment.body(span.low, span.high)
        if reader.lease_s is None:
            # A read without a lease removes the message: delivering it acknowledges it.
            self._settling.settle(holder, [(lease.tag, lease.tag)])
        reader.answer(run, body)
        self._tail.fill_head()
        return True

    def _take_for(self, reader: Reader) -> Span | None:
        queue = self._holding.queue
        while True:
            if reader.match is None:
                spans = queue.take(1, reader.client_id, reader.order)
                span = spans[0] if spans else None
            else:
                span = queue.take_match(
                    reader.match, reader.client_id, reader.order, reader.horizon
                )
            if span is None or self._giving_up.living([span]):
                return span
