"""Handlers of packets about topics and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.core.errors import (
    InvalidValue,
    QueueNameNotUnique,
    QueueNotExisting,
    TopicNameNotUnique,
    TopicNotExisting,
)
from tidegate.core.topic import check_filter
from tidegate.node.checks import check_name, check_put, check_queue_name
from tidegate.node.unknown_outcome import unknown_outcome
from tidegate.wire.connection import Received
from tidegate.wire.packet import Packet, Success
from tidegate.wire.packets.topics import (
    CreateTopic,
    CreateTopicResponse,
    DeleteTopic,
    GetTopics,
    GetTopicsResponse,
    Publish,
    PublishResponse,
    SubscribeTopic,
    SubscribeTopicResponse,
    UnsubscribeTopic,
)

if TYPE_CHECKING:
    from tidegate.core.model import QueueInfo
    from tidegate.node.session import Session


async def create_topic(session: Session, packet: CreateTopic, event: Received) -> None:
    name = check_name(packet.name, session.limits)
    store = session.node.store
    async with unknown_outcome(store):
        topic = await store.create_topic(name)
    if topic is None:
        raise TopicNameNotUnique(f"a topic named {name!r} exists")
    session.answer(CreateTopicResponse(topic), event.packet_id)


async def delete_topic(session: Session, packet: DeleteTopic, event: Received) -> None:
    name = check_name(packet.name, session.limits)
    store = session.node.store
    async with unknown_outcome(store):
        deleted = await store.delete_topic(name)
    if not deleted:
        raise _no_topic(name)
    session.answer(Success(), event.packet_id)


async def topics(session: Session, packet: GetTopics, event: Received) -> None:
    guard = session.guard
    found = [
        msgspec.structs.replace(
            topic, subscriptions=guard.visible(topic.subscriptions, lambda each: each.queue)
        )
        for topic in guard.visible(await session.node.store.list_topics(), lambda each: each.name)
    ]
    session.answer(GetTopicsResponse(found), event.packet_id)


async def subscribe_topic(session: Session, packet: SubscribeTopic, event: Received) -> None:
    store = session.node.store
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
    await session.node.ownership.settle(queue.queue_id)
    session.answer(SubscribeTopicResponse(queue), event.packet_id)


async def _subscribe(session: Session, packet: SubscribeTopic) -> QueueInfo | None:
    node = session.node
    member_id = None if packet.durable else node.member_id
    queue = await node.store.add_subscription(packet.topic, packet.queue, packet.filter, member_id)
    if queue is not None and not packet.durable:
        session.takes_along(queue.queue_id)
    return queue


async def unsubscribe_topic(session: Session, packet: UnsubscribeTopic, event: Received) -> None:
    store = session.node.store
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


async def publish(session: Session, packet: Publish, event: Received) -> None:
    check_name(packet.topic, session.limits)
    check_put(packet.messages, len(event.body), session.limits)
    counts = await session.node.publishing.publish(packet, bytes(event.body), session.client_id)
    if isinstance(counts, str):
        await session.forward_to(counts, packet, event.frame)
        return
    session.answer(PublishResponse(counts), event.packet_id)


def _no_topic(name: str) -> TopicNotExisting:
    return TopicNotExisting(f"no topic named {name!r}: create it first")


TopicVerb = Callable[["Session", Any, Received], Awaitable[None]]
TOPIC_VERBS: dict[type[Packet], TopicVerb] = {
    CreateTopic: create_topic,
    DeleteTopic: delete_topic,
    GetTopics: topics,
    SubscribeTopic: subscribe_topic,
    UnsubscribeTopic: unsubscribe_topic,
    Publish: publish,
}
