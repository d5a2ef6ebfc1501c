"""Detailed stats of a queue and its consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.prefetch_words import told
from tidegate.node.consumer import Consumer
from tidegate.node.waiting_time import ready_for_s
from tidegate.telemetry.numbers import ConsumerNumbers, QueueNumbers, durations

if TYPE_CHECKING:
    from tidegate.node.replica import Replica


def full_numbers(replica: Replica, steps: int | None) -> QueueNumbers:
    """Return all stats of a queue.

    `steps` is the number of control steps of each consumer; None: no consumers.
    """
    holding, info, dispatch = replica.holding, replica.info, replica.dispatch
    meters, queue = holding.meters, holding.queue
    oldest = queue.contents.oldest() if len(queue) else None
    consumers = dispatch.holders.consumers
    of_loops = info.elastic or bool(info.alias_id)
    return QueueNumbers(
        queue_id=info.queue_id,
        name=info.name,
        durable=info.durable,
        epoch=replica.epoch,
        waiting=len(queue),
        waiting_in_store=queue.tails.count,
        unacknowledged=dispatch.holders.unacknowledged,
        oldest_age_s=ready_for_s(oldest, holding.clock.wall()) if oldest else 0.0,
        resident_bytes=queue.residents.cost_bytes,
        put=meters.put.total,
        delivered=meters.delivered.total,
        acked=meters.acked.total,
        returned=meters.returned.total,
        redelivered=meters.redelivered.total,
        refused=meters.refused.total,
        put_per_s=meters.put.per_s,
        delivered_per_s=meters.delivered.per_s,
        acked_per_s=meters.acked.per_s,
        readers_waiting=dispatch.readers.count,
        wait=durations(meters.wait),
        service=durations(meters.service),
        consumers=[] if steps is None else [_of_consumer(each, steps) for each in consumers],
        delayed=queue.delayed.count,
        dead_lettered=meters.dead_lettered.total,
        dropped=meters.dropped.total,
        expired=meters.expired.total,
        deduplicated=meters.deduplicated.total,
        paused=holding.policy.paused,
        logical=holding.logical_name,
        replica=info.number,
        alias_id=info.alias_id,
        elastic=info.elastic,
        producers=replica.intake.producers_of_late(),
        handed_over=meters.handed_over.total,
        taken_over=meters.taken_over.total,
        homes_held=sorted(replica.homes.held()) if of_loops else [],
        homes_ahead=sorted(replica.homes.ahead()) if of_loops else [],
        prefetch_goal="" if holding.policy.prefetch is None else told(holding.policy.prefetch),
        consumer_count=len(consumers),
        prefetch=sum([consumer.prefetch for consumer in consumers]),
    )


def _of_consumer(consumer: Consumer, steps: int) -> ConsumerNumbers:
    return ConsumerNumbers(
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
        control=[] if consumer.control is None else list(consumer.control)[-steps:],
        trial_by="" if consumer.trial is None else consumer.trial.client_name,
    )
