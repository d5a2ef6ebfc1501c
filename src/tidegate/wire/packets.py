"""Every packet, once: its method id, its fields, what answers it, who may send it.

Telesto's ids (its table 3.6) are kept where the method exists. Its rule, odd from
client to node and even from node to client, answer = request + 1, is kept too, so
the ids where Telesto's own table breaks the rule differ: Success 0x03 → 0x04,
Error 0x05 → 0x06, ReadMessage 0x32 → 0x33, its response 0x33 → 0x34, ReadResponse
0x34 → 0x35. The reference in docs/wire-protocol.md is generated from this file.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tidegate.core.model import Attributes, ClientInfo, Mode, Order, QueueInfo, QueuePolicy
from tidegate.core.topic import Filter, TopicInfo
from tidegate.core.users import Right

Claim = tuple[Right, int | str]


class Packet(msgspec.Struct, array_like=True):
    """A packet's metadata; message payloads travel in the frame's body."""

    method: ClassVar[int] = 0


class Request(Packet):
    """From client to node."""

    answer: ClassVar[type[Packet]]
    # Before identification only ping, register and identify answer (Telesto §4.1.2).
    before_identification: ClassVar[bool] = False
    # Of these, ping and the login itself come before it.
    before_login: ClassVar[bool] = False
    mode: ClassVar[Mode] = Mode.READ_ONLY
    # What the user needs on the queue that the packet names; None: it is about no queue. Without
    # a default, so that a new packet is of no use until it says.
    right: ClassVar[Right | None]

    def claims(self) -> list[Claim]:
        """Every queue that it names, by id or by name, with what the user needs there."""
        queue_id: int | None = getattr(self, "queue_id", None)
        return [] if queue_id is None or self.right is None else [(self.right, queue_id)]


class Answer(Packet):
    """From node to client, repeating the packet id of the request."""


class Push(Packet):
    """From node to client, unasked; packet id 0."""


# General


class Pong(Answer):
    """The node is there."""

    method = 0x02


class Ping(Request):
    """Is the node there? Also the client's heartbeat."""

    method = 0x01
    answer = Pong
    before_login = True
    right = None
    before_identification = True


class Success(Answer):
    """It is done, and there is nothing to say about it."""

    method = 0x04


class Error(Answer):
    """It was not done; code and sentence say why."""

    method = 0x06
    code: int
    text: str


# Login, as in access/scram.py


class AuthenticateResponse(Answer):
    """The challenge."""

    method = 0x1A
    message: str


class Authenticate(Request):
    """Begin to log in: SCRAM-SHA-256's first message, which names the user."""

    method = 0x19
    answer = AuthenticateResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ProveResponse(Answer):
    """Logged in; the node's signature proves that it knows the user's keys."""

    method = 0x1C
    message: str


class Prove(Request):
    """End the login: the proof that the password is known."""

    method = 0x1B
    answer = ProveResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ActFor(Request):
    """As a node: what follows is asked by this user, or without one by a client without login."""

    method = 0x1D
    answer = Success
    right = None
    before_identification = True
    user: str | None


# Clients


class RegisterClientResponse(Answer):
    """The new client; the connection now speaks for it."""

    method = 0x12
    client: ClientInfo


class RegisterClient(Request):
    """Create a client of a unique name."""

    method = 0x11
    answer = RegisterClientResponse
    right = None
    before_identification = True
    name: str
    mode_wanted: Mode = Mode.READ_WRITE
    # The client is deleted when the connection ends.
    ephemeral: bool = False


class IdentifyClientResponse(Answer):
    """Who the connection speaks for."""

    method = 0x14
    client: ClientInfo


class IdentifyClient(Request):
    """Speak for an existing client, by id or by name."""

    method = 0x13
    answer = IdentifyClientResponse
    right = None
    before_identification = True
    client_id: int | None = None
    name: str | None = None
    # As in RegisterClient: it came back before it was forgotten.
    ephemeral: bool = False


class DeleteClient(Request):
    """Delete a client: oneself, or as admin anyone."""

    method = 0x15
    answer = Success
    right = None
    client_id: int


