"""What can go wrong, and whose fault it is.

TidegateError
├── CallerError                  the request was wrong: change it
│   ├── UnexpectedPacket             a packet that this side cannot take now
│   ├── UniqueConstraint
│   │   ├── QueueNameNotUnique
│   │   ├── TopicNameNotUnique
│   │   └── ClientNameNotUnique
│   ├── ClientNotExisting
│   ├── QueueNotExisting
│   ├── TopicNotExisting
│   ├── RequiredParameterMissing
│   ├── ModeForbids
│   ├── Forbidden                    the user lacks a role on the queue
│   ├── NotAuthenticated             a login is needed, or failed
│   ├── TooLarge
│   ├── ChangedMeanwhile             somebody else was first: look again
│   └── InvalidValue
├── Notice                       nothing is wrong, there is just nothing there
│   ├── NoQueues
│   ├── NoActiveQueues
│   ├── NoMessagesInQueue            the queue is empty
│   ├── NoMessagesRetrieved          it is not, but nothing in it matches
│   └── NoReply                      a request was not answered in time
├── RetryLater                   the same request may succeed in a moment
│   ├── LimitReached
│   ├── NotOwner                     another node owns the queue
│   │   └── NotHome                      the message belongs into another replica
│   ├── StaleEpoch                   this node owned it and no longer does
│   ├── Unavailable                  store or node cannot be reached
│   └── IoFailure
├── LeaseLost                    the lease on a delivered message has ended
├── Malformed                    bytes that are no frame: the connection closes
└── InternalError                our bug

Every class has a number that never changes: it is what travels on the wire.
Telesto's fourteen codes (its table 4.2) are 1 to 14, ours start at 32.
"""

from __future__ import annotations

from typing import ClassVar


class TidegateError(Exception):
    """Anything Tidegate raises on purpose."""

    code: ClassVar[int] = 0
    name: ClassVar[str] = "ERROR"
    # Whether the connection on which it was reported stays open.
    connection_survives: ClassVar[bool] = True


class CallerError(TidegateError):
    """The request was wrong."""


class Notice(TidegateError):
    """Nothing is wrong, there is just nothing to return."""


class RetryLater(TidegateError):
    """The same request may succeed in a moment."""


class InternalError(TidegateError):
    """A bug of ours; the log of the node says more."""

    code = 1
    name = "INTERNAL_ERROR"


class IoFailure(RetryLater):
    """The network or the store failed in the middle; the outcome may be unknown.

    The other answers to a put that ask for patience say that nothing of it was stored.
    """

    code = 2
    name = "IO_ERROR"


class UnexpectedPacket(CallerError):
    """A packet that cannot be handled in this state."""

    code = 3
    name = "UNEXPECTED_PACKET"


class UniqueConstraint(CallerError):
    """Something that must be unique already exists."""

    code = 4
    name = "UNIQUE_CONSTRAINT"


class QueueNameNotUnique(UniqueConstraint):
    """A queue of that name exists."""

    code = 5
    name = "QUEUE_NAME_NOT_UNIQUE"


class ClientNameNotUnique(UniqueConstraint):
    """A client of that name exists."""

    code = 6
    name = "CLIENT_NAME_NOT_UNIQUE"


class TopicNameNotUnique(UniqueConstraint):
    """A topic of that name exists."""

    code = 60
    name = "TOPIC_NAME_NOT_UNIQUE"


class TopicNotExisting(CallerError):
    """No topic has that name."""

    code = 61
    name = "TOPIC_NOT_EXISTING"


class ClientNotExisting(CallerError):
    """No client has that id or name."""

    code = 7
    name = "CLIENT_NOT_EXISTING"


class QueueNotExisting(CallerError):
    """No queue has that id or name."""

    code = 8
    name = "QUEUE_NOT_EXISTING"


class RequiredParameterMissing(CallerError):
    """The packet lacks a parameter that its method needs."""

    code = 9
    name = "REQUIRED_PARAMETER_MISSING"


class ModeForbids(CallerError):
    """The client's mode does not allow the call."""

    code = 10
    name = "CLIENT_MODE_PERMISSION_VIOLATION"


class NoActiveQueues(Notice):
    """No queue holds a message for this client."""

    code = 11
    name = "NO_ACTIVE_QUEUES_EXISTING"


class NoQueues(Notice):
    """There are no queues at all."""

    code = 12
    name = "NO_QUEUES_EXISTING"


class NoMessagesInQueue(Notice):
    """The queue is empty."""

    code = 13
    name = "NO_MESSAGES_IN_QUEUE"


class NoMessagesRetrieved(Notice):
    """The queue holds messages, but none that matches and is free."""

    code = 14
    name = "NO_MESSAGES_RETRIEVED"


class NoReply(Notice, TimeoutError):
    """No reply came in time; the request may still be answered."""

    code = 40
    name = "NO_REPLY"


class TooLarge(CallerError):
    """A message or frame exceeds its limit."""

    code = 32
    name = "TOO_LARGE"


class LimitReached(RetryLater):
    """A configured limit is reached; nothing was stored."""

    code = 33
    name = "LIMIT_REACHED"


class NotOwner(RetryLater):
    """Another node owns the queue."""

    code = 34
    name = "NOT_OWNER"


class NotHome(NotOwner):
    """A group, a receiver or a dedup id has its home elsewhere, or nowhere yet.

    The batch was looked for before it was refused: whatever was feared, it is not stored here.
    """

    code = 41
    name = "NOT_HOME"


class StaleEpoch(RetryLater):
    """The node lost the queue to another one; nothing was stored."""

    code = 35
    name = "STALE_EPOCH"


class Unavailable(RetryLater):
    """Store or node cannot be reached now."""

    code = 36
    name = "UNAVAILABLE"


class InvalidValue(CallerError):
    """A parameter is outside what is allowed."""

    code = 37
    name = "INVALID_VALUE"


class ChangedMeanwhile(CallerError):
    """Somebody else has changed it since it was read; nothing was done."""

    code = 62
    name = "CHANGED_MEANWHILE"


class Forbidden(CallerError):
    """The user's roles do not allow the call."""

    code = 50
    name = "FORBIDDEN"


class NotAuthenticated(CallerError):
    """A login is needed, or failed, or no longer holds."""

    code = 51
    name = "NOT_AUTHENTICATED"


class LeaseLost(TidegateError):
    """The message was given to someone else, or is done: this ack counts for nothing."""

    code = 38
    name = "LEASE_LOST"


class Malformed(TidegateError):
    """Bytes that are no frame."""

    code = 39
    name = "MALFORMED"
    connection_survives = False


def _tree(root: type[TidegateError]) -> list[type[TidegateError]]:
    found = [root]
    for child in root.__subclasses__():
        found += _tree(child)
    return found


BY_CODE: dict[int, type[TidegateError]] = {e.code: e for e in _tree(TidegateError) if e.code}


def from_code(code: int, text: str) -> TidegateError:
    """The error that a peer reported, as an exception of ours."""
    return BY_CODE.get(code, InternalError)(text)
