"""Packets to put messages into queues, and to get the result of a put."""

from __future__ import annotations

import msgspec

from tidegate.core.model import Attributes, ClientMode, Order, Right
from tidegate.protocol.packet import Answer, Claim, Push, Request, Run, Success


class PutMessageResponse(Answer):
    """The batch is on disk. Ids count up from `first_id` unless `ids` lists them.

    A `first_id` of 0 means that the batch of this producer was stored before.
    """

    method = 0x32
    first_id: int
    ids: list[int] | None = None


class PutMessages(Request):
    """Put a batch into one queue; `producer` and `batch` identify it, so a resend is stored once.

    `after` is a batch of the producer that was in flight when this one was sent. A node that has
    never received that batch refuses this one. That batch was refused elsewhere and comes again,
    and it must be stored first.
    """

    method = 0x31
    answer = PutMessageResponse
    right = Right.WRITE
    mode = ClientMode.READ_WRITE
    queue_id: int
    producer: int
    batch: int
    lengths: list[int]
    priorities: list[int]
    receivers: list[int | None] | None = None
    contexts: list[int | None] | None = None
    attributes: list[Attributes | None] | None = None
    after: int | None = None
    # Seconds from now by the node's clock: the delay, and the time to live.
    delays_s: list[float | None] | None = None
    ttls_s: list[float | None] | None = None


class PutToQueuesResponse(Answer):
    """The queues that accepted the message."""

    method = 0x38
    queue_ids: list[int]


class PutToQueues(Request):
    """Put one message into several queues: into all or none, or with `partial` where possible."""

    method = 0x37
    answer = PutToQueuesResponse
    right = Right.WRITE
    mode = ClientMode.READ_WRITE
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


class GetFateResponse(Answer):
    """Whether the batch was stored."""

    method = 0x98
    stored: bool


class GetFate(Request):
    """Ask whether a replica that no longer exists had stored a batch whose answer was lost."""

    method = 0x97
    answer = GetFateResponse
    right = Right.WRITE
    mode = ClientMode.READ_WRITE
    queue_id: int
    replica_id: int
    producer: int
    batch: int


# Packets to take a single message, and to withdraw such a read.


class ReadMessageResponse(Answer):
    """The message, under a lease if one was asked for."""

    method = 0x34
    run: Run


class ReadMessage(Request):
    """Take one message, at once or when one arrives within `wait_ms`.

    With `lease_ms` it must be acknowledged (as consumer 0). Without, the node considers it
    acknowledged when it sends it.
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
    """Take the reply to a request of this client, by its context."""

    method = 0x35
    answer = ReadResponseResponse
    right = Right.READ
    queue_id: int
    context: int
    wait_ms: int = 0
    lease_ms: int | None = None


class Withdraw(Request):
    """End a waiting read, which is then answered with an error."""

    method = 0x39
    answer = Success
    right = Right.READ
    queue_id: int
    read_packet_id: int


# Packets about messages that a consumer holds: acknowledge, return, extend the lease.


class SettleResponse(Answer):
    """The number of tags that the consumer no longer held."""

    method = 0x46
    lost: int


class Settle(Request):
    """Acknowledge ranges of tags, each [first, last]; answered only if `confirm` is set."""

    method = 0x45
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    confirm: bool = False


class Return(Request):
    """Return ranges of tags to the queue: failed, rejected or not begun."""

    method = 0x47
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    # The delay of the next delivery; `None` means the delay of the queue's policy.
    delay_ms: int | None = None
    error: str | None = None
    # Move to the dead letters.
    reject: bool = False
    # Not begun: deliver again at once, and do not count it as a failure.
    unstarted: bool = False


class Extend(Request):
    """Extend the leases on ranges of tags; `None` means all that the consumer holds."""

    method = 0x49
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]] | None = None
    lease_ms: int | None = None


# Packets of subscriptions: registration, deliveries, and the end.


class SubscribeResponse(Answer):
    """The consumer is registered; deliveries will follow."""

    method = 0x42
    lease_ms: int


class Subscribe(Request):
    """Register a consumer: the node pushes messages, at most `prefetch` of them unacknowledged."""

    method = 0x41
    answer = SubscribeResponse
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int
    order: Order = Order.PRIORITY
    automatic: bool = False
    # Only messages addressed to this client, which then does not count as a consumer of the queue.
    mine_only: bool = False


class Unsubscribe(Request):
    """Unregister a consumer; its unacknowledged messages return to the queue."""

    method = 0x43
    answer = Success
    right = Right.READ
    queue_id: int
    consumer: int


class Deliver(Push):
    """Messages for a consumer; payloads in the body."""

    method = 0x4E
    consumer: int
    runs: list[Run]


class ConsumerEnded(Push):
    """The consumer has ended, since the queue was deleted or moved to another node."""

    method = 0x50
    consumer: int
    code: int
    text: str


# Packets about the number of messages that a consumer may hold.


class SetPrefetch(Request):
    """Change how many messages this consumer may hold; 0 stops deliveries."""

    method = 0x4B
    answer = Success
    right = Right.READ
    queue_id: int
    consumer: int
    prefetch: int


class SetConsumerPrefetch(Request):
    """Set the prefetch of any client's consumer; needs admin mode."""

    method = 0x63
    answer = Success
    right = Right.ADMIN
    mode = ClientMode.ADMIN
    queue_id: int
    client_id: int
    consumer: int
    prefetch: int
    # Part of an experiment, which ends with this connection or with a prefetch of 0. A consumer has
    # at most one experiment at a time.
    trial: bool = False


