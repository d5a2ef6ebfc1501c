"""Limits of a queue by its policy. An empty queue takes any single batch."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.core.errors import LimitReached
from tidegate.core.model import Overflow
from tidegate.core.ports import Write
from tidegate.node.batch import Batch
from tidegate.node.holding import Holding

# Bytes that may wait for room at a queue that is at its limit; more is refused.
HELD_BYTES_MAX = 64 * 1024 * 1024


class Room:
    """Checks puts to one replica against the node's memory and the queue's policy."""

    __slots__ = ("_holding",)

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    def why_refused(
        self, batch: Batch, waiting: Collection[Batch], under_way: Collection[Write], at_limit: bool
    ) -> str | None:
        """Return why the batch must be refused for good, or None if it may wait for a commit.

        `waiting` and `under_way` are before it. `at_limit` tells whether the queue is at its limit.
        """
        holding = self._holding
        name = holding.info.title
        if not holding.info.durable and not holding.budget.has_room_for(len(batch.body)):
            return (
                f"the node's memory ({holding.limits.memory_bytes} bytes) is full and queue "
                f"{name} is transient: consume, or declare it durable"
            )
        policy = holding.policy
        if policy.length_max is None and policy.bytes_max is None:
            return None
        if policy.overflow is Overflow.REFUSE:
            count = sum(len(each.packet.lengths) for each in waiting)
            body_bytes = sum(len(each.body) for each in waiting)
            segments = [write.segment for write in under_way]
            count += sum(segment.count for segment in segments)
            body_bytes += sum(segment.payload_bytes for segment in segments)
            if not self._has(count + len(batch.packet.lengths), body_bytes + len(batch.body)):
                return self._is_full()
        elif at_limit and sum(len(each.body) for each in waiting) > HELD_BYTES_MAX:
            return f"queue {name} is full, and so is the line before it: await each put"
        return None

    def must_wait(
        self, count: int, body_bytes: int, batch: Batch, under_way: Collection[Write]
    ) -> bool:
        """Return whether a `slow` queue limit holds the batch back.

        `count` and `body_bytes` are already in the same commit.
        """
        policy = self._holding.policy
        if policy.length_max is None and policy.bytes_max is None:
            return False
        if policy.overflow is not Overflow.SLOW:
            return False
        count += sum(write.segment.count for write in under_way)
        if not count and not len(self._holding.queue):
            return False
        body_bytes += sum(write.segment.payload_bytes for write in under_way)
        return not self._has(count + len(batch.packet.lengths), body_bytes + len(batch.body))

    def lets_in(self, count: int, body_bytes: int) -> bool:
        """Return whether the limits allow messages that a transaction or transfer stores.

        Raises `LimitReached` if the policy refuses instead of waiting.
        """
        holding = self._holding
        policy = holding.policy
        if (policy.length_max is None and policy.bytes_max is None) or not len(holding.queue):
            return True
        if policy.overflow is Overflow.DROP or self._has(count, body_bytes):
            return True
        if policy.overflow is Overflow.REFUSE:
            holding.meters.refused.add(count)
            raise LimitReached(self._is_full())
        return False

    def _has(self, count: int, body_bytes: int) -> bool:
        """Return whether so many messages and bytes fit within the limits."""
        policy, queue = self._holding.policy, self._holding.queue
        if policy.length_max is not None and len(queue) + count > policy.length_max:
            return False
        return policy.bytes_max is None or queue.waiting_bytes + body_bytes <= policy.bytes_max

    def _is_full(self) -> str:
        """Return the text of the error for a full queue."""
        policy = self._holding.policy
        limits = " and ".join(
            text
            for limit, text in (
                (policy.length_max, f"{policy.length_max} messages"),
                (policy.bytes_max, f"{policy.bytes_max} bytes"),
            )
            if limit is not None
        )
        info = self._holding.info
        each = " for each replica" if info.alias_id else ""
        return f"queue {info.title} is full ({limits}{each}): consume, or raise its limit"
