"""Handlers of packets about clients, queues, nodes and stats.

Handlers that need the store return an awaitable, which runs beside later packets of the same
session. `CATALOGUE_HANDLERS` maps each packet type to its handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.broker.access import act_for, authenticate, prove
from tidegate.broker.batch import check_put
from tidegate.broker.handlers import (
    check_id,
    check_name,
    check_policy,
    check_put_to_queues,
    check_queue_name,
    unknown_outcome,
)
from tidegate.broker.handlers.cluster import (
    explain,
    explain_service,
    fleet,
    get_fate,
    steer_service,
)
from tidegate.broker.transactions import transact
from tidegate.core.errors import (
    ClientNameNotUnique,
    ClientNotExisting,
    InvalidValue,
    ModeForbids,
    NoActiveQueues,
    NoQueues,
    QueueNameNotUnique,
    QueueNotExisting,
    RequiredParameterMissing,
    TopicNameNotUnique,
    TopicNotExisting,
)
from tidegate.core.model import ALL_QUEUES, ClientMode, Grant, QueueInfo, Right, check_filter
from tidegate.core.topology import logical_name
from tidegate.protocol.catalogue import (
    ActFor,
    Authenticate,
    CreateQueue,
    CreateQueueResponse,
    CreateTopic,
    CreateTopicResponse,
    DeleteClient,
    DeleteTopic,
    FindClient,
    FindClientResponse,
    GetActiveQueues,
    GetActiveQueuesResponse,
    GetQueueId,
    GetQueueIdResponse,
    GetQueueName,
    GetQueueNameResponse,
    GetQueues,
    GetQueuesResponse,
    GetRights,
    GetRightsResponse,
    GetTopics,
    GetTopicsResponse,
    IdentifyClient,
    IdentifyClientResponse,
    Prove,
    Publish,
    PublishResponse,
    RegisterClient,
    RegisterClientResponse,
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
    Member,
    Stats,
    StatsResponse,
    SteerService,
)
from tidegate.protocol.connection import ReceivedPacket
from tidegate.protocol.messages import GetFate, PutToQueues, PutToQueuesResponse, Transact
from tidegate.protocol.packet import Packet, Ping, Pong, Success

if TYPE_CHECKING:
    from tidegate.broker.session import Session


# Handlers of packets about topics and subscriptions.


async def create_topic(session: Session, packet: CreateTopic, event: ReceivedPacket) -> None:
    name = check_name(packet.name, session.limits)
    store = session.context.store
    async with unknown_outcome(store):
        topic = await store.create_topic(name)
    if topic is None:
        raise TopicNameNotUnique(f"a topic named {name!r} exists")
    session.answer(CreateTopicResponse(topic), event.packet_id)


async def delete_topic(session: Session, packet: DeleteTopic, event: ReceivedPacket) -> None:
    name = check_name(packet.name, session.limits)
    store = session.context.store
    async with unknown_outcome(store):
        deleted = await store.delete_topic(name)
    if not deleted:
        raise _no_topic(name)
    session.answer(Success(), event.packet_id)


async def topics(session: Session, packet: GetTopics, event: ReceivedPacket) -> None:
    guard = session.authorizer
    found = [
        msgspec.structs.replace(
            topic, subscriptions=guard.visible(topic.subscriptions, lambda each: each.queue)
        )
        for topic in guard.visible(
            await session.context.store.list_topics(), lambda each: each.name
        )
    ]
    session.answer(GetTopicsResponse(found), event.packet_id)


async def subscribe_topic(session: Session, packet: SubscribeTopic, event: ReceivedPacket) -> None:
    store = session.context.store
    topic = check_name(packet.topic, session.limits)
    name = check_queue_name(packet.queue, session.limits)
    check_filter(packet.filter)
    if await store.find_topic(topic) is None:
        raise _no_topic(topic)
    known = await store.find_queue(None, name)
    if known is not None and not known.durable:
        raise InvalidValue(
            f"queue {name!r} is transient: what is published is stored, so a subscription is too"
        )
    # Not cancelled with the connection: a temporary queue must be noted, or it would stay forever.
    queue = await asyncio.shield(asyncio.create_task(_subscribe(session, packet)))
    if queue is None:
        if packet.durable:
            raise _no_topic(topic)
        raise QueueNameNotUnique(
            f"a queue named {name!r} exists, and one that goes with its connection must be new"
        )
    await session.parts.ownership.settle(queue.queue_id)
    session.answer(SubscribeTopicResponse(queue), event.packet_id)


async def _subscribe(session: Session, packet: SubscribeTopic) -> QueueInfo | None:
    context = session.context
    member_id = None if packet.durable else context.identity.member_id
    queue = await context.store.add_subscription(
        packet.topic, packet.queue, packet.filter, member_id
    )
    if queue is not None and not packet.durable:
        session.takes_along(queue.queue_id)
    return queue


async def unsubscribe_topic(
    session: Session, packet: UnsubscribeTopic, event: ReceivedPacket
) -> None:
    store = session.context.store
    topic = check_name(packet.topic, session.limits)
    queue = await store.find_queue(None, check_name(packet.queue, session.limits))
    if queue is None:
        raise QueueNotExisting(f"no queue named {packet.queue!r}")
    async with unknown_outcome(store):
        dropped = await store.drop_subscription(topic, queue.queue_id)
    if not dropped:
        if await store.find_topic(topic) is None:
            raise _no_topic(topic)
        raise InvalidValue(f"queue {packet.queue!r} is not subscribed to topic {topic!r}")
    session.answer(Success(), event.packet_id)


async def publish(session: Session, packet: Publish, event: ReceivedPacket) -> None:
    check_name(packet.topic, session.limits)
    check_put(packet.messages, len(event.body), session.limits)
    counts = await session.parts.publishing.publish(packet, bytes(event.body), session.client_id)
    if isinstance(counts, str):
        await session.forward_to(counts, packet, event.frame)
        return
    session.answer(PublishResponse(counts), event.packet_id)


def _no_topic(name: str) -> TopicNotExisting:
    return TopicNotExisting(f"no topic named {name!r}: create it first")


TopicHandler = Callable[["Session", Any, ReceivedPacket], Awaitable[None]]
TOPIC_HANDLERS: dict[type[Packet], TopicHandler] = {
    CreateTopic: create_topic,
    DeleteTopic: delete_topic,
    GetTopics: topics,
    SubscribeTopic: subscribe_topic,
    UnsubscribeTopic: unsubscribe_topic,
    Publish: publish,
}

# The number of steps that a node keeps of each consumer.
STEPS_MAX = 60


def ping(session: Session, packet: Ping, event: ReceivedPacket) -> None:
    session.answer(Pong(), event.packet_id)


async def register(session: Session, packet: RegisterClient, event: ReceivedPacket) -> None:
    name = check_name(packet.name, session.limits)
    client = await session.context.store.register_client(
        name, packet.mode_wanted, session.authorizer.user
    )
    if client is None:
        raise ClientNameNotUnique(f"a client named {name!r} exists: identify, or choose a name")
    session.become(client, ephemeral=packet.ephemeral)
    session.answer(RegisterClientResponse(client), event.packet_id)


async def identify(session: Session, packet: IdentifyClient, event: ReceivedPacket) -> None:
    if packet.client_id is None and packet.name is None:
        raise RequiredParameterMissing("identify by client_id or by name")
    if packet.client_id is not None:
        check_id(packet.client_id)
    if packet.name is not None:
        check_name(packet.name, session.limits)
    client = await session.context.store.find_client(
        packet.client_id, packet.name, session.authorizer.user
    )
    if client is None:
        of = f" of user {session.authorizer.user!r}" if session.authorizer.user else ""
        raise ClientNotExisting(f"no client {packet.name or packet.client_id!r}{of}")
    session.become(client, ephemeral=packet.ephemeral)
    session.answer(IdentifyClientResponse(client), event.packet_id)


async def delete_client(session: Session, packet: DeleteClient, event: ReceivedPacket) -> None:
    is_admin = session.mode is ClientMode.ADMIN and session.authorizer.is_everything
    if packet.client_id != session.client_id and not is_admin:
        raise ModeForbids("only an admin deletes other clients")
    check_id(packet.client_id)
    store = session.context.store
    async with unknown_outcome(store):
        deleted = await store.delete_client(packet.client_id)
    if not deleted:
        raise ClientNotExisting(f"no client {packet.client_id}")
    session.answer(Success(), event.packet_id)


async def find_client(session: Session, packet: FindClient, event: ReceivedPacket) -> None:
    name = check_name(packet.name, session.limits)
    client_id = await session.context.store.reserve_client(name)
    session.answer(FindClientResponse(client_id), event.packet_id)


async def create_queue(session: Session, packet: CreateQueue, event: ReceivedPacket) -> None:
    name = check_queue_name(packet.name, session.limits)
    check_policy(packet.policy, name, session.limits)
    # Not cancelled with the connection: a temporary queue must be noted, or it would stay forever.
    queue = await asyncio.shield(asyncio.create_task(_create_queue(session, name, packet)))
    if queue is None:
        raise QueueNameNotUnique(f"a queue named {name!r} exists")
    await session.parts.ownership.settle(queue.queue_id)
    session.answer(CreateQueueResponse(queue), event.packet_id)


async def _create_queue(session: Session, name: str, packet: CreateQueue) -> QueueInfo | None:
    store = session.context.store
    async with unknown_outcome(store):
        queue = await store.create_queue(name, packet.durable, packet.policy)
    if queue is not None and packet.ephemeral:
        session.takes_along(queue.queue_id)
    return queue


async def queue_by_name(session: Session, packet: GetQueueId, event: ReceivedPacket) -> None:
    name = check_name(packet.name, session.limits)
    queue = await session.context.store.find_queue(None, name)
    if queue is None:
        raise QueueNotExisting(f"no queue named {name!r}: create it first")
    session.answer(GetQueueIdResponse(queue), event.packet_id)


async def queue_by_id(session: Session, packet: GetQueueName, event: ReceivedPacket) -> None:
    check_id(packet.queue_id)
    queue = await session.context.store.find_queue(packet.queue_id, None)
    if queue is None:
        raise QueueNotExisting(f"no queue {packet.queue_id}")
    session.answer(GetQueueNameResponse(queue), event.packet_id)


async def queues(session: Session, packet: GetQueues, event: ReceivedPacket) -> None:
    listed = await session.context.store.list_queues()
    found = session.authorizer.visible(listed, lambda queue: logical_name(queue.name))
    if not found:
        raise NoQueues("there are no queues yet")
    session.answer(GetQueuesResponse(found), event.packet_id)


async def active_queues(session: Session, packet: GetActiveQueues, event: ReceivedPacket) -> None:
    stored = await session.context.store.active_queues(session.client_id)
    active: dict[int, QueueInfo] = {queue.queue_id: queue for queue in stored}
    # This node knows its own queues better, and only it knows its transient ones.
    for queue_id, replica in session.parts.ownership.replicas.items():
        if replica.info.elastic or replica.info.alias_id:
            continue  # The store sees all replicas of a logical queue
        if replica.knows_all_for(session.client_id):
            active.pop(queue_id, None)
        if replica.has_for(session.client_id):
            active[queue_id] = replica.info
    visible = session.authorizer.visible(active.values(), lambda queue: logical_name(queue.name))
    if not visible:
        raise NoActiveQueues("no queue holds a message for this client")
    found = sorted(visible, key=lambda queue: queue.name)
    session.answer(GetActiveQueuesResponse(found), event.packet_id)


async def put_to_queues(session: Session, packet: PutToQueues, event: ReceivedPacket) -> None:
    check_put_to_queues(packet, len(event.body), session.limits)
    took = await session.parts.publishing.put_to(packet, bytes(event.body), session.client_id)
    if isinstance(took, str):
        await session.forward_to(took, packet, event.frame)
        return
    session.answer(PutToQueuesResponse(took), event.packet_id)


async def stats(session: Session, packet: Stats, event: ReceivedPacket) -> None:
    if not 1 <= packet.steps <= STEPS_MAX:
        raise InvalidValue(f"between 1 and {STEPS_MAX} control steps, not {packet.steps}")
    steps = packet.steps if packet.consumers else None
    numbers = await session.parts.stats.of_cluster(
        packet.queue_id, packet.cluster, steps, with_durations=packet.durations
    )
    for node in numbers.nodes:
        node.queues = session.authorizer.visible(
            node.queues, lambda queue: logical_name(queue.name)
        )
    session.answer(StatsResponse(), event.packet_id, [msgspec.json.encode(numbers)])


def rights(session: Session, packet: GetRights, event: ReceivedPacket) -> None:
    account = session.authorizer.account
    if account is not None:
        answer = GetRightsResponse(account.name, account.grants)
    else:
        answer = GetRightsResponse("", [Grant(Right.ADMIN, ALL_QUEUES)])
    session.answer(answer, event.packet_id)


async def topologies(session: Session, packet: GetTopologies, event: ReceivedPacket) -> None:
    version, found = await session.parts.aliases.all_of_them()
    if version == packet.version:
        session.answer(GetTopologiesResponse(version, None), event.packet_id)
        return
    visible = session.authorizer.visible(found, lambda each: each.queue)
    # Only producers and consumers of a queue need its assignment slots.
    shown = [msgspec.structs.replace(each, homes=[]) for each in visible]
    session.answer(GetTopologiesResponse(version, shown), event.packet_id)


async def members(session: Session, packet: GetMembers, event: ReceivedPacket) -> None:
    found = [
        Member(member.member_id, member.name, member.address, member.alive, member.queues)
        for member in await session.context.store.members()
    ]
    session.answer(GetMembersResponse(found), event.packet_id)


CatalogueHandler = Callable[["Session", Any, ReceivedPacket], Awaitable[None] | None]
CATALOGUE_HANDLERS: dict[type[Packet], CatalogueHandler] = {
    Ping: ping,
    Authenticate: authenticate,
    Prove: prove,
    ActFor: act_for,
    RegisterClient: register,
    IdentifyClient: identify,
    DeleteClient: delete_client,
    FindClient: find_client,
    CreateQueue: create_queue,
    GetQueueId: queue_by_name,
    GetQueueName: queue_by_id,
    GetQueues: queues,
    GetActiveQueues: active_queues,
    PutToQueues: put_to_queues,
    Transact: transact,
    **TOPIC_HANDLERS,
    GetFate: get_fate,
    Stats: stats,
    GetMembers: members,
    GetRights: rights,
    GetTopologies: topologies,
    GetFleet: fleet,
    Explain: explain,
    ExplainService: explain_service,
    SteerService: steer_service,
}
