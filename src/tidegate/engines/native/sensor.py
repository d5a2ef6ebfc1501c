"""The sensor of Tidegate's own nodes: stats in, a sample of each logical queue out.

Theory of operation.

The leader calls `poll` once per period. It asks all live nodes at once, with a timeout of 2
seconds, so that one silent node does not delay the loop. Then the leader calls `sample` for each
logical queue. `sample` does no I/O: all samples of a period show the same poll.

Rates are differences of counters, divided by the time on the counting node's clock. The sensor's
own clock would be wrong: a poll ends with the slowest answer, and by then the other answers are
old.

A queue is in one of these states after a poll:

    its owner answered                  measured now
    its owner lives and was silent      unreachable; last known values, whose age grows
    no node owns it                     unreachable; last known values; it does not count for the
                                        age of the sample, since it is known to be away

Invariants:

- A missing measurement is not taken for zero. The last known value stays, or the replica is marked
  unreachable; the age of the sample tells the guards to hold.
- Counters restart with each owner. If the epoch has changed, or a counter has decreased, the queue
  keeps its previous rates for one period.
- If two nodes report a queue, the higher epoch wins: the queue is moving.
- `_owners` contains exactly the queues that the last poll measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidegate.agreements.evaluation import AgreementSample
from tidegate.client.connection import Response
from tidegate.core.decisions import QueueSample, ReplicaSample
from tidegate.core.errors import TidegateError
from tidegate.core.store import MemberInfo
from tidegate.core.topology import ReplicaInfo, ReplicaState, ScalingPolicy, Topology
from tidegate.protocol.cluster import Stats
from tidegate.protocol.packet import Request

Members = Callable[[], Awaitable[list[MemberInfo]]]
# Address of a node, the request, and the timeout in seconds: `NodeClients.request_with_body`.
StatsRequest = Callable[[str, Request, float], Awaitable[Response]]
# A silent node that still counts as live must not hold up all others.
_ANSWER_S = 2.0
# Minimum time between two polls that give a rate.
_SHORTEST_S = 0.05


class _Queue:
    """The last stats of one queue, and its rates."""

    __slots__ = (
        "acked",
        "acked_per_s",
        "counted_s",
        "epoch",
        "has_rates",
        "numbers",
        "put",
        "put_per_s",
        "seen_at",
    )

    def __init__(self, numbers: SensorQueueStats, owner: SensorNodeStats, now: float) -> None:
        self.put_per_s = 0.0
        self.acked_per_s = 0.0
        # A new queue without traffic has rate 0, which needs no second poll.
        self.has_rates = numbers.epoch == 1 and not (numbers.put or numbers.acked)
        self._begin(numbers, owner, now)

    def _begin(self, numbers: SensorQueueStats, owner: SensorNodeStats, now: float) -> None:
        self.numbers = numbers
        self.epoch = numbers.epoch
        self.put, self.acked = numbers.put, numbers.acked
        # The time of these stats, by the owner's clock and by the sensor's.
        self.counted_s, self.seen_at = owner.uptime_s, now

    def update(self, numbers: SensorQueueStats, owner: SensorNodeStats, now: float) -> None:
        lasted_s = owner.uptime_s - self.counted_s
        if numbers.epoch == self.epoch and lasted_s < _SHORTEST_S:
            self.numbers, self.seen_at = numbers, now
            return
        is_same_count = (
            numbers.epoch == self.epoch and numbers.put >= self.put and numbers.acked >= self.acked
        )
        if is_same_count:
            self.put_per_s = (numbers.put - self.put) / lasted_s
            self.acked_per_s = (numbers.acked - self.acked) / lasted_s
            self.has_rates = True
        self._begin(numbers, owner, now)


class _Node:
    """The last totals of one node, and its load."""

    __slots__ = ("commit_s", "cpu_s", "free_memory_bytes", "load", "uptime_s")

    def __init__(self, numbers: SensorNodeStats) -> None:
        self.load = 0.0
        self._begin(numbers)

    def _begin(self, numbers: SensorNodeStats) -> None:
        self.cpu_s, self.commit_s = numbers.process_cpu_s, numbers.commit.sum_s
        self.free_memory_bytes = numbers.memory_bound_bytes - numbers.memory_resident_bytes
        self.uptime_s = numbers.uptime_s

    def update(self, numbers: SensorNodeStats) -> None:
        lasted_s = numbers.uptime_s - self.uptime_s
        if 0.0 <= lasted_s < _SHORTEST_S:
            return
        cpu_s, commit_s = numbers.process_cpu_s - self.cpu_s, numbers.commit.sum_s - self.commit_s
        if lasted_s > 0.0 and cpu_s >= 0.0 and commit_s >= 0.0:
            memory = numbers.memory_resident_bytes / max(numbers.memory_bound_bytes, 1)
            # A node runs in one thread, and each writer has at most one commit under way.
            store = commit_s / lasted_s / max(numbers.writers, 1)
            self.load = max(cpu_s / lasted_s, memory, store)
        self._begin(numbers)


class NativeSensor:
    """Samples of logical queues, from the stats of all nodes."""

    def __init__(self, members: Members, asked: StatsRequest) -> None:
        self._members = members
        self._asked = asked
        self._queues: dict[int, _Queue] = {}
        # Queue → owner, for the queues that the last poll measured.
        self._owners: dict[int, int] = {}
        self._nodes: dict[int, _Node] = {}
        self._serving_since: dict[int, float] = {}

    async def poll(self, topologies: Sequence[Topology], now: Callable[[], float]) -> None:
        """Poll all nodes once; the answers hold for all samples until the next poll."""
        alive = [member.address for member in await self._members() if member.alive]
        answers = await asyncio.gather(*map(self._ask, alive))
        self.take(
            SensorClusterStats([node for nodes in answers for node in nodes]), topologies, now()
        )

    async def _ask(self, address: str) -> list[SensorNodeStats]:
        try:
            answered = await self._asked(address, Stats(None, cluster=False), _ANSWER_S)
        except TidegateError:
            return []
        return msgspec.json.decode(answered.body, type=SensorClusterStats).nodes

    def take(self, cluster: SensorClusterStats, topologies: Sequence[Topology], now: float) -> None:
        """Take the stats of all nodes that answered, and drop queues that no longer exist."""
        wanted = {place.queue_id for topology in topologies for place in topology.replicas}
        wanted.update(topology.queue_id for topology in topologies)
        self._queues = {key: queue for key, queue in self._queues.items() if key in wanted}
        self._serving_since = {
            key: since for key, since in self._serving_since.items() if key in wanted
        }
        self._owners = {}
        for node in cluster.nodes:
            known = self._nodes.get(node.member_id)
            if known is None:
                self._nodes[node.member_id] = _Node(node)
            else:
                known.update(node)
            for numbers in node.queues:
                if numbers.queue_id not in wanted:
                    continue
                # While a queue moves, two nodes may report it; the higher epoch is right.
                other = self._queues.get(numbers.queue_id)
                if other is None:
                    self._queues[numbers.queue_id] = _Queue(numbers, node, now)
                elif numbers.epoch >= other.epoch:
                    other.update(numbers, node, now)
                else:
                    continue
                self._owners[numbers.queue_id] = node.member_id

    def numbers_of(self, queue_id: int) -> SensorQueueStats | None:
        """Return a queue's stats from the last poll; None if no owner answered."""
        return self._queues[queue_id].numbers if queue_id in self._owners else None

    def age_of(self, queue_id: int, now: float) -> float | None:
        """Return the age of a queue's oldest waiting message, in seconds; None if never measured.

        If no owner answers, the messages that waited at the last measurement are assumed to wait
        still.
        """
        queue = self._queues.get(queue_id)
        if queue is None:
            return None
        numbers = queue.numbers
        if queue_id in self._owners or not (numbers.waiting or numbers.unacknowledged):
            return numbers.oldest_age_s
        return numbers.oldest_age_s + max(now - queue.seen_at, 0.0)

    def free_memory_bytes(self, queue_ids: Iterable[int]) -> float | None:
        """Return the smallest free memory of these queues' owners; None if none answered."""
        owners = {self._owners[queue_id] for queue_id in queue_ids if queue_id in self._owners}
        return min((float(self._nodes[one].free_memory_bytes) for one in owners), default=None)

    def sample(
        self,
        topology: Topology,
        now: float,
        pending: int = 0,
        slots_free: int | None = None,
        keeps_warm: bool = False,
    ) -> QueueSample:
        """Return the sample of a logical queue from the last poll."""
        queue_ids = [topology.queue_id, *(place.queue_id for place in topology.replicas)]
        known = [self._queues[queue_id] for queue_id in queue_ids if queue_id in self._queues]
        alias = self._queues.get(topology.queue_id)
        # Under this policy a producer uses one replica, and only the alias knows which.
        is_elected = topology.scaling.policy is ScalingPolicy.CLIENTS
        elected = alias.numbers.members if alias is not None and is_elected else None
        owners = {self._owners[queue_id] for queue_id in queue_ids if queue_id in self._owners}
        return QueueSample(
            queue=topology.queue,
            at=now,
            replicas=[self._replica(place, elected, now) for place in topology.replicas],
            # Messages that a replica takes over from the alias or another replica do not count as
            # put.
            arrived_per_s=sum(queue.put_per_s for queue in known),
            alias_waiting=0 if alias is None else alias.numbers.waiting,
            pending=pending,
            slots_free=slots_free,
            keeps_warm=keeps_warm,
            resource_load=max((self._nodes[owner].load for owner in owners), default=0.0),
            age_s=self._age_s(topology, now),
        )

    def _age_s(self, topology: Topology, now: float) -> float:
        """Return the age of the oldest measurement in the sample; infinite if one is missing."""
        needed = [self._queues.get(topology.queue_id)]
        for place in topology.replicas:
            queue = self._queues.get(place.queue_id)
            # A replica without an owner, or that never answered yet, needs no measurement.
            if queue is not None and place.address is not None:
                needed.append(queue)
        return max(
            now - queue.seen_at if queue is not None and queue.has_rates else float("inf")
            for queue in needed
        )

    def _replica(
        self, place: ReplicaInfo, elected: Mapping[int, tuple[int, int]] | None, now: float
    ) -> ReplicaSample:
        queue = self._queues.get(place.queue_id)
        if place.state is ReplicaState.STARTING:
            self._serving_since.pop(place.queue_id, None)
            age_s = 0.0
        else:
            age_s = now - self._serving_since.setdefault(place.queue_id, now)
        if queue is None:
            return ReplicaSample(
                number=place.number,
                state=place.state,
                share=place.share,
                machine_id=place.machine_id,
                age_s=age_s,
                reachable=False,
            )
        numbers = queue.numbers
        producers = numbers.producers
        if elected is not None:
            producers, _ = elected.get(place.number, (0, 0))
        return ReplicaSample(
            number=place.number,
            state=place.state,
            produced_per_s=queue.put_per_s,
            consumed_per_s=queue.acked_per_s,
            waiting=numbers.waiting,
            unacknowledged=numbers.unacknowledged,
            oldest_age_s=numbers.oldest_age_s,
            producers=producers,
            consumers=len(numbers.consumers),
            share=place.share,
            machine_id=place.machine_id,
            age_s=age_s,
            # An owner whose store is unavailable still answers, but can neither take nor give
            # messages.
            reachable=place.queue_id in self._owners and place.address is not None,
            waiting_consumers=_idle(numbers),
        )


