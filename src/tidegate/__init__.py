"""Tidegate: a message queue that measures itself, durable and confirmed, on PostgreSQL."""

from tidegate.client import tracing
from tidegate.client.app import App
from tidegate.client.blocking import BlockingClient, BlockingMessage
from tidegate.client.client import Client
from tidegate.client.connect import connect
from tidegate.client.message import Message, MessageBatch
from tidegate.client.middleware import CallNext, Middleware
from tidegate.client.options import PutOptions
from tidegate.client.subscription import Subscription
from tidegate.client.transaction import Transaction
from tidegate.client.verdict import Reject, Retry
from tidegate.core.errors import (
    CallerError,
    ClientNameNotUnique,
    ClientNotExisting,
    Forbidden,
    InternalError,
    InvalidValue,
    IoFailure,
    LeaseLost,
    LimitReached,
    Malformed,
    ModeForbids,
    NoActiveQueues,
    NoMessagesInQueue,
    NoMessagesRetrieved,
    NoQueues,
    NoReply,
    NotAuthenticated,
    Notice,
    NotOwner,
    QueueNameNotUnique,
    QueueNotExisting,
    RequiredParameterMissing,
    RetryLater,
    StaleEpoch,
    TidegateError,
    TooLarge,
    TopicNameNotUnique,
    TopicNotExisting,
    Unavailable,
    UnexpectedPacket,
    UniqueConstraint,
)
from tidegate.core.model import Death, DeathReason, Failure, Overflow, QueuePolicy
from tidegate.core.topic import SubscriptionInfo, TopicInfo

__version__ = "0.1.0"

__all__ = [
    "App",
    "BlockingClient",
    "BlockingMessage",
    "CallNext",
    "CallerError",
    "Client",
    "ClientNameNotUnique",
    "ClientNotExisting",
    "Death",
    "DeathReason",
    "Failure",
    "Forbidden",
    "InternalError",
    "InvalidValue",
    "IoFailure",
    "LeaseLost",
    "LimitReached",
    "Malformed",
    "Message",
    "MessageBatch",
    "Middleware",
    "ModeForbids",
    "NoActiveQueues",
    "NoMessagesInQueue",
    "NoMessagesRetrieved",
    "NoQueues",
    "NoReply",
    "NotAuthenticated",
    "NotOwner",
    "Notice",
    "Overflow",
    "PutOptions",
    "QueueNameNotUnique",
    "QueueNotExisting",
    "QueuePolicy",
    "Reject",
    "RequiredParameterMissing",
    "Retry",
    "RetryLater",
    "StaleEpoch",
    "Subscription",
    "SubscriptionInfo",
    "TidegateError",
    "TooLarge",
    "TopicInfo",
    "TopicNameNotUnique",
    "TopicNotExisting",
    "Transaction",
    "Unavailable",
    "UnexpectedPacket",
    "UniqueConstraint",
    "__version__",
    "connect",
    "tracing",
]
