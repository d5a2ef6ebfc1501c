"""Logical queues and their replicas.

    orders            the alias: a queue with number 0, whose name producers and consumers use
    orders#1 orders#2 its replicas: queues with an owner, an epoch and a store of their own

A replica is a queue: leases, fencing, segments and marks work the same. This module adds which
queues belong together, which share of new messages each replica gets, and which replica is assigned
to messages that must stay together. The high bits of a queue id are the number of its store.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.core.errors import ChangedMeanwhile, InvalidValue
from tidegate.core.text import (
    DURATION_IS,
    expected_type,
    format_duration,
    parse_duration_s,
    redacted_value,
    suggestion_for,
)

# The queue ids of store n start at n << STORE_SHIFT, so the id of a queue identifies its store.
STORE_SHIFT = 24
# The number of the alias, where the number of a replica is expected.
ALIAS = 0
# Groups, receivers and dedup ids are hashed to this many slots. A slot is assigned to one replica.
ASSIGNMENT_SLOTS = 64
REPLICA_MARK = "#"


class MemberRole(enum.StrEnum):
    """The role in which a client joins a logical queue."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class ReplicaState(enum.StrEnum):
    """The state of a replica."""

    STARTING = "starting"  # it exists, and no node serves it yet
    SERVING = "serving"
    DRAINING = "draining"  # it gets no new messages and clients, and is removed when empty


class ReplicaInfo(msgspec.Struct, array_like=True, frozen=True):
    """A replica as the catalogue knows it."""

    queue_id: int
    number: int
    state: ReplicaState = ReplicaState.STARTING
    # Its share of new messages, 0 to 1. The shares of all replicas add up to 1, or all are 0.
    share: float = 0.0
    # The machine that is to serve it; `None` means any node.
    machine_id: int | None = None
    # The address of its living owner; `None` means that no node serves it.
    address: str | None = None

    @property
    def store_number(self) -> int:
        return self.queue_id >> STORE_SHIFT


class Topology(msgspec.Struct, array_like=True, frozen=True):
    """The replicas of a logical queue, and where its messages go."""

    queue_id: int
    queue: str
    # Grows with every change of the fields below.
    version: int
    scaling: Scaling
    replicas: list[ReplicaInfo] = []
    # The number of a replica for each assignment slot. A negative number means that the slot is
    # moving to that replica and is closed: replicas hand over its messages and accept no new ones,
    # so that no message overtakes another. The leader opens it when no other replica has messages
    # of it.
    homes: list[int] = []

    def replica(self, number: int) -> ReplicaInfo | None:
        return next((place for place in self.replicas if place.number == number), None)

    def home_of(self, key: str | int) -> int | None:
        """Return the number of the replica assigned to a group or receiver.

        `None` means that the queue has no assignments.
        """
        if not self.homes:
            return None
        return abs(self.homes[assignment_slot(key)])

    def is_home(self, number: int) -> bool:
        """Return whether any slot is assigned to a replica, or moving to it."""
        return number in self.homes or -number in self.homes


def assignment_slot(key: str | int) -> int:
    """Return the assignment slot of a group (by name) or receiver (by id).

    All programs compute the same slot.
    """
    return zlib.crc32(str(key).encode()) % ASSIGNMENT_SLOTS


def assignment_key(
    receiver: int | None, group: str | None, dedup_id: str | None
) -> str | int | None:
    """Return the key of a message's assignment slot; `None` if it may go to any replica.

    The receiver takes precedence, since receivers read at their assigned replica.
    """
    return receiver if receiver is not None else group or dedup_id


def share_store(queue_id: int, other_id: int) -> bool:
    """Return whether two queues are in the same store, so that one transaction can change both."""
    return queue_id >> STORE_SHIFT == other_id >> STORE_SHIFT


def scaling_changed_meanwhile(queue: int | str) -> ChangedMeanwhile:
    """Return the error for the second of two clients that change a scaling at the same time."""
    return ChangedMeanwhile(
        f"somebody else has changed how queue {queue!r} scales meanwhile: look at it, and say it "
        "again"
    )


