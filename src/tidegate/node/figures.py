"""Stats of a node, its queues and, on request, the other nodes."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from tidegate.core.secrecy import without_secrets
from tidegate.node.replica import Replica
from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.meters import PhaseMeters
from tidegate.telemetry.numbers import (
    ClusterNumbers,
    NodeNumbers,
    PhaseNumbers,
    QueueNumbers,
    durations,
)

if TYPE_CHECKING:
    from tidegate.node.server import Node


class Figures:
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
    ) -> ClusterNumbers:
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
            queues = [replica.brief.take() for replica in found]
        nodes = [self.of_node(queues)]
        if cluster:
            others = [
                member.address
                for member in await node.store.members()
                if member.alive and member.member_id != node.member_id
            ]
            nodes += await node.neighbours.numbers(others, queue_id, steps, with_durations)
        return ClusterNumbers(nodes)

    def _of_queue(self, replica: Replica, steps: int | None) -> QueueNumbers:
        numbers = replica.numbers(steps)
        alias = self._node.aliases.known(replica)
        if alias is not None:
            numbers.producers = alias.producers
            numbers.members = alias.counts()
        return numbers

    def of_node(self, queues: list[QueueNumbers]) -> NodeNumbers:
        """Return the stats of this node with those of `queues`."""
        node = self._node
        recorder = None if node.recording is None else node.recording.recorder
        return NodeNumbers(
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
            commit=durations(self._commits),
            messages_per_commit=self._committed_messages / max(self._commits.count, 1),
            packets_in=node.packets_in,
            packets_out=node.packets_out,
            queues=queues,
            rows_recorded=0 if recorder is None else recorder.rows_recorded,
            rows_dropped=0 if recorder is None else recorder.rows_dropped,
            lake="" if recorder is None else without_secrets(recorder.lake),
            metrics_address=node.metrics_address,
            writers=node.limits.writers,
            phases=_of_phases(node.phases),
        )


def _of_phases(phases: PhaseMeters) -> PhaseNumbers:
    return PhaseNumbers(
        wait_client=durations(phases.wait_client),
        parse=durations(phases.parse),
        store=durations(phases.store),
        respond=durations(phases.respond),
        total=durations(phases.total),
        wait_message=durations(phases.wait_message),
    )


def process_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process_memory_bytes() -> int:
    """Return the resident memory now, not its peak."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize()
