"""The nouns that all packages share: clients, queues, and attributes of messages."""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from tidegate.core.errors import ChangedMeanwhile, InvalidValue, TooLarge
from tidegate.core.prefetch import PrefetchGoal

PRIORITY_LOWEST = 1
PRIORITY_DEFAULT = 5
PRIORITY_HIGHEST = 10


class ClientMode(enum.IntEnum):
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
    mode: ClientMode


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


def policy_changed_meanwhile(queue: int | str) -> ChangedMeanwhile:
    """Return the error for the second of two clients that change a policy at the same time."""
    return ChangedMeanwhile(
        f"somebody else has changed the policy of queue {queue!r} meanwhile: look at it, and say "
        "it again"
    )


DEAD_SUFFIX = ".dead"


DEFAULT_POLICY = QueuePolicy()
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


# Topics: a message published once goes to every subscription whose filter matches.
#
# A filter names headers, all of which must match. A list of values matches any of them:
#
#     {"region": "eu", "kind": ["order", "refund"]}
#
# matches messages with the header `region` equal to "eu" and the header `kind` equal to one of the
# two. No filter, or an empty one, matches every message.


Filter = dict[str, str | list[str]]
Ranges = list[tuple[int, int]]

FILTER_VALUES_MAX = 256
FILTER_LENGTH_MAX = 16 * 1024


class SubscriptionInfo(msgspec.Struct, array_like=True, frozen=True):
    """A queue that receives the messages published to a topic."""

    queue_id: int
    queue: str
    filter: Filter | None = None
    # False means that it is deleted with the connection that made it.
    durable: bool = True


class TopicInfo(msgspec.Struct, array_like=True, frozen=True):
    """A topic as the catalogue knows it."""

    topic_id: int
    name: str
    subscriptions: list[SubscriptionInfo] = []


def matches_filter(header_filter: Filter | None, attributes: Attributes | None) -> bool:
    """Return whether a message with these attributes matches a filter."""
    if not header_filter:
        return True
    headers = (attributes.headers if attributes is not None else None) or {}
    for name, wanted in header_filter.items():
        value = headers.get(name)
        if value is None or (value != wanted if isinstance(wanted, str) else value not in wanted):
            return False
    return True


def unmatched_offsets(
    header_filter: Filter | None, attributes: Sequence[Attributes | None] | None, count: int
) -> set[int]:
    """Return the offsets of those of `count` messages that do not match the filter."""
    if not header_filter:
        return set()
    if attributes is None:
        return set(range(count))
    return {n for n, each in enumerate(attributes) if not matches_filter(header_filter, each)}


def offset_ranges(offsets: set[int]) -> Ranges:
    """Return offsets as ranges [low, high)."""
    ranges: Ranges = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def check_filter(header_filter: object) -> None:
    """Raise `InvalidValue` for a bad filter, and `TooLarge` for one above the limits."""
    if header_filter is None:
        return
    if not isinstance(header_filter, dict):
        raise InvalidValue(f"a filter is a dict of headers, not {type(header_filter).__name__}")
    texts: list[str] = []
    for name, wanted in header_filter.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if not values or not all(isinstance(text, str) for text in (name, *values)):
            raise InvalidValue(
                f"a filter gives a header's value as a string, or a list of them, not "
                f"{name!r}: {wanted!r}"
            )
        texts += [name, *values]
    if len(texts) > FILTER_VALUES_MAX or sum(map(len, texts)) > FILTER_LENGTH_MAX:
        raise TooLarge(
            f"a filter has at most {FILTER_VALUES_MAX} names and values and {FILTER_LENGTH_MAX} "
            "characters in all"
        )
    if any("\x00" in text for text in texts):
        raise InvalidValue("filters cannot hold NUL characters")


# Users, their roles, and the store of users.


class Right(enum.StrEnum):
    """What a request needs on each queue it names; all but `SEE` are granted as roles."""

    SEE = "see"  # included in every role on the queue
    READ = "read"
    WRITE = "write"
    CONFIGURE = "configure"
    ADMIN = "admin"  # includes all the others