def replica_name(queue: str, number: int) -> str:
    return f"{queue}{REPLICA_MARK}{number}"


def logical_name(name: str) -> str:
    """Return the name that users know: `orders` for `orders#2`."""
    head, mark, tail = name.rpartition(REPLICA_MARK)
    return head if mark and head and tail.isdigit() else name


class SegmentMove(NamedTuple):
    """Whole segments that move from one queue to another, fenced by both epochs."""

    # Unique, made by the mover. A move that was copied under it is not copied again, and a refused
    # move may stay refused. Use the same id again only after an unknown result.
    move_id: str
    source: int
    source_epoch: int
    target: int
    target_epoch: int
    first_ids: Sequence[int]
    # Ids in the target, from a block that its owner has reserved.
    new_first_ids: Sequence[int]


class ReplicationStore(Protocol):
    """The part of a store that keeps logical queues.

    Changes need the leader's epoch; an older one raises `StaleEpoch`.
    """

    # `None` makes it a plain queue; returns `False` if there are replicas. With `before`, changes
    # the scaling only if it equals `before` (`None`: plain), else raises ChangedMeanwhile.
    async def set_scaling(
        self, queue_id: int, scaling: Scaling | None, before: Scaling | UnsetType | None = UNSET
    ) -> bool: ...
    async def topology(self, queue_id: int) -> Topology | None: ...
    async def topologies(self) -> list[Topology]: ...
    # Changes after every change of any topology; cheap enough to ask many times a second.
    async def topology_version(self) -> int: ...
    # The number is the smallest that was never used. Without `store_number`, the store with the
    # fewest replicas is used.
    async def add_replica(
        self,
        queue_id: int,
        leader_epoch: int,
        *,
        machine_id: int | None = None,
        store_number: int | None = None,
    ) -> ReplicaInfo | None: ...
    async def assign_replica(
        self, queue_id: int, number: int, machine_id: int | None, leader_epoch: int
    ) -> bool: ...
    async def set_replica_state(
        self, queue_id: int, number: int, state: ReplicaState, leader_epoch: int
    ) -> bool: ...
    # Shares are scaled to a sum of 1, or stay 0. A replica that is not named gets 0.
    async def set_shares(
        self, queue_id: int, shares: dict[int, float], leader_epoch: int
    ) -> bool: ...
    async def set_homes(self, queue_id: int, homes: Sequence[int], leader_epoch: int) -> bool: ...
    # Delete a draining replica. `False` means that messages are still stored in it. Its stored
    # batches stay known (`marks`) until marks are deleted.
    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool: ...
    # Replicas that a machine is to serve.
    async def assigned(self, machine_id: int) -> list[ReplicaInfo]: ...
    # One transaction, or a copy and a deletion if the stores differ. Segments that the source no
    # longer has are left out. Returns `False` if an epoch is out of date. `Unavailable`: call again
    # with the same move. `IoFailure`: the result is unknown, and the node that loads the queue
    # completes the move. Another error: nothing was moved.
    async def move(self, move: SegmentMove) -> bool: ...
    # Whether a move has reached its target. If not, it never will. For a target that got no answer.
    async def has_arrived(self, move_id: str, target: int) -> bool: ...
    # Complete moves of this queue that a mover left unfinished; its owner calls this when loading
    # it. Returns the number of moves, whose messages are in the target or back in this queue. Call
    # until it returns 0. `Unavailable`: moves are left that cannot be completed now; their messages
    # are not in the queue.
    async def finish_moves(self, queue_id: int, epoch: int) -> int: ...


# The settings of how a logical queue scales, named as in KEDA where they mean the same.
#
# In a settings file:
#
#     [queues.orders]
#     replicas = { min = 1, max = 8 }       KEDA: minReplicaCount, maxReplicaCount
#     policy = "feed-forward"
#     max_wait = "2s"                       the longest wait; max_load follows from it
#     worker = "shop.jobs:app"
#     slots_per_machine = 2
#     polling_interval = "1s"               KEDA: pollingInterval
#     cooldown_period = "60s"               KEDA: cooldownPeriod, here before every scale-in


