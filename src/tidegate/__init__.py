"""Tidegate: a message queue and an HTTP front door that keep the service level you declare.

Each public name is imported on first use. The command line imports this package when it starts.
With little to import, a Ctrl-C at that moment does not end in a traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.client import tracing
    from tidegate.client.app import App, CallNext, Middleware
    from tidegate.client.blocking import BlockingClient, BlockingMessage
    from tidegate.client.client import Client
    from tidegate.client.connect import connect
    from tidegate.client.handler import Reject, Retry
    from tidegate.client.message import Message, MessageBatch, PutOptions
    from tidegate.client.prefetch import PrefetchStep
    from tidegate.client.puts import Transaction
    from tidegate.client.subscription import Subscription
    from tidegate.core.errors import (
        CallerError,
        ChangedMeanwhile,
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
    from tidegate.core.model import (
        Death,
        DeathReason,
        Failure,
        Overflow,
        QueuePolicy,
        SubscriptionInfo,
        TopicInfo,
    )
    from tidegate.core.prefetch import ControllerKind, PrefetchGoal, PrefetchModel

__version__ = "0.1.0"

__all__ = [
    "App",
    "BlockingClient",
    "BlockingMessage",
    "CallNext",
    "CallerError",
    "ChangedMeanwhile",
    "Client",
    "ClientNameNotUnique",
    "ClientNotExisting",
    "ControllerKind",
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
    "PrefetchGoal",
    "PrefetchModel",
    "PrefetchStep",
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

# The module that defines each public name. It repeats the imports above, which only type checkers
# read.
_MODULES = {
    "tidegate.client.tracing": ("tracing",),
    "tidegate.client.app": (
        "App",
        "CallNext",
        "Middleware",
    ),
    "tidegate.client.blocking": (
        "BlockingClient",
        "BlockingMessage",
    ),
    "tidegate.client.client": ("Client",),
    "tidegate.client.connect": ("connect",),
    "tidegate.client.message": (
        "Message",
        "MessageBatch",
        "PutOptions",
    ),
    "tidegate.client.prefetch": ("PrefetchStep",),
    "tidegate.client.subscription": ("Subscription",),
    "tidegate.client.puts": ("Transaction",),
    "tidegate.client.handler": (
        "Reject",
        "Retry",
    ),
    "tidegate.core.errors": (
        "CallerError",
        "ChangedMeanwhile",
        "ClientNameNotUnique",
        "ClientNotExisting",
        "Forbidden",
        "InternalError",
        "InvalidValue",
        "IoFailure",
        "LeaseLost",
        "LimitReached",
        "Malformed",
        "ModeForbids",
        "NoActiveQueues",
        "NoMessagesInQueue",
        "NoMessagesRetrieved",
        "NoQueues",
        "NoReply",
        "NotAuthenticated",
        "Notice",
        "NotOwner",
        "QueueNameNotUnique",
        "QueueNotExisting",
        "RequiredParameterMissing",
        "RetryLater",
        "StaleEpoch",
        "TidegateError",
        "TooLarge",
        "TopicNameNotUnique",
        "TopicNotExisting",
        "Unavailable",
        "UnexpectedPacket",
        "UniqueConstraint",
    ),
    "tidegate.core.model": (
        "Death",
        "DeathReason",
        "Failure",
        "Overflow",
        "QueuePolicy",
        "SubscriptionInfo",
        "TopicInfo",
    ),
    "tidegate.core.prefetch": (
        "ControllerKind",
        "PrefetchGoal",
        "PrefetchModel",
    ),
}
_ORIGIN = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _ORIGIN:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_ORIGIN[name])
        # `tracing` is a module, not a name in one.
        found = module if name == "tracing" else getattr(module, name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return __all__
