"""Stats of a node, its queues and, on request, the other nodes."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from tidegate.core.prefetch import format_goal
from tidegate.core.segment import Segment
from tidegate.core.text import redact_secrets
from tidegate.telemetry.meters import AdaptiveSampler, Histogram, PhaseMeters
from tidegate.telemetry.recorder import Row
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
    from tidegate.broker.dispatch import Consumer
    from tidegate.broker.node import Node
    from tidegate.broker.replica import Replica


class NodeStatsCollector:
    """Collects the stats of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._started_at = 0.0
        self._commits = Histogram()
        self._committed_messages = 0

    def start(self) -> None:
        self._started_at = self._node.clock.monotonic()

    def count_commit(self, duration_s: float, messages: int) -> None:
        self._commits.add(duration_s)
        self._committed_messages += messages

    @property
    def committed(self) -> tuple[int, int, float]:
        """Number of transactions that stored messages, of these messages, and the seconds taken."""
        return self._commits.count, self._committed_messages, self._commits.sum_s

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
        node = self._node
        if queue_id is not None:
            # A queue that nothing has asked for since its owner died has no owner and no stats yet.
            await node.ownership.route(queue_id)
        chosen = sorted(
            number
            for number, replica in node.replicas.items()
            if queue_id in (None, number, replica.info.alias_id)
        )
        found = [node.replicas[number] for number in chosen]
        if with_durations:
            queues = [self._of_queue(replica, steps) for replica in found]
        else:
            # Summary stats: without what only control loops need
            queues = [replica.brief.collect() for replica in found]
        nodes = [self.of_node(queues)]
        if cluster:
            others = [
                member.address
                for member in await node.store.members()
                if member.alive and member.member_id != node.member_id
            ]
            nodes += await node.node_clients.numbers(others, queue_id, steps, with_durations)
        return ClusterStats(nodes)

    def _of_queue(self, replica: Replica, steps: int | None) -> QueueStats:
        numbers = replica.numbers(steps)
        alias = self._node.aliases.logical_queue(replica)
        if alias is not None:
            numbers.producers = alias.producers
            numbers.members = alias.counts()
        return numbers

    def of_node(self, queues: list[QueueStats]) -> NodeStats:
        """Return the stats of this node with those of `queues`."""
        node = self._node
        recorder = None if node.recording is None else node.recording.recorder
        return NodeStats(
            member_id=node.member_id,
            name=node.name,
            address=node.address,
            uptime_s=node.clock.monotonic() - self._started_at,
            connections=len(node.sessions),
            memory_bound_bytes=node.budget.bound_bytes,
            memory_resident_bytes=node.budget.used_bytes,
            process_memory_bytes=process_memory_bytes(),
            process_cpu_s=process_cpu_s(),
            commits=self._commits.count,
            commit=make_durations(self._commits),
            messages_per_commit=self._committed_messages / max(self._commits.count, 1),
            packets_in=node.packets_in,
            packets_out=node.packets_out,
            queues=queues,
            rows_recorded=0 if recorder is None else recorder.rows_recorded,
            rows_dropped=0 if recorder is None else recorder.rows_dropped,
            lake="" if recorder is None else redact_secrets(recorder.lake),
            metrics_address=node.metrics_address,
            writers=node.limits.writers,
            phases=_of_phases(node.phases),
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


# Times the phases of requests of a client that sends one at a time (Telesto's table 5.3).
#
#     last answer sent -> wait for client -> arrived -> parse -> parsed
#         -> wait for the store, or for a message -> ready -> respond -> answer sent
#
# A cycle runs from the end of one answer to the end of the next. It is cut at three instants, so
# the phases add up to the total. Requests that overlap with others have no such cycle and are not
# counted.


# End of the previous answer, arrived, parsed, ready, and end of this answer; in seconds.
Cuts = tuple[float, float, float, float, float]


class RequestCycle:
    """Times the request that is being handled on one connection."""

    __slots__ = (
        "_answered_at",
        "_counts",
        "_phases",
        "_requests",
        "_unanswered",
        "_waited",
        "arrived_at",
        "parsed_at",
        "ready_at",
        "verb",
    )

    def __init__(self, phases: PhaseMeters, requests: RequestSamples | None = None) -> None:
        self._phases = phases
        # Collects single requests for the lake; None: not recorded.
        self._requests = requests
        # Type of the packet that is being handled.
        self.verb: type | None = None
        self._unanswered = 0
        self._counts = False
        self._answered_at = 0.0
        # When the last packet arrived, and when it was parsed.
        self.arrived_at = 0.0
        self.parsed_at = 0.0
        self._waited: Histogram | None = None
        # When the awaited commit or message was there; 0: when the answer began.
        self.ready_at = 0.0

    def asked(self, arrived_at: float, parsed_at: float) -> None:
        self._unanswered += 1
        self._counts = self._unanswered == 1 and self._answered_at > 0.0
        self.arrived_at = arrived_at
        self.parsed_at = parsed_at
        if self._counts:
            self._waited = None
            self.ready_at = 0.0

    def handled(self, reads: bool) -> None:
        """Note that the handler has returned; if there is no answer yet, it waits for something."""
        if self._counts:
            self._waited = self._phases.wait_message if reads else self._phases.store

    def unanswered(self) -> None:
        """Note that the request gets no answer, or gets it from another node."""
        self._unanswered -= 1
        self._counts = False

    def answered(self, began_at: float, ended_at: float) -> None:
        # Errors may answer packets that need no answer, and bytes that are no request.
        self._unanswered = max(self._unanswered - 1, 0)
        if self._counts:
            self._counts = False
            phases = self._phases
            phases.wait_client.add(self.arrived_at - self._answered_at)
            phases.parse.add(self.parsed_at - self.arrived_at)
            ready_at = self.parsed_at
            if self._waited is not None:
                ready_at = self.ready_at or began_at
                self._waited.add(ready_at - self.parsed_at)
            phases.respond.add(ended_at - ready_at)
            phases.total.add(ended_at - self._answered_at)
            requests = self._requests
            if requests is not None:
                requests.skip -= 1
                if requests.skip <= 0:
                    requests.take(
                        self.verb,
                        (self._answered_at, self.arrived_at, self.parsed_at, ready_at, ended_at),
                        for_message=self._waited is phases.wait_message,
                    )
        self._answered_at = ended_at


class RequestSamples:
    """Collects the phases of one in N requests for the lake."""

    __slots__ = ("_sampler", "_taken", "skip")

    def __init__(self, sampler: AdaptiveSampler) -> None:
        self._sampler = sampler
        # Collected since the last tick; rows are made for many at a time.
        self._taken: list[tuple[type | None, int, Cuts, bool]] = []
        # How many requests to skip before the next one is collected.
        self.skip = sampler.skip

    def take(self, verb: type | None, cuts: Cuts, *, for_message: bool) -> None:
        """Collect the request that was just answered."""
        self._taken.append((verb, self._sampler.one_by_one(), cuts, for_message))
        self.skip = self._sampler.skip

    def tick(self, node: str, now: float, now_us: int) -> list[Row]:
        """End an interval: return the rows of the collected requests."""
        self._sampler.skip = self.skip
        self._sampler.tick()
        self.skip = self._sampler.skip
        taken, self._taken = self._taken, []
        return [
            (now_us - int(1e6 * (now - cuts[-1])), node, *_phases(verb, weight, cuts, for_message))
            for verb, weight, cuts, for_message in taken
        ]


def _phases(verb: type | None, weight: int, cuts: Cuts, for_message: bool) -> Row:
    before_us, arrived_us, parsed_us, ready_us, ended_us = (1e6 * cut for cut in cuts)
    waited_us = ready_us - parsed_us
    return (
        "" if verb is None else verb.__name__,
        float(weight),
        arrived_us - before_us,
        parsed_us - arrived_us,
        0.0 if for_message else waited_us,
        waited_us if for_message else 0.0,
        ended_us - ready_us,
        ended_us - before_us,
    )


# How long a message has waited before its delivery, for stats and telemetry.


def ready_for_s(segment: Segment, now: float) -> float:
    """Return how many seconds the segment could have been delivered."""
    # A requested delay is no wait.
    return max(now - (segment.due_at or segment.arrived_at), 0.0)