REPLICAS_MAX = 10_000
# A policy that predicts the load need not add replicas one by one.
STEP_MAX_AHEAD = 4


class ScalingPolicy(enum.StrEnum):
    """The law that decides how many replicas there are."""

    FIXED = "fixed"  # always `replicas.min` replicas
    LOAD = "load"  # Elastic queues: waiting messages per replica stay between min_load and max_load
    CLIENTS = "clients"  # Replicated queues: clients compared with the capacity for clients
    FEED_FORWARD = "feed-forward"  # predicted arrival rate, corrected by oldest age
    LENGTH = "length"  # KEDA: waiting messages divided by queue_length
    AGREEMENT = "agreement"  # the waits, oldest age and throughput that the agreement promises


class ControlMode(enum.StrEnum):
    """Whether the law's decisions are executed."""

    AUTO = "auto"
    RECOMMEND = "recommend-only"  # decisions are made and explained, but not executed
    MANUAL = "manual"  # an override: `replicas_wanted` replicas


class Provisioning(enum.StrEnum):
    """Which machine gets a new replica."""

    ENERGY = "energy"  # the fewest machines, then the fewest hosts
    PERFORMANCE = "performance"  # a machine each, on the least loaded host


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least and the most replicas."""

    min: int = 1
    max: int = 1


class Scaling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a logical queue scales. Loads are waiting messages per replica."""

    replicas: Range = Range()
    policy: ScalingPolicy = ScalingPolicy.LOAD
    steering: ControlMode = ControlMode.AUTO
    # The number of replicas if `steering` is manual.
    replicas_wanted: int | None = None
    min_load: float = 50.0
    max_load: float = 200.0
    # The longest wait of a message; if given, max_load is this time multiplied by a replica's rate.
    max_wait_s: float | None = None
    # Target of the policy "length": waiting messages per replica.
    queue_length: float = 100.0
    # Policy "clients": the best number of clients per replica. `None` means the learned one, or 3.
    capacity_clients: float | None = None
    # Messages per second of one replica with its workers; `None` means measured.
    capacity_per_s: float | None = None
    # Between two decisions.
    polling_interval_s: float = 1.0
    # The pause after a scale-up, until its effect can be measured (the papers' inhibition).
    inhibition_s: float = 10.0
    # The pause before a scale-in after any change.
    cooldown_period_s: float = 60.0
    # The most replicas that one decision may add or begin to remove. `None` means 4 for
    # feed-forward and agreement, else 1.
    step_max: int | None = None
    # Older measurements are not used.
    stale_s: float = 5.0
    # How long a scale-up that lowered throughput is remembered.
    reversal_memory_s: float = 600.0
    # The code that a replica's workers run; `None` means that workers are started by other means.
    worker: str | None = None
    workers_per_replica: int = 1
    # An artificial limit on deliveries per replica, for experiments on one computer; `None` means
    # none.
    rate_max_per_s: float | None = None
    slots_per_machine: int = 1
    provisioning: Provisioning = Provisioning.ENERGY
    # Machines kept warm. `None` means computed from learned or given values, else 0.
    warm: int | None = None
    boot_s: float | None = None
    # The largest growth of the arrival rate to keep up with, in msg/s².
    sla_delta: float | None = None
    # An override of the shares, by number of the replica; `None` means that the law decides.
    shares: dict[int, float] | None = None
    # The agreement as TOML. It is evaluated under every policy, and obeyed under "agreement".
    agreement: str | None = None

    @property
    def replicas_per_step(self) -> int:
        """`step_max`, or the best value for the policy (docs/simulation.md)."""
        if self.step_max is not None:
            return self.step_max
        ahead = (ScalingPolicy.FEED_FORWARD, ScalingPolicy.AGREEMENT)
        return STEP_MAX_AHEAD if self.policy in ahead else 1


