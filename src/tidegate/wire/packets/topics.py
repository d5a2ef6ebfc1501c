"""Packets about topics: to make them, to subscribe queues to them, to publish."""

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
    """Create a topic of a unique name; it names no queue."""

    method = 0x71
    answer = CreateTopicResponse
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    name: str

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.name)]


class DeleteTopic(Request):
    """Delete a topic; the queues that were subscribed to it stay. It names no queue."""

    method = 0x73
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    name: str

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.name)]


class GetTopicsResponse(Answer):
    """All topics, with their subscriptions."""

    method = 0x76
    topics: list[TopicInfo]


class GetTopics(Request):
    """List all topics; the answer names every subscribed queue."""

    method = 0x75
    answer = GetTopicsResponse
    right = Right.SEE


class SubscribeTopicResponse(Answer):
    """The queue that gets what is published from now on."""

    method = 0x78
    queue: QueueInfo


class SubscribeTopic(Request):
    """Let a queue have what is published to a topic and matches the filter.

    It names the queue `queue`, by name, and makes it if there is none. Without `durable` the queue
    must be new, and is deleted when this connection ends.
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
        # Whoever publishes writes to the queue from now on: only who may can let them.
        return [(Right.READ, self.topic), (Right.CONFIGURE, self.queue), (Right.WRITE, self.queue)]


class UnsubscribeTopic(Request):
    """End a subscription; its queue, which it names by name, stays with what is in it."""

    method = 0x79
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    topic: str
    queue: str

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.queue), (Right.SEE, self.topic)]


class PublishResponse(Answer):
    """Stored and on disk: how many subscriptions got each message."""

    method = 0x7C
    counts: list[int]


class Publish(Request):
    """Put a batch once, for every subscription of a topic that matches, in one transaction.

    It names no queue: who may write to the topic may write to its subscriptions. The queue and the
    `after` of `messages` count for nothing; its producer and batch make a resend harmless.
    """

    method = 0x7B
    answer = PublishResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    topic: str
    messages: PutMessages

    def claims(self) -> list[Claim]:
        # Its subscriptions are queues of others, who have let the topic write there.
        return [(Right.WRITE, self.topic)]