class FindClientResponse(Answer):
    """The id that goes with the name."""

    method = 0x18
    client_id: int


class FindClient(Request):
    """The id of a client by name; a name nobody has yet is reserved, so it can be addressed."""

    method = 0x17
    answer = FindClientResponse
    right = None
    name: str


# Queues


def _dead_letters(queue: int | str, policy: QueuePolicy) -> list[Claim]:
    """Who names a queue for dead letters takes them from here and writes them there, in the end.

    Without `read`, who may only configure a queue would have its messages expire into their own.
    """
    return [(Right.READ, queue), (Right.WRITE, policy.dead_letter)] if policy.dead_letter else []


class CreateQueueResponse(Answer):
    """The new queue."""

    method = 0x22
    queue: QueueInfo


class CreateQueue(Request):
    """Create a queue of a unique name."""

    method = 0x21
    answer = CreateQueueResponse
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    name: str
    durable: bool = True
    policy: QueuePolicy = QueuePolicy()

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.name), *_dead_letters(self.name, self.policy)]


class DeleteQueue(Request):
    """Delete a queue and what is in it."""

    method = 0x23
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
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
    """List the queues that hold a message this client could read."""

    method = 0x2B
    answer = GetActiveQueuesResponse
    right = Right.SEE


class Run(msgspec.Struct, array_like=True):
    """Neighbouring messages of one segment; a column of one element speaks for all.

    `tag` numbers the deliveries of a consumer, for ack, nack and extend.
    """

    tag: int
    message_id: int
    lengths: list[int]
    senders: list[int]
    priority: int
    arrived_at: float
    receivers: list[int] | None = None
    contexts: list[int | None] | None = None
    attributes: list[Attributes | None] | None = None
    redelivered: bool = False
    # How often each was delivered, this time included; [1] for first deliveries.
    deliveries: list[int] = msgspec.field(default_factory=lambda: [1])


class GetMessagesResponse(Answer):
    """Messages in the queue in order of their ids; payloads in the body."""

    method = 0x2E
    runs: list[Run]
    # The id from which on there may be more; None: that was all.
    more_from: int | None = None


class GetMessages(Request):
    """Browse a queue without consuming: what waits, or what of it has these ids."""

    method = 0x2D
    answer = GetMessagesResponse
    right = Right.READ
    queue_id: int
    limit: int = 100
    first_id: int = 0
    last_id: int | None = None


class PurgeQueueResponse(Answer):
    """How many messages were dropped."""

    method = 0x30
    count: int


class PurgeQueue(Request):
    """Drop every waiting message of a queue."""

    method = 0x2F
    answer = PurgeQueueResponse
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    queue_id: int


# Messages


class PutMessageResponse(Answer):
    """Stored and on disk. Ids count up from `first_id` unless `ids` lists them.

    A first id of 0 says: this batch was stored before, by the same producer.
    """

    method = 0x32
    first_id: int
    ids: list[int] | None = None


class PutMessages(Request):
    """Put a batch into one queue; `producer` and `batch` make a resend harmless.

    `after` is a batch of the producer that was on its way when this one was sent. A node that
    has never met it refuses: it was refused elsewhere, comes again, and must not be overtaken.
    """

    method = 0x31
    answer = PutMessageResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    queue_id: int
    producer: int
    batch: int
    lengths: list[int]
    priorities: list[int]
    receivers: list[int | None] | None = None
    contexts: list[int | None] | None = None
    attributes: list[Attributes | None] | None = None
    after: int | None = None
    # Seconds from now, by the node's clock: not before, and not after.
    delays_s: list[float | None] | None = None
    ttls_s: list[float | None] | None = None


class Acknowledged(msgspec.Struct, array_like=True):
    """Tags of one consumer of this connection, each range [first, last]."""

    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]


class PutToQueuesResponse(Answer):
    """The queues that took the message."""

    method = 0x38
    queue_ids: list[int]


