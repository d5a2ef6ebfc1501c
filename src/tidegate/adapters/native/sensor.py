"""The sensor of Tidegate's own nodes: live numbers in, a sample of each logical queue out.

Rates are differences of counters over the time since a queue was last looked at. That time is by
the clock of whoever counts: a look ends with the slowest answer, and what the others have said is
older by then. Counters begin anew with every owner, so a queue whose epoch is another one keeps the
rate that it had: one period without news is better than a rate of minus a million.

    owner answers                     measured now
    owner lives and does not answer   unreachable; as it was last seen, and older every second
    nobody owns it                    unreachable; as it was last seen: it is known to be away

Nothing that was not measured counts as zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from tidegate.adapters.native.looks import ClusterLook, NodeLook, QueueLook
from tidegate.client.link import Answered
from tidegate.core.errors import TidegateError
from tidegate.core.ports import MemberInfo
from tidegate.core.replication import ReplicaPlace, ReplicaState, Topology
from tidegate.core.scaling import ScalingPolicy
from tidegate.core.steering import QueueSample, ReplicaSample
from tidegate.wire.packet import Request
from tidegate.wire.packets.live_numbers import Stats

Members = Callable[[], Awaitable[list[MemberInfo]]]
# Address of a node, what is asked of it, and for how long: neighbours.asked.
Asked = Callable[[str, Request, float], Awaitable[Answered]]
# A node that is not dead yet and does not answer must not hold up all others.
_ANSWER_S = 2.0
# Two looks that are closer than this make no rate.
_SHORTEST_S = 0.05


class _Queue:
    """What is remembered of one queue: its counters when last looked at, and its rates."""

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

    def __init__(self, numbers: QueueLook, owner: NodeLook, now: float) -> None:
        self.put_per_s = 0.0
        self.acked_per_s = 0.0
        # One that has just been made has done nothing: that is known without a second look.
        self.has_rates = numbers.epoch == 1 and not (numbers.put or numbers.acked)
        self._begin(numbers, owner, now)

    def _begin(self, numbers: QueueLook, owner: NodeLook, now: float) -> None:
        self.numbers = numbers
        self.epoch = numbers.epoch
        self.put, self.acked = numbers.put, numbers.acked
        # By the clock of its owner, and by that of who looks.
        self.counted_s, self.seen_at = owner.uptime_s, now

    def look(self, numbers: QueueLook, owner: NodeLook, now: float) -> None:
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
    """What is remembered of one node: what it has used, and how loaded that makes it."""

    __slots__ = ("commit_s", "cpu_s", "free_memory_bytes", "load", "uptime_s")

    def __init__(self, numbers: NodeLook) -> None:
        self.load = 0.0
        self._begin(numbers)

    def _begin(self, numbers: NodeLook) -> None:
        self.cpu_s, self.commit_s = numbers.process_cpu_s, numbers.commit.sum_s
        self.free_memory_bytes = numbers.memory_bound_bytes - numbers.memory_resident_bytes
        self.uptime_s = numbers.uptime_s

    def look(self, numbers: NodeLook) -> None:
        lasted_s = numbers.uptime_s - self.uptime_s
        if 0.0 <= lasted_s < _SHORTEST_S:
            return
        cpu_s, commit_s = numbers.process_cpu_s - self.cpu_s, numbers.commit.sum_s - self.commit_s
        if lasted_s > 0.0 and cpu_s >= 0.0 and commit_s >= 0.0:
            memory = numbers.memory_resident_bytes / max(numbers.memory_bound_bytes, 1)
            # A node is one thread, and a writer has one commit under way at a time.
            store = commit_s / lasted_s / max(numbers.writers, 1)
            self.load = max(cpu_s / lasted_s, memory, store)
        self._begin(numbers)


class NativeSensor:
    """Samples of logical queues, from the numbers of all nodes."""

    def __init__(self, members: Members, asked: Asked) -> None:
        self._members = members
        self._asked = asked
        self._queues: dict[int, _Queue] = {}
        # Of the queues that were seen in the last look, who owns them.
        self._owners: dict[int, int] = {}
        self._nodes: dict[int, _Node] = {}
        self._serving_since: dict[int, float] = {}

    async def look(self, topologies: Sequence[Topology], now: Callable[[], float]) -> None:
        """Ask all nodes once; what they say holds for all samples until the next look."""
        alive = [member.address for member in await self._members() if member.alive]
        answers = await asyncio.gather(*map(self._ask, alive))
        self.take(ClusterLook([node for nodes in answers for node in nodes]), topologies, now())

    async def _ask(self, address: str) -> list[NodeLook]:
        try:
            answered = await self._asked(address, Stats(None, cluster=False), _ANSWER_S)
        except TidegateError:
            return []
        return msgspec.json.decode(answered.body, type=ClusterLook).nodes

    def take(self, cluster: ClusterLook, topologies: Sequence[Topology], now: float) -> None:
        """What all nodes that answered have said; queues that are gone are forgotten."""
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
                known.look(node)
            for numbers in node.queues:
                if numbers.queue_id not in wanted:
                    continue
                # While a queue moves, both may show it: the higher epoch is right.
                other = self._queues.get(numbers.queue_id)
                if other is None:
                    self._queues[numbers.queue_id] = _Queue(numbers, node, now)
                elif numbers.epoch >= other.epoch:
                    other.look(numbers, node, now)
                else:
                    continue
                self._owners[numbers.queue_id] = node.member_id

    def numbers_of(self, queue_id: int) -> QueueLook | None:
        """What the owner of a queue has just said about it; None: no owner answered."""
        return self._queues[queue_id].numbers if queue_id in self._owners else None

    def age_of(self, queue_id: int, now: float) -> float | None:
        """How old the oldest waiting message of a queue is by now; None: never seen.

        Of a queue that nobody answers for, what waited when it was last seen waits still.
        """
        queue = self._queues.get(queue_id)
        if queue is None:
            return None
        numbers = queue.numbers
        if queue_id in self._owners or not (numbers.waiting or numbers.unacknowledged):
            return numbers.oldest_age_s
        return numbers.oldest_age_s + max(now - queue.seen_at, 0.0)

    def free_memory_bytes(self, queue_ids: Iterable[int]) -> float | None:
        """Of the nodes that own these queues the least; None: nobody does."""
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
        """A logical queue as it was seen in the last look."""
        queue_ids = [topology.queue_id, *(place.queue_id for place in topology.replicas)]
        known = [self._queues[queue_id] for queue_id in queue_ids if queue_id in self._queues]
        alias = self._queues.get(topology.queue_id)
        # Under this policy a producer is at one replica, and only the alias knows at which.
        is_elected = topology.scaling.policy is ScalingPolicy.CLIENTS
        elected = alias.numbers.members if alias is not None and is_elected else None
        owners = {self._owners[queue_id] for queue_id in queue_ids if queue_id in self._owners}
        return QueueSample(
            queue=topology.queue,
            at=now,
            replicas=[self._replica(place, elected, now) for place in topology.replicas],
            # What replicas take over from the alias or from each other is no put.
            arrived_per_s=sum(queue.put_per_s for queue in known),
            alias_waiting=0 if alias is None else alias.numbers.waiting,
            pending=pending,
            slots_free=slots_free,
            keeps_warm=keeps_warm,
            resource_load=max((self._nodes[owner].load for owner in owners), default=0.0),
            age_s=self._age_s(topology, now),
        )

    def _age_s(self, topology: Topology, now: float) -> float:
        """Since the oldest measurement; of what was never measured, for ever."""
        needed = [self._queues.get(topology.queue_id)]
        for place in topology.replicas:
            queue = self._queues.get(place.queue_id)
            # Who is known to be away, or not there yet, needs no measurement.
            if queue is not None and place.address is not None:
                needed.append(queue)
        return max(
            now - queue.seen_at if queue is not None and queue.has_rates else float("inf")
            for queue in needed
        )

    def _replica(
        self, place: ReplicaPlace, elected: Mapping[int, tuple[int, int]] | None, now: float
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
            # Who has it while its store is away still answers, and can neither take nor give.
            reachable=place.queue_id in self._owners and place.address is not None,
            waiting_consumers=_idle(numbers),
        )


def _idle(numbers: QueueLook) -> int:
    """Reads and subscriptions with credit that have nothing to do."""
    if numbers.waiting:
        return 0
    return numbers.readers_waiting + sum(
        1 for consumer in numbers.consumers if consumer.unacknowledged < consumer.prefetch
    )
