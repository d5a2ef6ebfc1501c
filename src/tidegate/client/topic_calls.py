"""The calls about topics: a message published once goes to every matching subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Unpack

from tidegate.client.checks import checked_payload
from tidegate.client.guests import Guests
from tidegate.client.options import PLAIN, PutOptions, checked_options
from tidegate.client.puts import PutCalls
from tidegate.core.errors import TopicNameNotUnique
from tidegate.core.model import QueueInfo
from tidegate.core.topic import Filter, TopicInfo, check_filter
from tidegate.wire.packets.topics import (
    CreateTopic,
    CreateTopicResponse,
    DeleteTopic,
    GetTopics,
    GetTopicsResponse,
    SubscribeTopic,
    SubscribeTopicResponse,
    UnsubscribeTopic,
)


class TopicCalls(PutCalls):
    """The part of a client that knows topics."""

    _guests: Guests

    async def create_topic(self, name: str, *, exist_ok: bool = False) -> TopicInfo:
        """Create a topic and return it.

        With `exist_ok`, an existing topic of that name is returned. Otherwise it raises
        `TopicNameNotUnique`.
        """
        try:
            answered = await self._lifeline.ask(CreateTopic(name), repeatable=exist_ok)
        except TopicNameNotUnique:
            if not exist_ok:
                raise
            return next(topic for topic in await self.topics() if topic.name == name)
        assert isinstance(answered.packet, CreateTopicResponse)
        return answered.packet.topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; the queues of its subscriptions remain."""
        await self._lifeline.ask(DeleteTopic(name), repeatable=False)

    async def topics(self) -> list[TopicInfo]:
        """Return all topics with their subscriptions."""
        packet = (await self._lifeline.ask(GetTopics())).packet
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
            answered = await self._lifeline.ask(packet)
            assert isinstance(answered.packet, SubscribeTopicResponse)
            info = answered.packet.queue
        else:
            info = await self._guests.add(packet)
        return self.note_queue(info)

    async def unsubscribe_from(self, topic: str, queue: str) -> None:
        """End a subscription; the queue remains with its messages."""
        self._guests.forget(queue)
        await self._lifeline.ask(UnsubscribeTopic(topic, queue), repeatable=False)

    def publish(
        self, topic: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        """Publish a message to all matching subscriptions, and return a future.

        Await the future: it is done once the message is on disk in all of them. Its result is the
        number of subscriptions. The options and errors are those of `put`.
        """
        outbox = self._topic_outbox(topic)
        payload = checked_payload(payload)
        special = checked_options(options)
        return outbox.add(payload) if special == PLAIN else outbox.add_special(payload, special)

    async def publish_many(
        self, topic: str, payloads: Iterable[bytes], **options: Unpack[PutOptions]
    ) -> list[int]:
        """Publish many messages with the same options; return each one's subscription count."""
        return await asyncio.gather(
            *(self.publish(topic, payload, **options) for payload in payloads)
        )
