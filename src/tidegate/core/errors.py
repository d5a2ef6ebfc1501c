"""The exceptions of Tidegate, grouped by the caller's right reaction.

    TidegateError
    ├── CallerError                  the request was wrong: change it
    │   ├── UnexpectedPacket             a packet that this side cannot handle in its state
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
    │   ├── ChangedMeanwhile             another client changed it first: read it again
    │   └── InvalidValue
    ├── Notice                       no error, but there is no result
    │   ├── NoQueues
    │   ├── NoActiveQueues
    │   ├── NoMessagesInQueue            the queue is empty
    │   ├── NoMessagesRetrieved          the queue is not empty, but no message matches
    │   └── NoReply                      a request was not answered in time
    ├── RetryLater                   the same request may succeed later
    │   ├── LimitReached
    │   ├── NotOwner                     another node owns the queue
    │   │   └── NotHome                      another replica is assigned to the message
    │   ├── StaleEpoch                   this node owned the queue and no longer does
    │   ├── Unavailable                  store or node cannot be reached
    │   └── IoFailure
    ├── LeaseLost                    the lease on a delivered message has ended
    ├── Malformed                    bytes that are no frame: the connection closes
    └── InternalError                a bug in Tidegate

Every class has a number, which the wire protocol uses and which never changes. Numbers 1 to 14 are
the codes of Telesto (its table 4.2); Tidegate's own start at 32.
"""

from __future__ import annotations

from typing import ClassVar


class TidegateError(Exception):
    """The base of all exceptions that Tidegate raises on purpose."""

    code: ClassVar[int] = 0
    name: ClassVar[str] = "ERROR"
    # Whether the connection stays open after this error.
    connection_survives: ClassVar[bool] = True


class CallerError(TidegateError):
    """The request was wrong; the same request would fail again."""


class Notice(TidegateError):
    """No error, but there is no result to return."""


class RetryLater(TidegateError):
    """The same request may succeed later."""


class InternalError(TidegateError):
    """A bug in Tidegate; the log of the node has details."""

    code = 1
    name = "INTERNAL_ERROR"


class IoFailure(RetryLater):
    """The network or the store failed during the request, so its result may be unknown.

    Of all answers to a put that ask to retry, this is the only one after which it may be stored.
    """

    code = 2
    name = "IO_ERROR"


class UnexpectedPacket(CallerError):
    """The packet cannot be handled in the state of the connection."""

    code = 3
    name = "UNEXPECTED_PACKET"


class UniqueConstraint(CallerError):
    """A name or number that must be unique is already in use."""

    code = 4
    name = "UNIQUE_CONSTRAINT"


class QueueNameNotUnique(UniqueConstraint):
    """A queue of that name exists already."""

    code = 5
    name = "QUEUE_NAME_NOT_UNIQUE"


class ClientNameNotUnique(UniqueConstraint):
    """A client of that name exists already."""

    code = 6
    name = "CLIENT_NAME_NOT_UNIQUE"


class TopicNameNotUnique(UniqueConstraint):
    """A topic of that name exists already."""

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
    """The packet lacks a required parameter."""

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
    """There are no queues."""

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
    """No reply came in time; the request may still be handled later."""

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
    """A group, a receiver or a dedup id is assigned to another replica, or is moving to one.

    The replica looked for the batch before it refused it, so the batch is certainly not stored
    there.
    """

    code = 41
    name = "NOT_HOME"


class StaleEpoch(RetryLater):
    """The node has lost the queue to another node; nothing was stored."""

    code = 35
    name = "STALE_EPOCH"


class Unavailable(RetryLater):
    """The store or the node cannot be reached now."""

    code = 36
    name = "UNAVAILABLE"


class InvalidValue(CallerError):
    """A parameter has a value that is not allowed."""

    code = 37
    name = "INVALID_VALUE"


class ChangedMeanwhile(CallerError):
    """Another client has changed the object since it was read; nothing was done."""

    code = 62
    name = "CHANGED_MEANWHILE"


class Forbidden(CallerError):
    """The user's roles do not allow the call."""

    code = 50
    name = "FORBIDDEN"


class NotAuthenticated(CallerError):
    """A login is needed, failed, or is no longer valid."""

    code = 51
    name = "NOT_AUTHENTICATED"


class LeaseLost(TidegateError):
    """The lease on the message has ended; the call had no effect."""

    code = 38
    name = "LEASE_LOST"


class Malformed(TidegateError):
    """The bytes are no frame."""

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
    """Return the exception for a reported error; an unknown code gives `InternalError`."""
    return BY_CODE.get(code, InternalError)(text)