DEFAULT_SCALING = Scaling()


# The scaling of a queue as text, in settings and on a command line, and its checks.
#
#     max_wait = "2s"        a duration: the field is max_wait_s
#     min, max               of replicas, as in replicas = { min = 1, max = 8 }
#     warm = "none"          no value: the learned one is used
#
# Every error names the key, the given value and the allowed values.


SLOTS_MAX = 1_000
# It is sent with the topology to all clients that ask for one.
AGREEMENT_CHARACTERS_MAX = 16_384
_FIELDS = {field.name: field for field in msgspec.structs.fields(Scaling)}
_WORKER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAME = re.compile(r"""^\s*name\s*=\s*["']([^"'\n]{1,100})["']""", re.MULTILINE)
# Larger values make no sense, and some stores cannot keep them.
_MOST = 1e12
_BOUNDS = ("min", "max")


def _is_duration(field: str) -> bool:
    return field.endswith("_s") and not field.endswith("_per_s")


# By key in the text: the field.
KEYS = {name.removesuffix("_s") if _is_duration(name) else name: name for name in _FIELDS}


def with_scaling_keys(scaling: Scaling, changes: Mapping[str, Any]) -> Scaling:
    """Return the scaling with some keys changed; `InvalidValue` if it is not usable."""
    fields: dict[str, Any] = {}
    bounds = {"min": scaling.replicas.min, "max": scaling.replicas.max}
    for key, value in changes.items():
        if key in _BOUNDS:
            bounds[key] = _converted(key, value, int)
        elif key == "replicas":
            replicas = _converted(key, value, Range)
            bounds = {"min": replicas.min, "max": replicas.max}
        else:
            field = scaling_field(key)
            fields[field] = _value(key, field, value)
    found = msgspec.structs.replace(scaling, replicas=Range(**bounds), **fields)
    if wrong := scaling_problems(found):
        raise InvalidValue("; ".join(wrong))
    return found


def scaling_field(key: str) -> str:
    """Return the field of a key; `max_wait` and `max-wait` are `max_wait_s`."""
    name = key.replace("-", "_")
    field = KEYS.get(name, name)
    if field not in _FIELDS:
        raise InvalidValue(f"{key}: there is no such key{suggestion_for(name, [*KEYS, *_BOUNDS])}")
    return field


def _value(key: str, field: str, value: Any) -> Any:
    kind = _FIELDS[field].type
    if isinstance(value, str) and value.lower() == "none":
        return _converted(key, None, kind)
    if _is_duration(field) and isinstance(value, str):
        try:
            return parse_duration_s(value)
        except InvalidValue:
            raise InvalidValue(f"{key} = {redacted_value(value)}: must be {DURATION_IS}") from None
    if field == "shares" and isinstance(value, Mapping):
        # The keys of TOML and JSON are text.
        value = {_number(one): part for one, part in value.items()}
    return _converted(key, value, kind)