ROLES = (Right.READ, Right.WRITE, Right.CONFIGURE, Right.ADMIN)


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """A role on all queues whose name matches the pattern; `*` matches any characters."""

    role: Right
    pattern: str


class PasswordKeys(msgspec.Struct, frozen=True):
    """What the store keeps of a password: it can verify a login, and cannot be used to log in."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "Keys(***)"


class User(msgspec.Struct, frozen=True):
    """A user as the store keeps it."""

    name: str
    keys: PasswordKeys
    grants: list[Grant] = []


class UserStore(Protocol):
    """The part of a store that keeps users; all nodes of the cluster share it."""

    async def add_user(self, user: User) -> bool: ...
    async def set_user_keys(self, name: str, keys: PasswordKeys) -> bool: ...
    async def set_user_grants(self, name: str, grants: list[Grant]) -> bool: ...
    # Also deletes the clients of the user.
    async def remove_user(self, name: str) -> bool: ...
    async def list_users(self) -> list[User]: ...
    # Changes after every change of any user.
    async def users_version(self) -> int: ...
    # The secret by which nodes of a cluster recognise each other. The first candidate is stored.
    async def cluster_secret(self, candidate: bytes) -> bytes: ...


# Message ids as ranges [first, last].


IdRange = tuple[int, int]

_BEHIND_ALL = 1 << 63


def merge_ranges(ranges: Iterable[IdRange]) -> list[IdRange]:
    """Return the same ids as sorted ranges that neither overlap nor touch."""
    apart: list[IdRange] = []
    for first, last in sorted(ranges):
        if apart and first <= apart[-1][1] + 1:
            apart[-1] = (apart[-1][0], max(apart[-1][1], last))
        else:
            apart.append((first, last))
    return apart


def contains_id(ranges: list[IdRange], message_id: int) -> bool:
    """Return whether sorted, disjoint ranges contain an id."""
    at = bisect_right(ranges, (message_id, _BEHIND_ALL)) - 1
    return at >= 0 and message_id <= ranges[at][1]


# What a user may do with a queue: nothing, unless a grant allows it.
#
#     read        take, browse and settle messages
#     write       put messages
#     configure   create, delete, purge, pause, change the policy
#     admin       all of these, move queues, and set the prefetch of other clients' consumers
#
# Each role is granted on a pattern of queue names. Any role lets the user see that the queue
# exists. A dead-letter queue is a queue of its own: `orders` does not match `orders.dead`,
# `orders*` does.


ALL_QUEUES = "*"
_PATTERN_LENGTH_MAX = 255
# The number of cached answers. The cache is cleared when full, so that many names cannot fill
# memory.
_REMEMBERED_MAX = 10_000


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in one pass for any number of stars."""
    first, *others = pattern.split("*")
    if not others:
        return name == pattern
    *middle, last = others
    if not name.startswith(first):
        return False
    position = len(first)
    for part in middle:
        found = name.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return len(name) - len(last) >= position and name.endswith(last)


def check_pattern(pattern: str) -> str:
    if not 0 < len(pattern) <= _PATTERN_LENGTH_MAX or not pattern.isprintable():
        raise InvalidValue(
            f"a pattern is the name of a queue, with * for any characters, not {pattern!r}"
        )
    return pattern


class Permissions:
    """The grants of one user, with cached answers."""

    __slots__ = ("_grants", "_remembered", "is_everything")

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants = {role: [g.pattern for g in grants if g.role is role] for role in ROLES}
        self._remembered: dict[tuple[Right, str], bool] = {}
        # True means that no single check is needed.
        self.is_everything = ALL_QUEUES in self._grants[Right.ADMIN]

    def allows(self, right: Right, queue: str) -> bool:
        if self.is_everything:
            return True
        known = self._remembered.get((right, queue))
        if known is None:
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            known = self._remembered[right, queue] = self._look(right, queue)
        return known

    def _look(self, right: Right, queue: str) -> bool:
        roles = ROLES if right is Right.SEE else (right, Right.ADMIN)
        return any(
            matches_pattern(pattern, queue) for role in roles for pattern in self._grants[role]
        )


ALL_PERMISSIONS = Permissions([Grant(Right.ADMIN, ALL_QUEUES)])
NO_PERMISSIONS = Permissions([])
