"""Packets to register, identify, find and delete clients."""

from __future__ import annotations

from tidegate.core.model import (
    ClientInfo,
    ClientMode,
    Filter,
    Grant,
    QueueInfo,
    QueuePolicy,
    Right,
    TopicInfo,
)
from tidegate.protocol.messages import PutMessages
from tidegate.protocol.packet import Answer, Claim, Request, Success


class RegisterClientResponse(Answer):
    """The new client; the connection now belongs to it."""

    method = 0x12
    client: ClientInfo


class RegisterClient(Request):
    """Create a client with a unique name."""

    method = 0x11
    answer = RegisterClientResponse
    right = None
    before_identification = True
    name: str
    mode_wanted: ClientMode = ClientMode.READ_WRITE
    # Delete the client when the connection ends.
    ephemeral: bool = False


class IdentifyClientResponse(Answer):
    """The client; the connection now belongs to it."""

    method = 0x14
    client: ClientInfo


class IdentifyClient(Request):
    """Identify as an existing client, by id or name."""

    method = 0x13
    answer = IdentifyClientResponse
    right = None
    before_identification = True
    client_id: int | None = None
    name: str | None = None
    # As in RegisterClient, for a client that reconnects before it was deleted.
    ephemeral: bool = False


class DeleteClient(Request):
    """Delete this client; in admin mode, any client."""

    method = 0x15
    answer = Success
    right = None
    client_id: int


class FindClientResponse(Answer):
    """The id of the client."""

    method = 0x18
    client_id: int


class FindClient(Request):
    """Find the id of a client by name; an unused name is reserved, so that it can be a receiver."""

    method = 0x17
    answer = FindClientResponse
    right = None
    name: str


# Packets to create, find, list, change, purge and delete queues.


def _dead_letters(queue: int | str, policy: QueuePolicy) -> list[Claim]:
    """Return the rights that a policy with a dead-letter queue needs.

    Messages move from the queue to the dead-letter queue, so the user must have `read` on the first
    and `write` on the second. Otherwise a user with `configure` alone could let messages expire
    into a queue of their own and read them there.
    """
    return [(Right.READ, queue), (Right.WRITE, policy.dead_letter)] if policy.dead_letter else []


class CreateQueueResponse(Answer):
    """The new queue."""

    method = 0x22
    queue: QueueInfo


class CreateQueue(Request):
    """Create a queue with a unique name."""

    method = 0x21
    answer = CreateQueueResponse
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
    name: str
    durable: bool = True
    policy: QueuePolicy = QueuePolicy()
    # Delete the queue when the connection ends.
    ephemeral: bool = False

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.name), *_dead_letters(self.name, self.policy)]


class DeleteQueue(Request):
    """Delete a queue and its messages."""

    method = 0x23
    answer = Success
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
    queue_id: int


class GetQueueIdResponse(Answer):
    """The queue of that name."""

    method = 0x26
    queue: QueueInfo


class GetQueueId(Request):
    """Find a queue by name."""

    method = 0x25
    answer = GetQueueIdResponse
    right = Right.SEE
    name: str

    def claims(self) -> list[Claim]:
        return [(Right.SEE, self.name)]


class GetQueueNameResponse(Answer):
    """The queue of that id."""

    method = 0x28
    queue: QueueInfo


class GetQueueName(Request):
    """Find a queue by id."""

    method = 0x27
    answer = GetQueueNameResponse
    right = Right.SEE
    queue_id: int


class GetQueuesResponse(Answer):
    """All queues."""

    method = 0x2A
    queues: list[QueueInfo]


class GetQueues(Request):
    """List all queues."""

    method = 0x29
    answer = GetQueuesResponse
    right = Right.SEE


class GetActiveQueuesResponse(Answer):
    """The queues that hold a message for the client."""

    method = 0x2C
    queues: list[QueueInfo]


class GetActiveQueues(Request):
    """List the queues that hold a message that this client could read."""

    method = 0x2B
    answer = GetActiveQueuesResponse
    right = Right.SEE


class SetPolicy(Request):
    """Change the policy of a queue."""

    method = 0x69
    answer = Success
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
    queue_id: int
    policy: QueuePolicy
    # Change it only if it equals `before`, else answer ChangedMeanwhile; `None` means in any case.
    before: QueuePolicy | None = None

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.queue_id), *_dead_letters(self.queue_id, self.policy)]


class PurgeQueueResponse(Answer):
    """The number of messages deleted."""

    method = 0x30
    count: int


class PurgeQueue(Request):
    """Delete all waiting messages of a queue."""

    method = 0x2F
    answer = PurgeQueueResponse
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
    queue_id: int


# Packets to create topics, subscribe queues to them, and publish.


class CreateTopicResponse(Answer):
    """The new topic."""

    method = 0x72
    topic: TopicInfo


class CreateTopic(Request):
    """Create a topic with a unique name; it names no queue."""

    method = 0x71
    answer = CreateTopicResponse
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
    name: str

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.name)]


class DeleteTopic(Request):
    """Delete a topic; the queues of its subscriptions remain. It names no queue."""

    method = 0x73
    answer = Success
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
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
    mode = ClientMode.READ_WRITE
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
    mode = ClientMode.READ_WRITE
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
    mode = ClientMode.READ_WRITE
    topic: str
    messages: PutMessages

    def claims(self) -> list[Claim]:
        # The users who subscribed the queues have allowed the topic to write to them.
        return [(Right.WRITE, self.topic)]


# Packets to log in with SCRAM, and to get the user's rights.


class AuthenticateResponse(Answer):
    """The challenge."""

    method = 0x1A
    message: str


class Authenticate(Request):
    """Begin a login: the first message of SCRAM-SHA-256, which names the user."""

    method = 0x19
    answer = AuthenticateResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ProveResponse(Answer):
    """The login succeeded; the signature proves that the node knows the user's keys."""

    method = 0x1C
    message: str


class Prove(Request):
    """Complete a login: the proof that the client knows the password."""

    method = 0x1B
    answer = ProveResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ActFor(Request):
    """Sent between nodes: the user of the following requests; None for a client without login."""

    method = 0x1D
    answer = Success
    right = None
    before_identification = True
    user: str | None


class GetRightsResponse(Answer):
    """The user (empty: the node requires no login) and the granted roles."""

    method = 0x6E
    user: str
    grants: list[Grant]


class GetRights(Request):
    """Get the user and its roles, for example to show only actions that are allowed."""

    method = 0x6D
    answer = GetRightsResponse
    right = None