class PrefetchChanged(Push):
    """An administrator or a control loop has changed this consumer's prefetch."""

    method = 0x52
    consumer: int
    prefetch: int
    # False during an experiment: a client that subscribes again then uses its own former value.
    lasting: bool = True


# Packets to read messages without holding them, and to acknowledge them by id.


class GetMessagesResponse(Answer):
    """Messages in the order of their ids; payloads in the body."""

    method = 0x2E
    runs: list[Run]
    # The id to continue from; `None` means that there are no more.
    more_from: int | None = None


class GetMessages(Request):
    """Browse waiting messages, or those with ids in a range, without taking them."""

    method = 0x2D
    answer = GetMessagesResponse
    right = Right.READ
    queue_id: int
    limit: int = 100
    first_id: int = 0
    last_id: int | None = None


class GetWaitingIdsResponse(Answer):
    """Ids as ranges [first, last]; all ids assigned so far are below `below_id`."""

    method = 0x54
    ranges: list[tuple[int, int]]
    below_id: int


class GetWaitingIds(Request):
    """List ids of waiting messages without a receiver up to `last_id`, the lowest ids first.

    The list may be incomplete even within the limit; an empty list means that no message waits.
    """

    method = 0x53
    answer = GetWaitingIdsResponse
    right = Right.READ
    queue_id: int
    limit: int
    last_id: int | None = None


class AcknowledgeIdsResponse(Answer):
    """The number of messages acknowledged; this is on disk."""

    method = 0x56
    count: int


class AcknowledgeIds(Request):
    """Acknowledge waiting messages without a receiver by id, each range [first, last]."""

    method = 0x55
    answer = AcknowledgeIdsResponse
    right = Right.READ
    queue_id: int
    ranges: list[tuple[int, int]]


# Packets to put and acknowledge across queues in one transaction.


class Acknowledged(msgspec.Struct, array_like=True):
    """Tags of one consumer of this connection, each range [first, last]."""

    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]


class TransactResponse(Answer):
    """The transaction is on disk. The ids of the puts, as in PutMessageResponse.

    An empty list means that it was committed before, so this answers a resend.
    """

    method = 0x3C
    puts: list[PutMessageResponse]


class Transact(Request):
    """Puts and acknowledgements across queues: all or none.

    It names the queues of its `puts`, which need `write`, and of its `acks`, which need `read`. The
    leases must belong to this connection. `producer` and `batch` replace those of the puts, which
    are ignored. The payloads follow each other in the body. `resent` means that the leases may
    belong to an earlier connection; the node then only answers whether it was committed before.
    """

    method = 0x3B
    answer = TransactResponse
    right = Right.WRITE
    mode = ClientMode.READ_WRITE
    producer: int
    batch: int
    puts: list[PutMessages]
    acks: list[Acknowledged]
    resent: bool = False

    def claims(self) -> list[Claim]:
        puts: list[Claim] = [(Right.WRITE, put.queue_id) for put in self.puts]
        return [*puts, *((Right.READ, ack.queue_id) for ack in self.acks)]


# Packets to send dead letters back.


class RedriveResponse(Answer):
    """The number of messages sent back."""

    method = 0x6C
    count: int


class Redrive(Request):
    """Send dead letters back to their queues, or to `to`: all, or a selection."""

    method = 0x6B
    answer = RedriveResponse
    right = Right.READ
    mode = ClientMode.READ_WRITE
    queue_id: int
    to: str | None = None
    message_ids: list[int] | None = None
    reason: str | None = None
    limit: int | None = None

    def claims(self) -> list[Claim]:
        # Without `to`, only the node knows the queues of the messages, and checks the rights there.
        where: list[Claim] = [] if self.to is None else [(Right.WRITE, self.to)]
        return [(Right.READ, self.queue_id), *where]