def _idle(numbers: SensorQueueStats) -> int:
    """Return the number of waiting reads, and of consumers with unused credit, if nothing waits."""
    if numbers.waiting:
        return 0
    return numbers.readers_waiting + sum(
        1 for consumer in numbers.consumers if consumer.unacknowledged < consumer.prefetch
    )


# The parts of a node's stats that the control loops need.
#
# Decoding all stats of a thousand replicas, with their histograms, takes longer than the decisions.
# The decoder skips all fields that these types do not name.


class SensorConsumerStats(msgspec.Struct):
    """Stats of one consumer."""

    prefetch: int
    unacknowledged: int


class SensorQueueStats(msgspec.Struct):
    """Stats of one queue: a replica, or the alias of a logical queue."""

    queue_id: int
    epoch: int
    waiting: int
    unacknowledged: int
    oldest_age_s: float
    put: int
    acked: int
    readers_waiting: int
    consumers: list[SensorConsumerStats]
    producers: int = 0
    # Alias only: number of a replica → (producers, consumers) that were sent there.
    members: dict[int, tuple[int, int]] = {}
    homes_held: list[int] = []
    homes_ahead: list[int] = []
    refused: int = 0
    # Encoded histograms (`Durations`), decoded only for queues with an agreement.
    wait: msgspec.Raw = msgspec.Raw(b"")
    service: msgspec.Raw = msgspec.Raw(b"")


