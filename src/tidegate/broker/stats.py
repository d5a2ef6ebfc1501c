"""Stats of a node, its queues and, on request, the other nodes."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from tidegate.core.prefetch import format_goal
from tidegate.core.segment import Segment
from tidegate.core.text import redact_secrets
from tidegate.telemetry.meters import PhaseMeters
from tidegate.telemetry.stats import (
    ClusterStats,
    ConsumerStats,
    DurationsSummary,
    NodeStats,
    PhaseStats,
    QueueStats,
    QueueSummaryStats,
    make_durations,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.broker.context import NodeContext, NodeIdentity
    from tidegate.broker.dispatch import Consumer
    from tidegate.broker.listener import Sessions
    from tidegate.broker.ownership import Ownership
    from tidegate.broker.relay import NodeClients
    from tidegate.broker.replica import Replica
    from tidegate.broker.replication import LogicalQueues
    from tidegate.telemetry.recorder import Recorder


class NodeStatsCollector:
    """Collects the stats of one node."""

    def __init__(
        self,
        context: NodeContext,
        sessions: Sessions,
        ownership: Ownership,
        logical_queues: LogicalQueues,
        clients: NodeClients,
        recorder: Recorder | None,
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._ownership = ownership
        self._logical_queues = logical_queues
        self._clients = clients
        self._recorder = recorder
        self._started_at = 0.0

    def start(self) -> None:
        self._started_at = self._context.clock.monotonic()

    @property
    def identity(self) -> NodeIdentity:
        return self._context.identity

    @property
    def replicas(self) -> Mapping[int, Replica]:
        """The queues of this node, by id."""
        return self._ownership.replicas

    async def of_cluster(
        self,
        queue_id: int | None,
        cluster: bool,
        steps: int | None = 1,
        *,
        with_durations: bool = True,
    ) -> ClusterStats:
        """Return the stats of this node and, with `cluster`, of all others that answer.

        `queue_id` limits the queues to one, with its replicas. `steps` is the number of control
        steps of each consumer; None: no consumers. Without `with_durations` the queues have summary
        stats.
        """
        replicas = self._ownership.replicas
        if queue_id is not None:
            # A queue that nothing has asked for since its owner died has no owner and no stats yet.
            await self._ownership.route(queue_id)
        chosen = sorted(
            number
            for number, replica in replicas.items()
            if queue_id in (None, number, replica.info.alias_id)
        )
        found = [replicas[number] for number in chosen]
        if with_durations:
            queues = [self._of_queue(replica, steps) for replica in found]
        else:
            # Summary stats: without what only control loops need
            queues = [replica.brief.collect() for replica in found]
        nodes = [self.of_node(queues)]
        if cluster:
            others = [
                member.address
                for member in await self._context.store.members()
                if member.alive and member.member_id != self._context.identity.member_id
            ]
            nodes += await self._clients.numbers(others, queue_id, steps, with_durations)
        return ClusterStats(nodes)

    def _of_queue(self, replica: Replica, steps: int | None) -> QueueStats:
        numbers = replica.numbers(steps)
        alias = self._logical_queues.logical_queue(replica)
        if alias is not None:
            numbers.producers = alias.producers
            numbers.members = alias.counts()
        return numbers

    def of_node(self, queues: list[QueueStats]) -> NodeStats:
        """Return the stats of this node with those of `queues`."""
        context, recorder = self._context, self._recorder
        identity, meters, budget = context.identity, context.meters, context.budget
        commits = meters.commits
        return NodeStats(
            member_id=identity.member_id,
            name=identity.name,
            address=identity.address,
            uptime_s=context.clock.monotonic() - self._started_at,
            connections=len(self._sessions),
            memory_bound_bytes=budget.bound_bytes,
            memory_resident_bytes=budget.used_bytes,
            process_memory_bytes=process_memory_bytes(),
            process_cpu_s=process_cpu_s(),
            commits=commits.count,
            commit=make_durations(commits),
            messages_per_commit=meters.committed_messages / max(commits.count, 1),
            packets_in=meters.packets_in,
            packets_out=meters.packets_out,
            queues=queues,
            rows_recorded=0 if recorder is None else recorder.rows_recorded,
            rows_dropped=0 if recorder is None else recorder.rows_dropped,
            lake="" if recorder is None else redact_secrets(recorder.lake),
            metrics_address=identity.metrics_address,
            writers=context.limits.writers,
            phases=_of_phases(meters.phases),
        )


def _of_phases(phases: PhaseMeters) -> PhaseStats:
    return PhaseStats(
        wait_client=make_durations(phases.wait_client),
        parse=make_durations(phases.parse),
        store=make_durations(phases.store),
        respond=make_durations(phases.respond),
        total=make_durations(phases.total),
        wait_message=make_durations(phases.wait_message),
    )


def process_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process_memory_bytes() -> int:
    """Return the resident memory now, not its peak."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize()


