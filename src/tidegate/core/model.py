"""The nouns that every room shares: clients, queues, and what travels about them."""

from __future__ import annotations

import enum

import msgspec

from tidegate.core.errors import ChangedMeanwhile
from tidegate.core.prefetch import PrefetchGoal

PRIORITY_LOWEST = 1
PRIORITY_DEFAULT = 5
PRIORITY_HIGHEST = 10


class Mode(enum.IntEnum):
    """What a client may do (Telesto §3.1.1, plus admin)."""

    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


class Order(enum.IntEnum):
    """Which message a read takes first."""

    OLDEST = 1
    PRIORITY = 2


class ClientInfo(msgspec.Struct, array_like=True, frozen=True):
    """A registered client."""

    client_id: int
    name: str
    mode: Mode


class Overflow(enum.StrEnum):
    """What happens to a put when the queue is at its limit."""

    SLOW = "slow"  # its confirm waits until there is room
    REFUSE = "refuse"
    DROP = "drop"  # the oldest goes to the dead letters


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a queue promises beyond storing: retries, dead letters, order, limits."""

    # How long a consumer may hold a message without a sign of life; None: the node's default.
    lease_s: float | None = None
    # Deliveries of a message before it is given up; 0: never.
    deliveries_max: int = 10
    # Where messages go that are given up; None: the queue's name with DEAD_SUFFIX. Empty: nowhere,
    # they are dropped and counted.
    dead_letter: str | None = None
    # The wait before the second delivery after a failure; it doubles (`retry_factor`) up to a most.
    retry_first_s: float = 1.0
    retry_factor: float = 2.0
    retry_max_s: float = 300.0
    # How much of each wait is left to chance, so that what failed together does not return so.
    retry_jitter: float = 0.2
    # How long messages live that say nothing themselves; None: for ever.
    ttl_s: float | None = None
    # Whether the expired go to the dead letters; else they are dropped and counted.
    keep_expired: bool = False
    # How long a dedup id is remembered.
    dedup_window_s: float = 300.0
    # Seconds of waiting that weigh as much as one step of priority; 0: priority alone decides.
    ageing_s: float = 60.0
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow = Overflow.SLOW
    paused: bool = False
    # What the node steers the prefetch of its consumers to; None: each has the one it asked for.
    prefetch: PrefetchGoal | None = None

    def dead_letter_queue(self, queue: str) -> str | None:
        """The name of the queue for what `queue` gives up; None: there is none."""
        if self.dead_letter is None:
            return queue + DEAD_SUFFIX
        return self.dead_letter or None


def promised_by_another(queue: int | str) -> ChangedMeanwhile:
    """Of two who change what a queue promises at the same time, the second hears this."""
    return ChangedMeanwhile(
        f"somebody else has changed the policy of queue {queue!r} meanwhile: look at it, and say "
        "it again"
    )


DEFAULT_POLICY = QueuePolicy()
DEAD_SUFFIX = ".dead"
# Dead letters are kept until somebody looks at them.
DEAD_LETTER_POLICY = QueuePolicy(deliveries_max=0, dead_letter="")


class QueueInfo(msgspec.Struct, array_like=True, frozen=True):
    """A queue as the catalogue knows it."""

    queue_id: int
    name: str
    durable: bool = True
    policy: QueuePolicy = DEFAULT_POLICY
    # Whether it is an alias, with replicas that hold its messages.
    elastic: bool = False
    # Of a replica: the alias, and which one it is; 0: it is none.
    alias_id: int = 0
    number: int = 0

    @property
    def title(self) -> str:
        """For sentences, in the words of its users: `'orders'`, or `'orders', replica 2`."""
        if not self.alias_id:
            return repr(self.name)
        # Its own name is that of the logical queue, a mark and the number.
        return f"{self.name.rpartition('#')[0]!r}, replica {self.number}"


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """One delivery that came to nothing."""

    at: float
    # "nack", "lease expired", "consumer gone"
    reason: str
    error: str | None = None


class DeathReason(enum.StrEnum):
    """Why a message was given up."""

    DELIVERIES = "deliveries"  # delivered as often as the queue allows
    REJECTED = "rejected"  # a consumer said that it is hopeless
    EXPIRED = "expired"
    OVERFLOW = "overflow"


class Death(msgspec.Struct, array_like=True, frozen=True):
    """How a message came to be a dead letter; one for each time that it did."""

    queue: str
    reason: DeathReason
    error: str | None
    deliveries: int
    at: float
    message_id: int
    failures: list[Failure] = []
    # What it has again when it is sent back.
    receiver: int | None = None
    group: str | None = None
    tenant: str | None = None


class Attributes(msgspec.Struct, array_like=True, frozen=True):
    """What a message may carry beside its payload; most carry none of it."""

    content_type: str | None = None
    headers: dict[str, str] | None = None
    # One message of a group is in flight at a time, in order.
    group: str | None = None
    # Capacity is shared over tenants.
    tenant: str | None = None
    # Of messages with the same one, within the queue's window, the first is stored.
    dedup_id: str | None = None
    # Seconds since 1970: not before, and not after.
    deliver_at: float | None = None
    expires_at: float | None = None
    # Dead letters only, the latest last.
    deaths: list[Death] | None = None
