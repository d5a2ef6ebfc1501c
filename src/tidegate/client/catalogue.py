"""The administrative calls: queues, topics, replicas, decisions, nodes and machines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.client.connection import ClusterConnection
from tidegate.client.directory import QueueDirectory
from tidegate.client.message import Message, check_count, split_payloads
from tidegate.client.puts import ProducerPool
from tidegate.client.reads import ReadSettler
from tidegate.client.subscription import SubscriptionSet
from tidegate.core.decisions import Decision
from tidegate.core.errors import (
    ChangedMeanwhile,
    InvalidValue,
    NoActiveQueues,
    NoQueues,
    QueueNameNotUnique,
    TidegateError,
    TopicNameNotUnique,
)
from tidegate.core.machines import FleetInfo
from tidegate.core.model import Filter, Grant, QueueInfo, QueuePolicy, TopicInfo, check_filter
from tidegate.core.services import ServiceOverride
from tidegate.core.topology import MemberRole, Scaling, Topology
from tidegate.protocol.catalogue import (
    CreateQueue,
    CreateQueueResponse,
    CreateTopic,
    CreateTopicResponse,
    DeleteTopic,
    GetActiveQueues,
    GetActiveQueuesResponse,
    GetQueues,
    GetQueuesResponse,
    GetRights,
    GetRightsResponse,
    GetTopics,
    GetTopicsResponse,
    PurgeQueue,
    PurgeQueueResponse,
    SetPolicy,
    SubscribeTopic,
    SubscribeTopicResponse,
    UnsubscribeTopic,
)
from tidegate.protocol.cluster import (
    Explain,
    ExplainService,
    GetFleet,
    GetMembers,
    GetMembersResponse,
    GetTopologies,
    GetTopologiesResponse,
    GetTopology,
    GetTopologyResponse,
    Member,
    MigrateClients,
    SetOwner,
    SetScaling,
    Stats,
    SteerService,
)
from tidegate.protocol.messages import (
    AcknowledgeIds,
    AcknowledgeIdsResponse,
    GetMessages,
    GetMessagesResponse,
    GetWaitingIds,
    GetWaitingIdsResponse,
    Redrive,
    RedriveResponse,
    SetConsumerPrefetch,
)
from tidegate.telemetry.stats import ClusterStats

# Attempts of `set_policy` while other clients change the same policy.
_TRIES_MAX = 8


class WaitingIds(NamedTuple):
    """The ids of waiting messages, as ranges [first, last]."""

    ranges: list[tuple[int, int]]
    # All ids that the queue has assigned so far are lower than this one.
    below_id: int


class AdministrativeCalls:
    """The calls that create, find, inspect, change and delete queues, topics and the rest.

    Each call is one request, or a few. None of them needs a producer or a consumer.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        queues: QueueDirectory,
        temporary_queues: TemporaryQueues,
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._temporary_queues = temporary_queues

    # Queues

    async def queue_id(self, queue: str | int) -> int:
        """Return the id of a queue by name; an id is returned unchanged."""
        return await self._queues.id_of(queue)

    async def queue(self, queue: str | int) -> QueueInfo:
        """Return a queue by name or id; raise `QueueNotExisting` if there is none."""
        return await self._queues.find(queue)

    def note_queue(self, info: QueueInfo) -> QueueInfo:
        """Cache the id of a queue, and whether it is a logical queue."""
        return self._queues.note(info)

    def forget_queue_id(self, queue: str) -> None:
        """Look the queue up again when it is next used."""
        self._queues.forget(queue)

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
        ephemeral: bool = False,
    ) -> QueueInfo:
        """Create a queue and return it.

        Args:
            name: a unique name.
            durable: `False` keeps messages in the owner's memory only; a restart loses them.
            exist_ok: return an existing queue of that name, unchanged, and do not raise.
            policy: retries, dead letters and limits; `None` means the defaults of `QueuePolicy`.
            ephemeral: the node deletes the queue when this connection ends for any reason.

        Raises:
            QueueNameNotUnique: the name is taken and `exist_ok` is false.
            IoFailure: the answer was lost and `exist_ok` is false; the queue may exist.
        """
        packet = CreateQueue(name, durable, policy or QueuePolicy(), ephemeral)
        try:
            answered = await self._connection.request(packet, repeatable=exist_ok)
        except QueueNameNotUnique:
            if not exist_ok:
                raise
            return await self.queue(name)
        assert isinstance(answered.packet, CreateQueueResponse)
        return self._queues.note(answered.packet.queue)

    async def queues(self) -> list[QueueInfo]:
        """Return all queues; an empty list if there are none."""
        try:
            packet = (await self._connection.request(GetQueues())).packet
        except NoQueues:
            return []
        assert isinstance(packet, GetQueuesResponse)
        return packet.queues

    async def active_queues(self) -> list[QueueInfo]:
        """Return the queues that hold a message for this client."""
        try:
            packet = (await self._connection.request(GetActiveQueues())).packet
        except NoActiveQueues:
            return []
        assert isinstance(packet, GetActiveQueuesResponse)
        return packet.queues

    async def set_policy(
        self, queue: str | int, *, before: QueuePolicy | None = None, **changes: Any
    ) -> QueuePolicy:
        """Change fields of a queue's `QueuePolicy` and return the new policy.

        Fields that are not named keep their values, even if another client changes them meanwhile.

        Args:
            before: the policy that the caller has seen. If the queue's policy differs from it, the
                call changes nothing and raises `ChangedMeanwhile`. `None` retries on the current
                policy.
            changes: fields of `QueuePolicy` by name. An unknown field or a wrong type raises
                `InvalidValue`.
        """
        for left in reversed(range(_TRIES_MAX)):
            info = await self.queue(queue)
            known = before or info.policy
            policy = _changed(known, changes)
            try:
                await self._connection.request(SetPolicy(info.queue_id, policy, known))
                return policy
            except ChangedMeanwhile:
                if before is not None or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def pause(self, queue: str | int) -> None:
        """Stop deliveries from a queue until it is resumed; puts are still accepted."""
        await self.set_policy(queue, paused=True)

    async def resume(self, queue: str | int) -> None:
        await self.set_policy(queue, paused=False)

    async def redrive(
        self,
        queue: str | int,
        *,
        to: str | None = None,
        message_ids: Iterable[int] | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> int:
        """Send dead letters back to the queues they came from, and return their number.

        Args:
            queue: the dead-letter queue.
            to: send them to this queue, and not to their own ones.
            message_ids: only these messages; `None` means all.
            reason: only messages with this reason: "deliveries", "rejected", "expired", "overflow".
            limit: at most this many; `None` means no limit.
        """
        packet = Redrive(
            await self._queues.id_of(queue),
            to,
            None if message_ids is None else list(message_ids),
            reason,
            limit,
        )
        answered = await self._connection.request(packet, repeatable=False)
        assert isinstance(answered.packet, RedriveResponse)
        return answered.packet.count

    async def browse(
        self,
        queue: str | int,
        *,
        limit: int = 100,
        first_id: int = 0,
        last_id: int | None = None,
    ) -> list[Message]:
        """Return waiting messages in the order of their ids, without taking them.

        Args:
            limit: the most messages to return. A shorter list means that there are no more.
            first_id, last_id: only ids from `first_id` to `last_id`; `None` means no upper limit.

        Browsed messages are not held, so they cannot be settled.
        """
        check_count("limit", limit)
        queue_id = await self._queues.id_of(queue)
        holder = ReadSettler(self._connection, str(queue), 0)
        found: list[Message] = []
        while True:
            packet = GetMessages(queue_id, limit - len(found), first_id, last_id)
            answered = await self._connection.request(packet)
            page = answered.packet
            assert isinstance(page, GetMessagesResponse)
            batches = split_payloads(page.runs, answered.body, holder, self._connection.generation)
            found += [message for batch in batches for message in batch]
            if page.more_from is None or len(found) >= limit:
                return found
            first_id = page.more_from

    async def waiting_ids(
        self, queue: str | int, *, limit: int, last_id: int | None = None
    ) -> WaitingIds:
        """Return the ids of waiting messages without a receiver, the lowest ids first.

        A paused queue returns none. The list may be incomplete even within `limit`; call again for
        the rest. An empty list means that no such message waits.
        """
        check_count("limit", limit)
        packet = GetWaitingIds(await self._queues.id_of(queue), limit, last_id)
        answered = await self._connection.request(packet)
        assert isinstance(answered.packet, GetWaitingIdsResponse)
        return WaitingIds(answered.packet.ranges, answered.packet.below_id)

    async def ack_ids(self, queue: str | int, ranges: Iterable[tuple[int, int]]) -> int:
        """Acknowledge waiting messages by id; return how many of them there were.

        Each range is [first, last]. The call is for applications that browse messages and process
        them. Messages that a consumer holds are not affected.
        """
        packet = AcknowledgeIds(await self._queues.id_of(queue), list(ranges))
        # Repeatable: ids are never assigned twice, so after a lost answer the messages are simply
        # gone.
        answered = await self._connection.request(packet)
        assert isinstance(answered.packet, AcknowledgeIdsResponse)
        return answered.packet.count

    async def purge(self, queue: str | int) -> int:
        """Delete all waiting messages of a queue; return their number."""
        queue_id = await self._queues.id_of(queue)
        packet = (await self._connection.request(PurgeQueue(queue_id))).packet
        assert isinstance(packet, PurgeQueueResponse)
        return packet.count

    # Stats and control

    async def stats(
        self, queue: str | int | None = None, *, steps: int = 1, brief: bool = False
    ) -> ClusterStats:
        """Return live stats of all nodes, or of one queue.

        Args:
            queue: name or id; `None` means all queues.
            steps: how many of the latest control steps to include for each consumer whose prefetch
                is controlled.
            brief: leave out consumers and durations. Use it to poll all queues, since it is about
                ten times cheaper for the node.
        """
        queue_id = None if queue is None else await self._queues.id_of(queue)
        asked = Stats(queue_id, steps=steps, consumers=not brief, durations=not brief)
        answered = await self._connection.request(asked)
        return msgspec.json.decode(answered.body, type=ClusterStats)

    async def node_stats(self, *, steps: int | None = 1, durations: bool = True) -> ClusterStats:
        """Return live stats of the connected node only.

        `steps` counts control steps per consumer as in `stats`; `None` leaves out the consumers.
        """
        asked = Stats(None, cluster=False, consumers=False, durations=durations)
        if steps is not None:
            asked = Stats(None, cluster=False, steps=steps, durations=durations)
        answered = await self._connection.request(asked)
        return msgspec.json.decode(answered.body, type=ClusterStats)

    async def rights(self) -> tuple[str, list[Grant]]:
        """Return the user and the granted roles; the user is empty if no login is needed."""
        packet = (await self._connection.request(GetRights())).packet
        assert isinstance(packet, GetRightsResponse)
        return packet.user, packet.grants

    async def members(self) -> list[Member]:
        """Return the nodes of the cluster."""
        packet = (await self._connection.request(GetMembers())).packet
        assert isinstance(packet, GetMembersResponse)
        return packet.members

    async def set_consumer_prefetch(
        self,
        queue: str | int,
        client_id: int,
        consumer: int,
        prefetch: int,
        *,
        trial: bool = False,
    ) -> None:
        """Set the prefetch of another client's consumer; needs admin mode.

        With `trial`, the value is part of an experiment. The experiment ends when the prefetch is
        set to 0 or when this connection ends. Then the consumer gets the prefetch that it asked
        for. A consumer has at most one experiment at a time; a second one raises `InvalidValue`.
        """
        queue_id = await self._queues.id_of(queue)
        await self._connection.request(
            SetConsumerPrefetch(queue_id, client_id, consumer, prefetch, trial)
        )

    async def set_owner(self, queue: str | int, member_id: int) -> None:
        """Move a queue to another node; needs admin mode."""
        await self._connection.request(SetOwner(await self._queues.id_of(queue), member_id))

    # Logical queues, decisions and machines

    async def topology(self, queue: str | int) -> Topology:
        """Return the replicas of a logical queue with their states, shares and addresses."""
        answered = await self._connection.request(GetTopology(await self._queues.id_of(queue)))
        assert isinstance(answered.packet, GetTopologyResponse)
        return answered.packet.topology

    async def topologies(self, version: int = -1) -> tuple[int, list[Topology] | None]:
        """Return the current version and the topologies of all logical queues, without assignments.

        If nothing has changed since `version`, the topologies are `None`. The default -1 always
        returns them.
        """
        packet = (await self._connection.request(GetTopologies(version))).packet
        assert isinstance(packet, GetTopologiesResponse)
        return packet.version, packet.topologies

    async def set_scaling(
        self,
        queue: str | int,
        scaling: Scaling | None,
        *,
        before: Scaling | UnsetType | None = UNSET,
    ) -> None:
        """Make a queue a logical queue with this scaling, or change its scaling.

        Args:
            scaling: `None` turns the queue into a plain queue, which must have no replicas.
            before: the scaling that the caller has seen; `None` means that the queue was plain. If
                the queue's scaling differs, the call changes nothing and raises `ChangedMeanwhile`.
                Without this argument the change is unconditional.
        """
        queue_id = await self._queues.id_of(queue)
        if before is UNSET:
            await self._connection.request(SetScaling(queue_id, scaling))
        else:
            await self._connection.request(SetScaling(queue_id, scaling, True, before))
        # Refresh the cached queue, which may have become plain or logical.
        await self.queue(queue_id)

    async def migrate(
        self, queue: str | int, role: MemberRole, source_id: int, target_id: int, count: int = 1
    ) -> None:
        """Move `count` clients from one replica to another, the least busy first; needs admin mode.

        `role` selects producers or consumers. `source_id` and `target_id` are queue ids of
        replicas.
        """
        queue_id = await self._queues.id_of(queue)
        await self._connection.request(MigrateClients(queue_id, role, source_id, target_id, count))

    async def explain(self, queue: str | int | None = None, *, count: int = 20) -> list[Decision]:
        """Return recent decisions with their reasons, the newest first.

        `queue=None` returns decisions about machines.
        """
        queue_id = None if queue is None else await self._queues.id_of(queue)
        answered = await self._connection.request(Explain(queue_id, count))
        return _decisions(answered.body)

    async def explain_service(self, service: str, *, count: int = 20) -> list[Decision]:
        """Return recent decisions about an HTTP service with their reasons, the newest first."""
        return _decisions((await self._connection.request(ExplainService(service, count))).body)

    async def steer_service(
        self, service: str, by_hand: ServiceOverride, *, before: ServiceOverride
    ) -> None:
        """Set the override of an HTTP service, which takes precedence over its scaling law.

        `before` is the override that the caller has seen. If it has changed since, the call changes
        nothing and raises `ChangedMeanwhile`.
        """
        await self._connection.request(SteerService(service, by_hand, before))

    async def fleet(self) -> FleetInfo:
        """Return the leader, the machines, their slots, and the number of warm machines."""
        answered = await self._connection.request(GetFleet())
        return msgspec.json.decode(answered.body, type=FleetInfo)

    # Topics: a message published once goes to every matching subscription

    async def create_topic(self, name: str, *, exist_ok: bool = False) -> TopicInfo:
        """Create a topic and return it.

        With `exist_ok`, an existing topic of that name is returned. Otherwise it raises
        `TopicNameNotUnique`.
        """
        try:
            answered = await self._connection.request(CreateTopic(name), repeatable=exist_ok)
        except TopicNameNotUnique:
            if not exist_ok:
                raise
            return next(topic for topic in await self.topics() if topic.name == name)
        assert isinstance(answered.packet, CreateTopicResponse)
        return answered.packet.topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; the queues of its subscriptions remain."""
        await self._connection.request(DeleteTopic(name), repeatable=False)

    async def topics(self) -> list[TopicInfo]:
        """Return all topics with their subscriptions."""
        packet = (await self._connection.request(GetTopics())).packet
        assert isinstance(packet, GetTopicsResponse)
        return packet.topics

    async def subscribe_to(
        self,
        topic: str,
        queue: str,
        *,
        filter: Filter | None = None,  # noqa: A002
        durable: bool = True,
    ) -> QueueInfo:
        """Subscribe a queue to a topic, and return the queue.

        The queue receives messages that are published from now on. If no queue of that name exists,
        it is created.

        Args:
            filter: headers that a message must have, such as `{"region": "eu", "kind": ["a",
                "b"]}`. A list means any of its values. `None` means every message.
            durable: `False` creates a temporary queue, whose name must be new. The node deletes it
                when this connection ends. After a reconnect the client creates it again; messages
                that were published meanwhile are lost.
        """
        check_filter(filter)
        packet = SubscribeTopic(topic, queue, filter, durable)
        if durable:
            answered = await self._connection.request(packet)
            assert isinstance(answered.packet, SubscribeTopicResponse)
            info = answered.packet.queue
        else:
            info = await self._temporary_queues.add(packet)
        return self._queues.note(info)

    async def unsubscribe_from(self, topic: str, queue: str) -> None:
        """End a subscription; the queue remains with its messages."""
        self._temporary_queues.remove(queue)
        await self._connection.request(UnsubscribeTopic(topic, queue), repeatable=False)


def _changed(policy: QueuePolicy, changes: dict[str, Any]) -> QueuePolicy:
    try:
        changed = msgspec.structs.replace(policy, **changes)
        # `replace` checks no types. A round trip through builtins finds a wrong type here, not at
        # the node.
        return msgspec.convert(msgspec.to_builtins(changed), QueuePolicy)
    except TypeError as failure:
        known = ", ".join(QueuePolicy.__struct_fields__)
        raise InvalidValue(f"{failure}; a policy has {known}") from None
    except msgspec.ValidationError as failure:
        raise InvalidValue(f"a policy's {failure}") from None


def _decisions(body: bytes | memoryview) -> list[Decision]:
    return [msgspec.json.decode(line, type=Decision) for line in bytes(body).splitlines()]


# Temporary queues: subscriptions to topics that live as long as a transport.
#
# The node deletes these queues with their messages when the transport ends. After a reconnect the
# client creates them again. They then receive only messages that are published from that time on.


_BACKOFF_S = 0.1


class TemporaryQueues:
    """The temporary queues of one client."""

    def __init__(
        self,
        connection: ClusterConnection,
        queues: QueueDirectory,
        producers: ProducerPool,
        subscriptions: SubscriptionSet,
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._producers = producers
        self._subscriptions = subscriptions
        self._packets: dict[str, SubscribeTopic] = {}

    async def add(self, packet: SubscribeTopic) -> QueueInfo:
        """Create a temporary queue, now and after every reconnect."""
        answered = await self._connection.request(packet, repeatable=False)
        assert isinstance(answered.packet, SubscribeTopicResponse)
        self._packets[packet.queue] = packet
        return answered.packet.queue

    def __contains__(self, queue: object) -> bool:
        return queue in self._packets

    def remove(self, queue: str) -> None:
        self._packets.pop(queue, None)

    def resume(self) -> None:
        """Create all temporary queues again after a reconnect."""
        for packet in self._packets.values():
            self._connection.spawn(self._resubscribe(packet))

    async def _resubscribe(self, packet: SubscribeTopic) -> None:
        generation = self._connection.generation
        deadline = asyncio.get_running_loop().time() + self._connection.reconnect_s
        while generation == self._connection.generation:
            try:
                answered = await self._connection.request(packet, repeatable=False)
            except QueueNameNotUnique as error:
                # The node may not yet have noticed the end of the former transport, and still have
                # the queue.
                if asyncio.get_running_loop().time() > deadline:
                    self._lost(packet.queue, error)
                    return
                await asyncio.sleep(_BACKOFF_S)
            except TidegateError as error:
                if generation == self._connection.generation:
                    self._lost(packet.queue, error)
                return
            else:
                assert isinstance(answered.packet, SubscribeTopicResponse)
                self._created_again(answered.packet.queue)
                return

    def _created_again(self, queue: QueueInfo) -> None:
        self._queues.note(queue)
        self._producers.forget(queue.name)
        self._subscriptions.resubscribe_to(queue)

    def _lost(self, queue: str, error: TidegateError) -> None:
        """Fail the subscriptions of a queue that could not be created again."""
        self.remove(queue)
        self._subscriptions.fail(error, queue)