def _number(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else text


def _converted(key: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        must = "{ min = 1, max = 8 }, in whole numbers" if kind is Range else expected_type(kind)
        raise InvalidValue(f"{key} = {redacted_value(value)}: must be {must}") from None


def format_scaling_keys(scaling: Scaling) -> dict[str, Any]:
    """Return every key in its text form; an agreement by its name, `None` for no value."""
    shown_as: dict[str, Any] = {}
    for key, field in KEYS.items():
        value = getattr(scaling, field)
        if isinstance(value, Range):
            value = {"min": value.min, "max": value.max}
        elif _is_duration(field) and value is not None:
            value = format_duration(value)
        elif field == "agreement" and value is not None:
            value = format_agreement_name(value)
        elif field == "shares" and value is not None:
            value = ", ".join(f"{number}: {part:.3g}" for number, part in sorted(value.items()))
        shown_as[key] = value
    return shown_as


def format_agreement_name(text: str) -> str:
    """Return a short form of an agreement: its name and a hash of its text."""
    name = _NAME.search(text)
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[1]} ({mark})" if name else mark


def scaling_problems(scaling: Scaling) -> list[str]:
    """Return the problems of a scaling; an empty list means that it is usable."""
    found = []
    least, most = scaling.replicas.min, scaling.replicas.max
    if not 0 <= least <= most:
        found.append(f"replicas min {least}, max {most}: must be 0 ≤ min ≤ max")
    if not 1 <= most <= REPLICAS_MAX:
        found.append(f"replicas max {most}: must be between 1 and {REPLICAS_MAX}")
    if scaling.steering is ControlMode.MANUAL and scaling.replicas_wanted is None:
        found.append('steering = "manual": must say replicas_wanted too')
    wanted = scaling.replicas_wanted
    if wanted is not None and not least <= wanted <= most:
        told = f"replicas_wanted {wanted}: must be between min {least} and max {most}"
        if scaling.steering is ControlMode.MANUAL:
            told += "; steering is manual: say how many (--to), or let the policy decide (--auto)"
        found.append(told)
    # Reject infinity, too: JSON has none, and a queue that cannot be read back stops all control
    # loops.
    if not 0.0 <= scaling.min_load < scaling.max_load < math.inf:
        found.append(
            f"min_load {scaling.min_load:g}, max_load {scaling.max_load:g}: must be "
            "0 ≤ min_load < max_load, both finite"
        )
    found += _above(scaling, "polling_interval_s", least=0.1)
    found += _above(scaling, "stale_s", least=0.1)
    for field in ("queue_length", "capacity_clients", "capacity_per_s", "max_wait_s"):
        found += _above(scaling, field)
    found += _above(scaling, "rate_max_per_s")
    for field in ("inhibition_s", "cooldown_period_s", "reversal_memory_s", "boot_s", "sla_delta"):
        found += _above(scaling, field, least=0.0)
    for field in ("step_max", "workers_per_replica", "slots_per_machine"):
        found += _above(scaling, field, least=1, most=SLOTS_MAX)
    found += _above(scaling, "warm", least=0, most=SLOTS_MAX)
    found += _about_shares(scaling.shares)
    if scaling.policy is ScalingPolicy.AGREEMENT and scaling.agreement is None:
        found.append(
            'policy = "agreement": must have an agreement to obey: say which (--agreement)'
        )
    if scaling.agreement is not None and len(scaling.agreement) > AGREEMENT_CHARACTERS_MAX:
        found.append(
            f"agreement of {len(scaling.agreement)} characters: must be at most "
            f"{AGREEMENT_CHARACTERS_MAX}"
        )
    if scaling.worker is not None and not _WORKER.fullmatch(scaling.worker):
        found.append(
            f"worker {redacted_value(scaling.worker)}: must be module:app, such as shop.jobs:app"
        )
    return found


def _about_shares(shares: dict[int, float] | None) -> list[str]:
    if shares is None:
        return []
    parts = shares.values()
    if not all(number >= 1 for number in shares) or len(shares) > REPLICAS_MAX:
        return ["shares: must be by numbers of replicas, from 1"]
    if not all(0.0 <= part <= _MOST for part in parts) or not sum(parts) > 0.0:
        return ["shares: must be 0 or more for each replica, and not 0 for all"]
    return []


def _above(
    scaling: Scaling, field: str, least: float | None = None, most: float = _MOST
) -> list[str]:
    value = getattr(scaling, field)
    if value is None:
        return []
    is_fine = value > 0 if least is None else value >= least
    if is_fine and value <= most and math.isfinite(value):
        return []
    key = next(key for key, name in KEYS.items() if name == field)
    must = "above 0" if least is None else f"at least {least:g}"
    # The largest value is mentioned only if the value exceeds it.
    if most != _MOST or not value <= most:
        must += f" and at most {most:g}"
    return [f"{key} {value:g}: must be {must}"]