class PutToQueues(Request):
    """Put one message into several queues: all or none, or with `partial` those that can."""

    method = 0x37
    answer = PutToQueuesResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    queue_ids: list[int]
    producer: int
    batch: int
    priority: int
    partial: bool = False
    receiver: int | None = None
    context: int | None = None
    attributes: Attributes | None = None

    def claims(self) -> list[Claim]:
        return [(Right.WRITE, queue_id) for queue_id in self.queue_ids]


class TransactResponse(Answer):
    """All of it is done and on disk. The ids of the puts, as PutMessageResponse would give them.

    Without any, it was done before: this is the answer to a resend.
    """

    method = 0x3C
    puts: list[PutMessageResponse]


class Transact(Request):
    """Puts and acknowledgements across queues, all or none.

    It names the queues of its `puts` (written to) and of its `acks` (read from); the leases must
    be this connection's. `producer` and `batch` stand for those of the puts, whose own count for
    nothing; their payloads follow each other in the body. `resent` says that the leases may have
    been another connection's: then it is done only if it was before.
    """

    method = 0x3B
    answer = TransactResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    producer: int
    batch: int
    puts: list[PutMessages]
    acks: list[Acknowledged]
    resent: bool = False

    def claims(self) -> list[Claim]:
        puts: list[Claim] = [(Right.WRITE, put.queue_id) for put in self.puts]
        return [*puts, *((Right.READ, ack.queue_id) for ack in self.acks)]


class ReadMessageResponse(Answer):
    """The message, under lease when one was asked for."""

    method = 0x34
    run: Run


class ReadMessage(Request):
    """Take one message, at once or when one comes within `wait_ms`.

    With `lease_ms` it must be acknowledged (consumer 0), else it is by being returned.
    """

    method = 0x33
    answer = ReadMessageResponse
    right = Right.READ
    queue_id: int
    order: Order = Order.OLDEST
    sender: int | None = None
    wait_ms: int = 0
    lease_ms: int | None = None


class ReadResponseResponse(Answer):
    """The reply."""

    method = 0x36
    run: Run


class ReadResponse(Request):
    """Take the reply to a request of mine, by its context."""

    method = 0x35
    answer = ReadResponseResponse
    right = Right.READ
    queue_id: int
    context: int
    wait_ms: int = 0
    lease_ms: int | None = None


class Withdraw(Request):
    """Wait no longer with that read, which is answered with an error if it was still waiting."""

    method = 0x39
    answer = Success
    right = Right.READ
    queue_id: int
    read_packet_id: int


# By id: for who reads without holding, and acknowledges when all of it is processed


class GetWaitingIdsResponse(Answer):
    """The ids, each range [first, last]; every id that was given out so far is below `below_id`."""

    method = 0x54
    ranges: list[tuple[int, int]]
    below_id: int


class GetWaitingIds(Request):
    """Which messages for anyone wait, the lowest ids first, up to `last_id`.

    There may be more than are listed, even within the limit; there are none if none is.
    """

    method = 0x53
    answer = GetWaitingIdsResponse
    right = Right.READ
    queue_id: int
    limit: int
    last_id: int | None = None


class AcknowledgeIdsResponse(Answer):
    """How many messages there were; that they are done is on disk."""

    method = 0x56
    count: int


class AcknowledgeIds(Request):
    """Acknowledge messages for anyone by their ids, each range [first, last], if they wait."""

    method = 0x55
    answer = AcknowledgeIdsResponse
    right = Right.READ
    queue_id: int
    ranges: list[tuple[int, int]]


# Subscriptions


class SubscribeResponse(Answer):
    """Deliveries will follow."""

    method = 0x42
    lease_ms: int


class Subscribe(Request):
    """Have messages pushed, at most `prefetch` of them unacknowledged."""

    method = 0x41
    answer = SubscribeResponse
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int
    order: Order = Order.PRIORITY
    automatic: bool = False


class Unsubscribe(Request):
    """Stop; what is unacknowledged goes back."""

    method = 0x43
    answer = Success
    right = Right.READ
    queue_id: int
    consumer: int


