"""The same messages into several queues, all or none: puts to a list of queues, and topics.

A topic's subscriptions are looked up for each batch, so who subscribed before gets it. What is not
for a subscription is done from the start there: all share the batch's payload as it is.
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
    """Puts to several queues of a node."""

    def __init__(self, node: Node, meeting: Meeting) -> None:
        self._node = node
        self._meeting = meeting
        self._once: OnceEach[list[int] | str] = OnceEach()

    async def close(self) -> None:
        await self._once.close()

    # To a list of queues

    async def put_to(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int] | str:
        """The queues that took the message; or the address of the node that should be asked."""
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
        # A resend after a lost answer: those that have it need no second one.
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

    # To a topic

    async def publish(self, packet: Publish, body: bytes, sender: int) -> list[int] | str:
        """How many subscriptions got each message; or the address of the node to be asked."""
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
        # All or none: if one of them has it, the others do, or came later.
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
        """One transaction, in which each payload is stored once."""
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
                # One object, whoever holds it.
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
    """Those for which at least one message is."""
    attributes = messages.attributes or [None]
    return [
        each
        for each in subscriptions
        if not each.filter or any(matches(each.filter, one) for one in attributes)
    ]


def _counts(messages: PutMessages, subscriptions: list[SubscriptionInfo]) -> list[int]:
    """How many subscriptions each message is for."""
    unfiltered = sum(not each.filter for each in subscriptions)
    filters = [each.filter for each in subscriptions if each.filter]
    if not filters or messages.attributes is None:
        return [unfiltered] * len(messages.lengths)
    return [
        unfiltered + sum(matches(each, attributes) for each in filters)
        for attributes in messages.attributes
    ]