class SensorCommitStats(msgspec.Struct):
    """Total duration of the node's commits."""

    sum_s: float = 0.0


class SensorNodeStats(msgspec.Struct):
    """Stats of one node."""

    member_id: int
    # The node's own clock; all its counters refer to it.
    uptime_s: float
    memory_bound_bytes: int
    memory_resident_bytes: int
    process_cpu_s: float
    commit: SensorCommitStats
    queues: list[SensorQueueStats]
    writers: int = 1


class SensorClusterStats(msgspec.Struct):
    """Stats of all nodes that answered."""

    nodes: list[SensorNodeStats]


# Measurements of a logical queue for its agreement: counts and waits since the last sample.
#
# A node counts from the moment it owns a queue. The meter returns the difference to the previous
# sample. A new owner (a new epoch) has counted from 0, so then all its counts are new.
#
# A queue that existed before, and answers for the first time, adds nothing to its first sample: it
# is unknown when its messages were counted. A replica without an answer is not measured. The age of
# its oldest message keeps growing.


class _Histogram(msgspec.Struct):
    """The part of a queue's `Durations` that the meter needs."""

    buckets: list[tuple[float, int]] = []


_HISTOGRAM = msgspec.json.Decoder(_Histogram)
_STEMS = ("wait", "service")


@dataclass
class _OwnerCounts:
    """The counts of one queue by one owner."""

    epoch: int
    put: int = 0
    acked: int = 0
    refused: int = 0
    times: dict[str, dict[float, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: SensorQueueStats) -> _OwnerCounts:
        return cls(
            numbers.epoch,
            numbers.put,
            numbers.acked,
            numbers.refused,
            {stem: _buckets(getattr(numbers, stem)) for stem in _STEMS},
        )

    def since(self, before: _OwnerCounts) -> _OwnerCounts:
        """Return the difference to earlier counts; all counts if another owner counted those."""
        went_back = self.put < before.put or self.acked < before.acked
        if before.epoch != self.epoch or went_back:
            return self
        return _OwnerCounts(
            self.epoch,
            self.put - before.put,
            self.acked - before.acked,
            max(self.refused - before.refused, 0),
            {
                stem: {
                    bound_s: count - before.times[stem].get(bound_s, 0)
                    for bound_s, count in self.times[stem].items()
                    if count > before.times[stem].get(bound_s, 0)
                }
                for stem in _STEMS
            },
        )


class AgreementMeter:
    """Samples of logical queues for their agreements, from what the sensor has polled last."""

    def __init__(self, sensor: NativeSensor) -> None:
        self._sensor = sensor
        self._before: dict[int, _OwnerCounts] = {}
        # Queues that existed at the last sample.
        self._known: set[int] = set()
        self._looked_at: float | None = None

    def sample(self, topology: Topology, now: float, wall_s: float) -> AgreementSample | None:
        """Return the counts since the previous call.

        Returns None for the first call, and while the alias's owner does not answer.

        `now` is the loop's clock, and `wall_s` the time since 1970, both in seconds.
        """
        queue_ids = [topology.queue_id, *(place.queue_id for place in topology.replicas)]
        counted = {
            queue_id: _OwnerCounts.of(numbers)
            for queue_id in queue_ids
            if (numbers := self._sensor.numbers_of(queue_id)) is not None
        }
        if topology.queue_id not in counted:
            # Keep the previous sample: what the alias's owner counts while it is silent belongs to
            # the whole time until it answers.
            return None
        before, known, began = self._before, self._known, self._looked_at
        self._known = set(queue_ids)
        # Keep the last counts of silent queues, to compare with when they answer again.
        kept = {queue_id: one for queue_id, one in before.items() if queue_id in queue_ids}
        self._before, self._looked_at = kept | counted, now
        if began is None or not now > began:
            return None
        # A new replica began at 0, so all its counts are new. A replica that existed and never
        # answered before is left out, since its counts may be older than this interval.
        parts = [
            one.since(before[queue_id]) if queue_id in before else one
            for queue_id, one in counted.items()
            if queue_id in before or queue_id not in known
        ]
        return AgreementSample(
            at_s=wall_s,
            interval_s=now - began,
            accepted=float(sum(one.put for one in parts)),
            served=float(sum(one.acked for one in parts)),
            refused=float(sum(one.refused for one in parts)),
            waiting=float(sum(self._waiting(queue_id) for queue_id in counted)),
            oldest_age_s=max(self._ages(queue_ids, now), default=None),
            free_memory_bytes=self._sensor.free_memory_bytes(queue_ids),
            times={stem: _merged(one.times[stem] for one in parts) for stem in _STEMS},
        )

    def _waiting(self, queue_id: int) -> int:
        numbers = self._sensor.numbers_of(queue_id)
        return 0 if numbers is None else numbers.waiting

    def _ages(self, queue_ids: Iterable[int], now: float) -> list[float]:
        ages = (self._sensor.age_of(queue_id, now) for queue_id in queue_ids)
        return [age for age in ages if age is not None]


def _buckets(raw: msgspec.Raw) -> dict[float, int]:
    return dict(_HISTOGRAM.decode(raw).buckets) if bytes(raw) else {}


def _merged(parts: Iterable[dict[float, int]]) -> tuple[tuple[float, int], ...]:
    total: dict[float, int] = {}
    for part in parts:
        for bound_s, count in part.items():
            total[bound_s] = total.get(bound_s, 0) + count
    return tuple(sorted(total.items()))
