"""The nouns that all packages share: clients, queues, and attributes of messages."""

from __future__ import annotations

import enum

import msgspec

from tidegate.core.errors import ChangedMeanwhile
from tidegate.core.prefetch import PrefetchGoal

PRIORITY_LOWEST = 1
PRIORITY_DEFAULT = 5
PRIORITY_HIGHEST = 10


class Mode(enum.IntEnum):
    """What a client may do (Telesto section 3.1.1, plus admin)."""

    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


class Order(enum.IntEnum):
    """The order in which messages are taken."""

    OLDEST = 1
    PRIORITY = 2


class ClientInfo(msgspec.Struct, array_like=True, frozen=True):
    """A registered client."""

    client_id: int
    name: str
    mode: Mode


class Overflow(enum.StrEnum):
    """What happens to a put when the queue is at its limit."""

    SLOW = "slow"  # the confirmation waits until there is room
    REFUSE = "refuse"
    DROP = "drop"  # the oldest message goes to the dead letters


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a queue: leases, retries, dead letters, order and limits."""

    # How long a consumer may hold a message without renewing its lease; `None` means the node's
    # default.
    lease_s: float | None = None
    # Failed deliveries after which a message is given up; 0 means never.
    deliveries_max: int = 10
    # The queue for messages that are given up. `None` means the queue's name with `DEAD_SUFFIX`.
    # Empty means none: such messages are dropped and counted.
    dead_letter: str | None = None
    # The delay of the second delivery after a failure. It is multiplied by `retry_factor` each
    # time, up to `retry_max_s`.
    retry_first_s: float = 1.0
    retry_factor: float = 2.0
    retry_max_s: float = 300.0
    # The random part of each delay, so that messages that failed together do not return together.
    retry_jitter: float = 0.2
    # The time to live of messages that set none; `None` means unlimited.
    ttl_s: float | None = None
    # Whether expired messages go to the dead letters; otherwise they are dropped and counted.
    keep_expired: bool = False
    # How long a dedup id is remembered.
    dedup_window_s: float = 300.0
    # Seconds of waiting that equal one step of priority; 0 means that priority alone decides.
    ageing_s: float = 60.0
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow = Overflow.SLOW
    paused: bool = False
    # The goal to which the node controls the prefetch of consumers; `None` means no control.
    prefetch: PrefetchGoal | None = None

    def dead_letter_queue(self, queue: str) -> str | None:
        """Return the name of the dead-letter queue of `queue`; `None` if there is none."""
        if self.dead_letter is None:
            return queue + DEAD_SUFFIX
        return self.dead_letter or None


def promised_by_another(queue: int | str) -> ChangedMeanwhile:
    """Return the error for the second of two clients that change a policy at the same time."""
    return ChangedMeanwhile(
        f"somebody else has changed the policy of queue {queue!r} meanwhile: look at it, and say "
        "it again"
    )


DEFAULT_POLICY = QueuePolicy()
DEAD_SUFFIX = ".dead"
# Dead letters stay until they are redriven, settled or deleted.
DEAD_LETTER_POLICY = QueuePolicy(deliveries_max=0, dead_letter="")


class QueueInfo(msgspec.Struct, array_like=True, frozen=True):
    """A queue as the catalogue knows it."""

    queue_id: int
    name: str
    durable: bool = True
    policy: QueuePolicy = DEFAULT_POLICY
    # Whether it is the alias of a logical queue, whose replicas hold the messages.
    elastic: bool = False
    # Of a replica: the id of the alias and the replica's number. An `alias_id` of 0 means no
    # replica.
    alias_id: int = 0
    number: int = 0

    @property
    def title(self) -> str:
        """The name for messages to users: `'orders'`, or `'orders', replica 2`."""
        if not self.alias_id:
            return repr(self.name)
        # A replica is named by the logical queue, a mark and its number.
        return f"{self.name.rpartition('#')[0]!r}, replica {self.number}"


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """A failed delivery."""

    at: float
    # "nack", "lease expired" or "consumer gone".
    reason: str
    error: str | None = None


class DeathReason(enum.StrEnum):
    """Why a message was given up."""

    DELIVERIES = "deliveries"  # delivered and failed as often as the queue allows
    REJECTED = "rejected"  # rejected by a consumer
    EXPIRED = "expired"
    OVERFLOW = "overflow"


class Death(msgspec.Struct, array_like=True, frozen=True):
    """An entry in the history of a dead letter: when and why it was given up."""

    queue: str
    reason: DeathReason
    error: str | None
    deliveries: int
    at: float
    message_id: int
    failures: list[Failure] = []
    # Restored when the message is sent back to its queue.
    receiver: int | None = None
    group: str | None = None
    tenant: str | None = None


class Attributes(msgspec.Struct, array_like=True, frozen=True):
    """Optional properties of a message beside its payload; most messages have none."""

    content_type: str | None = None
    headers: dict[str, str] | None = None
    # Messages of a group are delivered in order, one at a time.
    group: str | None = None
    # Tenants share the capacity of the queue evenly.
    tenant: str | None = None
    # Only the first message with this id within the queue's window is stored.
    dedup_id: str | None = None
    # Delivery not before and not after these times, in seconds since 1970.
    deliver_at: float | None = None
    expires_at: float | None = None
    # The history of a dead letter, the latest death last; `None` for other messages.
    deaths: list[Death] | None = None
