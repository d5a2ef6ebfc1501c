"""Summary stats of a queue for clients that poll all queues.

Most of many queues are idle. For an idle queue a few numbers are compared, and if they are the
same, the last result is returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.prefetch_words import told
from tidegate.node.waiting_time import ready_for_s
from tidegate.telemetry.numbers import BriefQueueNumbers, UntoldDurations

if TYPE_CHECKING:
    from tidegate.node.replica import Replica

# Shared; never changed.
_UNTOLD = UntoldDurations()


class BriefNumbers:
    """Summary stats of one replica, with a cache for idle times."""

    __slots__ = ("_last", "_replica", "_seen")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._seen: tuple[object, ...] = ()
        self._last: BriefQueueNumbers | None = None

    def take(self) -> BriefQueueNumbers:
        replica = self._replica
        holding, dispatch = replica.holding, replica.dispatch
        meters, info = holding.meters, replica.info
        put, delivered, acked = meters.put, meters.delivered, meters.acked
        waiting = len(holding.queue)
        seen = (
            *(put.total, delivered.total, acked.total),
            *(put.per_s, delivered.per_s, acked.per_s),
            *(meters.dead_lettered.total, meters.taken_over.total, info, replica.epoch),
        )
        is_still = not waiting and dispatch.is_idle
        if is_still and self._last is not None and seen == self._seen:
            return self._last
        oldest = holding.queue.contents.oldest() if waiting else None
        consumers = dispatch.holders.consumers
        policy = info.policy
        found = BriefQueueNumbers(
            queue_id=info.queue_id,
            name=info.name,
            durable=info.durable,
            epoch=replica.epoch,
            waiting=waiting,
            waiting_in_store=0,
            unacknowledged=dispatch.holders.unacknowledged,
            oldest_age_s=0.0 if oldest is None else ready_for_s(oldest, holding.clock.wall()),
            resident_bytes=0,
            put=put.total,
            delivered=delivered.total,
            acked=acked.total,
            returned=0,
            redelivered=0,
            refused=0,
            put_per_s=put.per_s,
            delivered_per_s=delivered.per_s,
            acked_per_s=acked.per_s,
            readers_waiting=dispatch.readers.count,
            wait=_UNTOLD,
            service=_UNTOLD,
            consumers=[],
            dead_lettered=meters.dead_lettered.total,
            paused=policy.paused,
            logical=holding.logical_name,
            replica=info.number,
            alias_id=info.alias_id,
            elastic=info.elastic,
            prefetch_goal="" if policy.prefetch is None else told(policy.prefetch),
            consumer_count=len(consumers),
            prefetch=sum([consumer.prefetch for consumer in consumers]),
        )
        # A consumer that is here may change its prefetch at any time.
        self._seen, self._last = (seen, found) if is_still else ((), None)
        return found
