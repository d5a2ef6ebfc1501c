"""Puts of the same messages into several queues, all or none: queue lists and topics.

The subscriptions of a topic are read for each batch: a queue that was subscribed before a put gets
it. All target queues share one stored payload. Messages that a subscription does not select are
stored as done in its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.errors import (
    InvalidValue,
    QueueNotExisting,
    TidegateError,
    TopicNotExisting,
    Unavailable,
)
from tidegate.core.topic import Filter, SubscriptionInfo, matches, ranges_of, unmatched
from tidegate.node.batch import Batch, build_segments
from tidegate.node.joint_commit import JointCommit
from tidegate.node.meeting import Meeting, insist
from tidegate.node.once import OnceEach
from tidegate.node.replica import Replica
from tidegate.wire.packets.puts import PutMessages, PutToQueues
from tidegate.wire.packets.topics import Publish

if TYPE_CHECKING:
    from tidegate.node.server import Node


class Publishing:
    """Publishes to several queues of a node; equal requests share one result."""

    def __init__(self, node: Node, meeting: Meeting) -> None:
        self._node = node
        self._meeting = meeting
        self._once: OnceEach[list[int] | str] = OnceEach()

    async def close(self) -> None:
        await self._once.close()

    # Queue lists

    async def put_to(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int] | str:
        """Return the queues that took the message, or the address of the node to ask."""
        key = (packet.producer, packet.batch)
        return await self._once.run(
            key, lambda: insist(lambda: self._put_to(packet, payload, sender))
        )

    async def _put_to(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int] | str:
        elsewhere = await self._meeting.coordinator(set(packet.queue_ids))
        if elsewhere is not None:
            return elsewhere
        key = (packet.producer, packet.batch)
        needs = dict.fromkeys(packet.queue_ids, (1, len(payload)))
        replicas = await self._meeting.gather(needs, key, partial=packet.partial)
        messages = PutMessages(
            0,
            packet.producer,
            packet.batch,
            [len(payload)],
            [packet.priority],
            None if packet.receiver is None else [packet.receiver],
            None if packet.context is None else [packet.context],
            None if packet.attributes is None else [packet.attributes],
        )
        # A repeated request: queues that have the message must not get it twice.
        new = [replica for replica in replicas.values() if not replica.intake.knows(*key)]
        if packet.partial:
            for replica in new:
                try:
                    await self._store(messages, payload, sender, {replica: None})
                except TidegateError:
                    del replicas[replica.info.queue_id]
        else:
            if len({replica.info.durable for replica in replicas.values()}) > 1:
                raise InvalidValue("all or none cannot span durable and transient queues")
            await self._store(messages, payload, sender, dict.fromkeys(new))
        return list(replicas)

    # Topics

    async def publish(self, packet: Publish, body: bytes, sender: int) -> list[int] | str:
        """Return how many subscriptions got each message, or the address of the node to ask."""
        key = (packet.messages.producer, packet.messages.batch)
        return await self._once.run(
            key, lambda: insist(lambda: self._publish(packet, body, sender))
        )

    async def _publish(self, packet: Publish, body: bytes, sender: int) -> list[int] | str:
        messages = packet.messages
        topic = await self._node.store.find_topic(packet.topic)
        if topic is None:
            raise TopicNotExisting(f"no topic named {packet.topic!r}: create it first")
        subscriptions = _wanting(messages, topic.subscriptions)
        elsewhere = await self._meeting.coordinator({each.queue_id for each in subscriptions})
        if elsewhere is not None:
            return elsewhere
        key = (messages.producer, messages.batch)
        need = (len(messages.lengths), len(body))
        try:
            replicas = await self._meeting.gather(
                {each.queue_id: need for each in subscriptions}, key
            )
        except QueueNotExisting:
            raise Unavailable("a subscription ended meanwhile: try again") from None
        # All or none: if one queue has the batch, the others have it or were subscribed later.
        if not any(replica.intake.knows(*key) for replica in replicas.values()):
            filters = {replicas[each.queue_id]: each.filter for each in subscriptions}
            await self._store(messages, body, sender, filters)
        return _counts(messages, subscriptions)

    async def _store(
        self,
        messages: PutMessages,
        body: bytes,
        sender: int,
        filters: dict[Replica, Filter | None],
    ) -> None:
        """Store messages in all queues of `filters` in one transaction, the payload once."""
        if not filters:
            return
        now = self._node.clock.wall()
        batch = Batch(messages, body, sender, lambda *_: None, lambda _: None)
        batch.stamp(now)
        commit = JointCommit(messages.producer, messages.batch)
        seen: dict[Replica, set[str]] = {replica: set() for replica in filters}
        try:
            for builder in build_segments([batch]):
                columns = builder.build(0, 0, now)
                # One object for all queues
                columns.payload = bytes(columns.payload)
                builder.release()
                takers = []
                for replica, header_filter in filters.items():
                    left_out = unmatched(header_filter, columns.attributes, columns.count)
                    left_out |= replica.intake.dedup.duplicates(columns.attributes, seen[replica])
                    if len(left_out) < columns.count:
                        takers.append((replica, ranges_of(left_out)))
                commit.publish(columns, takers)
        except BaseException:
            commit.give_up()
            raise
        await commit.store(self._node.store)


def _wanting(
    messages: PutMessages, subscriptions: list[SubscriptionInfo]
) -> list[SubscriptionInfo]:
    """Return the subscriptions that select at least one message."""
    attributes = messages.attributes or [None]
    return [
        each
        for each in subscriptions
        if not each.filter or any(matches(each.filter, one) for one in attributes)
    ]


def _counts(messages: PutMessages, subscriptions: list[SubscriptionInfo]) -> list[int]:
    """Return for each message how many subscriptions select it."""
    unfiltered = sum(not each.filter for each in subscriptions)
    filters = [each.filter for each in subscriptions if each.filter]
    if not filters or messages.attributes is None:
        return [unfiltered] * len(messages.lengths)
    return [
        unfiltered + sum(matches(each, attributes) for each in filters)
        for attributes in messages.attributes
    ]