class SettleResponse(Answer):
    """How many of the tags were no longer ours."""

    method = 0x46
    lost: int


class Settle(Request):
    """Acknowledge ranges of tags, each [first, last]; answered only when `confirm` is set."""

    method = 0x45
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    confirm: bool = False


class Return(Request):
    """Give ranges of tags back to the queue: they failed, are hopeless, or were never begun."""

    method = 0x47
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    # How long until the next delivery; None: as the queue's policy says.
    delay_ms: int | None = None
    error: str | None = None
    # Straight to the dead letters.
    reject: bool = False
    # Never begun: at once, and not counted as a failure.
    unstarted: bool = False


class Extend(Request):
    """Lengthen the leases on ranges of tags; None: all that the consumer holds."""

    method = 0x49
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]] | None = None
    lease_ms: int | None = None


class SetPrefetch(Request):
    """Change how many messages this consumer may hold; 0: give it no more."""

    method = 0x4B
    answer = Success
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int


class Deliver(Push):
    """Messages for a consumer; payloads in the body."""

    method = 0x4E
    consumer: int
    runs: list[Run]


class ConsumerEnded(Push):
    """The subscription is over: the queue was deleted or moved to another node."""

    method = 0x50
    consumer: int
    code: int
    text: str


class PrefetchChanged(Push):
    """An admin, or a loop, has set this consumer's prefetch."""

    method = 0x52
    consumer: int
    prefetch: int


# Topics


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


# Administration


class StatsResponse(Answer):
    """Live numbers, as in telemetry/numbers.py; JSON in the body."""

    method = 0x62


class Stats(Request):
    """Live numbers of one queue, or of all this node owns; `cluster` asks the other nodes too."""

    method = 0x61
    answer = StatsResponse
    right = Right.SEE
    queue_id: int | None = None
    cluster: bool = True


class SetConsumerPrefetch(Request):
    """As admin: set the prefetch of anyone's consumer."""

    method = 0x63
    answer = Success
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    client_id: int
    consumer: int
    prefetch: int


class SetOwner(Request):
    """As admin: move a queue to another node."""

    method = 0x65
    answer = Success
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    member_id: int


class SetPolicy(Request):
    """Change what a queue promises."""

    method = 0x69
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    queue_id: int
    policy: QueuePolicy

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.queue_id), *_dead_letters(self.queue_id, self.policy)]


class RedriveResponse(Answer):
    """How many messages were sent back."""

    method = 0x6C
    count: int


class Redrive(Request):
    """Send dead letters back to where they died, or to `to`; all, or a selection."""

    method = 0x6B
    answer = RedriveResponse
    right = Right.READ
    mode = Mode.READ_WRITE
    queue_id: int
    to: str | None = None
    message_ids: list[int] | None = None
    reason: str | None = None
    limit: int | None = None

    def claims(self) -> list[Claim]:
        # Without `to` they go where they died, which only the node finds out: it asks there.
        where: list[Claim] = [] if self.to is None else [(Right.WRITE, self.to)]
        return [(Right.READ, self.queue_id), *where]


class Member(msgspec.Struct, array_like=True):
    """A node of the cluster."""

    member_id: int
    name: str
    address: str
    alive: bool
    queues: int


class GetMembersResponse(Answer):
    """The nodes."""

    method = 0x68
    members: list[Member]


class GetMembers(Request):
    """List the nodes of the cluster."""

    method = 0x67
    answer = GetMembersResponse
    right = None


def _leaves(root: type[Packet]) -> list[type[Packet]]:
    found = [root] if root.method else []
    for child in root.__subclasses__():
        found += _leaves(child)
    return found


REQUESTS: dict[int, type[Request]] = {
    p.method: p for p in _leaves(Request) if issubclass(p, Request)
}
ANSWERS: dict[int, type[Answer]] = {p.method: p for p in _leaves(Answer) if issubclass(p, Answer)}
PUSHES: dict[int, type[Push]] = {p.method: p for p in _leaves(Push) if issubclass(p, Push)}