# Summary stats of a queue for clients that poll all queues.
#
# Most of many queues are idle. For an idle queue a few numbers are compared, and if they are the
# same, the last result is returned.


# Shared; never changed.
_UNTOLD = DurationsSummary()


class SummaryStatsCache:
    """Summary stats of one replica, with a cache for idle times."""

    __slots__ = ("_last", "_replica", "_seen")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._seen: tuple[object, ...] = ()
        self._last: QueueSummaryStats | None = None

    def collect(self) -> QueueSummaryStats:
        replica = self._replica
        context, dispatch = replica.context, replica.dispatch
        meters, info = context.meters, replica.info
        put, delivered, acked = meters.put, meters.delivered, meters.acked
        waiting = len(context.queue)
        seen = (
            *(put.total, delivered.total, acked.total),
            *(put.per_s, delivered.per_s, acked.per_s),
            *(meters.dead_lettered.total, meters.taken_over.total, info, replica.epoch),
        )
        is_still = not waiting and dispatch.is_idle
        if is_still and self._last is not None and seen == self._seen:
            return self._last
        oldest = context.queue.contents.oldest() if waiting else None
        consumers = dispatch.holders.consumers
        policy = info.policy
        found = QueueSummaryStats(
            queue_id=info.queue_id,
            name=info.name,
            durable=info.durable,
            epoch=replica.epoch,
            waiting=waiting,
            waiting_in_store=0,
            unacknowledged=dispatch.holders.unacknowledged,
            oldest_age_s=0.0 if oldest is None else ready_for_s(oldest, context.clock.wall()),
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
            logical=context.logical_name,
            replica=info.number,
            alias_id=info.alias_id,
            elastic=info.elastic,
            prefetch_goal="" if policy.prefetch is None else format_goal(policy.prefetch),
            consumer_count=len(consumers),
            prefetch=sum([consumer.prefetch for consumer in consumers]),
        )
        # A consumer that is here may change its prefetch at any time.
        self._seen, self._last = (seen, found) if is_still else ((), None)
        return found


# Detailed stats of a queue and its consumers.


def detailed_stats(replica: Replica, steps: int | None) -> QueueStats:
    """Return all stats of a queue.

    `steps` is the number of control steps of each consumer; None: no consumers.
    """
    context, info, dispatch = replica.context, replica.info, replica.dispatch
    meters, queue = context.meters, context.queue
    oldest = queue.contents.oldest() if len(queue) else None
    consumers = dispatch.holders.consumers
    of_loops = info.elastic or bool(info.alias_id)
    return QueueStats(
        queue_id=info.queue_id,
        name=info.name,
        durable=info.durable,
        epoch=replica.epoch,
        waiting=len(queue),
        waiting_in_store=queue.spilled.count,
        unacknowledged=dispatch.holders.unacknowledged,
        oldest_age_s=ready_for_s(oldest, context.clock.wall()) if oldest else 0.0,
        resident_bytes=queue.in_memory.cost_bytes,
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
        wait=make_durations(meters.wait),
        service=make_durations(meters.service),
        consumers=[] if steps is None else [_of_consumer(each, steps) for each in consumers],
        delayed=queue.delayed.count,
        dead_lettered=meters.dead_lettered.total,
        dropped=meters.dropped.total,
        expired=meters.expired.total,
        deduplicated=meters.deduplicated.total,
        paused=context.policy.paused,
        logical=context.logical_name,
        replica=info.number,
        alias_id=info.alias_id,
        elastic=info.elastic,
        producers=replica.intake.producers_of_late(),
        handed_over=meters.handed_over.total,
        taken_over=meters.taken_over.total,
        homes_held=sorted(replica.assignments.held()) if of_loops else [],
        homes_ahead=sorted(replica.assignments.ahead()) if of_loops else [],
        prefetch_goal=""
        if context.policy.prefetch is None
        else format_goal(context.policy.prefetch),
        consumer_count=len(consumers),
        prefetch=sum([consumer.prefetch for consumer in consumers]),
    )


def _of_consumer(consumer: Consumer, steps: int) -> ConsumerStats:
    return ConsumerStats(
        consumer=consumer.consumer,
        client_id=consumer.target.client_id,
        client_name=consumer.target.client_name,
        prefetch=consumer.prefetch,
        unacknowledged=consumer.book.outstanding,
        delivered=consumer.meters.delivered.total,
        acked=consumer.meters.acked.total,
        delivered_per_s=consumer.meters.delivered.per_s,
        acked_per_s=consumer.meters.acked.per_s,
        automatic=consumer.automatic,
        service=make_durations(consumer.meters.service),
        control=[] if consumer.control is None else list(consumer.control)[-steps:],
        trial_by="" if consumer.experiment is None else consumer.experiment.client_name,
    )


# How long a message has waited before its delivery, for stats and telemetry.


def ready_for_s(segment: Segment, now: float) -> float:
    """Return how many seconds the segment could have been delivered."""
    # A requested delay is no wait.
    return max(now - (segment.due_at or segment.arrived_at), 0.0)
