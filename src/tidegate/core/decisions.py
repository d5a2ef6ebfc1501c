"""Samples of queues and machines, actions of control loops, and decisions.

Samples of HTTP services are in the module about services.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tidegate.core.fleet import MachineState, SlotKind
from tidegate.core.replication import ReplicaState, Role

# The service of decisions about machines; no queue can have this name.
FLEET = "#fleet"
# The law of decisions that record a human's override.
PERSON = "person"


class ReplicaSample(msgspec.Struct, frozen=True, kw_only=True):
    """One replica over the last period."""

    number: int
    state: ReplicaState = ReplicaState.SERVING
    # p_i and c_i: messages put and acknowledged per second.
    produced_per_s: float = 0.0
    consumed_per_s: float = 0.0
    # l_i: ready messages, and delivered unacknowledged ones.
    waiting: int = 0
    unacknowledged: int = 0
    oldest_age_s: float = 0.0
    # N_i and M_i.
    producers: int = 0
    consumers: int = 0
    share: float = 0.0
    machine_id: int | None = None
    # Since it began to serve.
    age_s: float = 0.0
    # Whether its owner answered.
    reachable: bool = True
    # Reads and subscriptions with credit that wait for messages.
    waiting_consumers: int = 0

    @property
    def is_attended(self) -> bool:
        """Whether any client consumes from it."""
        return bool(self.consumers or self.waiting_consumers or self.consumed_per_s > 0.0)

    @property
    def is_empty(self) -> bool:
        """Whether it has no messages and no clients."""
        return not (self.waiting or self.unacknowledged or self.producers or self.consumers)


class QueueSample(msgspec.Struct, frozen=True, kw_only=True):
    """A logical queue over the last period."""

    queue: str
    # Seconds, by the loop's own clock.
    at: float
    replicas: list[ReplicaSample]
    # Messages put to the logical queue, for all replicas.
    arrived_per_s: float = 0.0
    # Messages that wait at the alias.
    alias_waiting: int = 0
    # Replicas that were ordered and wait for a machine to boot.
    pending: int = 0
    # Free slots on running machines; `None` means not known.
    slots_free: int | None = None
    # Whether the fleet keeps a machine warm.
    keeps_warm: bool = False
    # The largest of the CPU, memory and store-wait loads; 1 means busy.
    resource_load: float = 0.0
    # The age of the oldest measurement in it.
    age_s: float = 0.0
    # Whether consumers are at every replica, and come to a new one by themselves.
    consumers_roam: bool = False


class MachineSample(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, as the provisioner uses it."""

    machine_id: int
    state: MachineState
    slots: int
    used: int = 0
    host: str | None = None
    # Grows with every machine; the newest one has the largest value.
    added_at: float = 0.0
    # Draining replicas among the used slots; their slots become free.
    draining: int = 0


# Actions


class AddReplica(msgspec.Struct, frozen=True, tag=True):
    """Add replicas, as soon as there are slots for them."""

    count: int = 1


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Begin to remove a replica; its share decreases step by step."""

    number: int


class CancelDrain(msgspec.Struct, frozen=True, tag=True):
    """Keep a replica that was being drained."""

    number: int


class Retire(msgspec.Struct, frozen=True, tag=True):
    """Remove an empty replica and free its slot."""

    number: int


class CancelPending(msgspec.Struct, frozen=True, tag=True):
    """Cancel ordered replicas that have no slot yet."""

    count: int


class SetShares(msgspec.Struct, frozen=True, tag=True):
    """Set the shares of new messages, by number of the replica."""

    shares: dict[int, float]


class Exchange(msgspec.Struct, frozen=True, tag=True):
    """Move about `count` waiting messages, in whole segments; source 0 is the alias."""

    source: int
    target: int
    count: int


class Migrate(msgspec.Struct, frozen=True, tag=True):
    """Move `count` connected clients to another replica."""

    role: Role
    source: int
    target: int
    count: int = 1


class KeepUp(msgspec.Struct, frozen=True, tag=True):
    """Control the prefetch of a queue's consumers, so that they keep up with their handlers."""


Action: TypeAlias = (
    AddReplica
    | Drain
    | CancelDrain
    | Retire
    | CancelPending
    | SetShares
    | Exchange
    | Migrate
    | KeepUp
)


class Boot(msgspec.Struct, frozen=True, tag=True):
    """Boot a machine; `warm` means that no replica or instance waits for it yet."""

    slots: int
    warm: bool = False
    host: str | None = None


class Halt(msgspec.Struct, frozen=True, tag=True):
    """Halt a machine that is not needed any more."""

    machine_id: int


class Place(msgspec.Struct, frozen=True, tag=True):
    """Place a replica of a queue, or an instance of a service, in a slot of a machine."""

    # The name of the queue or service.
    queue: str
    machine_id: int
    kind: SlotKind = SlotKind.REPLICA


FleetAction: TypeAlias = Boot | Halt | Place


# Actions about HTTP services: changes inside instances come first, then their number.


class SetConcurrency(msgspec.Struct, frozen=True, tag=True):
    """Set how many requests an instance may have at a time."""

    instance_id: int
    concurrency: int


class Weigh(msgspec.Struct, frozen=True, tag=True):
    """Set the weights by which doors distribute requests among instances that are not spares."""

    weights: dict[int, float]


class Promote(msgspec.Struct, frozen=True, tag=True):
    """Let a spare instance serve."""

    instance_id: int


class MakeSpare(msgspec.Struct, frozen=True, tag=True):
    """Keep an instance that is not needed now as a spare."""

    instance_id: int


class AddInstance(msgspec.Struct, frozen=True, tag=True):
    """Add instances, as soon as there are slots for them."""

    count: int = 1
    is_spare: bool = False


class DrainInstance(msgspec.Struct, frozen=True, tag=True):
    """Send nothing new to an instance; it is removed when it has answered its requests."""

    instance_id: int


class RemoveInstance(msgspec.Struct, frozen=True, tag=True):
    """Remove an instance that has no requests left, or that failed, and free its slot."""

    instance_id: int


class Admit(msgspec.Struct, frozen=True, tag=True):
    """Limit the requests in doors, which refuse all others; `None` means no limit."""

    in_flight_max: int | None


HostingAction: TypeAlias = (
    SetConcurrency
    | Weigh
    | Promote
    | MakeSpare
    | AddInstance
    | DrainInstance
    | RemoveInstance
    | Admit
)

AnyAction: TypeAlias = Action | FleetAction | HostingAction

# Actions among the existing replicas or instances, which do not change their number.
WITHIN = SetShares | Exchange | Migrate | KeepUp | Weigh


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of a control loop with its reasons.

    It is recorded as telemetry, and shown by the console and `tidegate explain`.
    """

    at: float
    # "queue", "fleet" or "http".
    loop: str
    # The queue, FLEET, or `decision_subject` of a service.
    service: str
    law: str
    # The rule of the law, in a few words: "avg_load > max_load", "R5", "held: stale".
    rule: str
    inputs: dict[str, float] = {}
    outputs: dict[str, float] = {}
    actions: list[AnyAction] = []
    # Sentences for people: the reason, and what would have changed the decision.
    reason: str = ""
    otherwise: str = ""
    # `False` means recommended only, or refused on the way; `outcome` has the reason.
    carried_out: bool = True
    outcome: str = ""
    # The user or client, if the law is an override.
    by: str = ""

    @property
    def is_worth_keeping(self) -> bool:
        """Whether it contains an action other than the regular change of shares."""
        return any(not isinstance(action, SetShares) for action in self.actions)
