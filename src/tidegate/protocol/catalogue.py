"""Packets to create, find, list, change, purge and delete queues."""

from __future__ import annotations

from tidegate.core.model import Mode, QueueInfo, QueuePolicy
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request, Success


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
    mode = Mode.READ_WRITE
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
    """List the queues that hold a message that this client could read."""

    method = 0x2B
    answer = GetActiveQueuesResponse
    right = Right.SEE


class SetPolicy(Request):
    """Change the policy of a queue."""

    method = 0x69
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
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
    mode = Mode.READ_WRITE
    queue_id: int
