"""Packets to create topics, subscribe queues to them, and publish."""

from __future__ import annotations

from tidegate.core.model import Mode, QueueInfo
from tidegate.core.topic import Filter, TopicInfo
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request, Success
from tidegate.wire.packets.puts import PutMessages


class CreateTopicResponse(Answer):
    """The new topic."""

    method = 0x72
    topic: TopicInfo


class CreateTopic(Request):
    """Create a topic with a unique name; it names no queue."""

    method = 0x71
    answer = CreateTopicResponse
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    name: str

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.name)]


class DeleteTopic(Request):
    """Delete a topic; the queues of its subscriptions remain. It names no queue."""

    method = 0x73
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    name: str

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.name)]


class GetTopicsResponse(Answer):
    """All topics with their subscriptions."""

    method = 0x76
    topics: list[TopicInfo]


class GetTopics(Request):
    """List all topics; the answer names every subscribed queue."""

    method = 0x75
    answer = GetTopicsResponse
    right = Right.SEE


class SubscribeTopicResponse(Answer):
    """The queue, which receives messages that are published from now on."""

    method = 0x78
    queue: QueueInfo


class SubscribeTopic(Request):
    """Subscribe a queue to messages of a topic that match the filter.

    The queue is named by name, and created if there is none. Without `durable` the name must be
    new, and the queue is deleted when this connection ends.
    """

    method = 0x77
    answer = SubscribeTopicResponse
    right = Right.READ
    mode = Mode.READ_WRITE
    topic: str
    queue: str
    filter: Filter | None = None
    durable: bool = True

    def claims(self) -> list[Claim]:
        # Publishers will write to the queue without a right on it, so only a user with `write` may
        # allow it.
        return [(Right.READ, self.topic), (Right.CONFIGURE, self.queue), (Right.WRITE, self.queue)]


class UnsubscribeTopic(Request):
    """End a subscription; its queue, which is named by name, remains with its messages."""

    method = 0x79
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    topic: str
    queue: str

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.queue), (Right.SEE, self.topic)]


class PublishResponse(Answer):
    """The messages are on disk: the number of subscriptions per message."""

    method = 0x7C
    counts: list[int]


class Publish(Request):
    """Put a batch into all matching subscriptions of a topic, in one transaction.

    It names no queue: a user with `write` on the topic may write to its subscriptions. The queue
    and `after` of `messages` are ignored. Its producer and batch identify it, so a resend is stored
    once.
    """

    method = 0x7B
    answer = PublishResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    topic: str
    messages: PutMessages

    def claims(self) -> list[Claim]:
        # The users who subscribed the queues have allowed the topic to write to them.
        return [(Right.WRITE, self.topic)]
