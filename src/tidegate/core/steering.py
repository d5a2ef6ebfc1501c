"""What loops see, decide and do: samples of queues and machines, actions, explained decisions.

What loops see of an HTTP service is in `core.hosting`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tidegate.core.fleet import MachineState, SlotKind
from tidegate.core.replication import ReplicaState, Role

# The service of decisions about machines; no queue can be called so.
FLEET = "#fleet"
# The law of what somebody has changed by hand.
PERSON = "person"


class ReplicaSample(msgspec.Struct, frozen=True, kw_only=True):
    """One replica over the last period."""

    number: int
    state: ReplicaState = ReplicaState.SERVING
    # p_i and c_i: messages put and acknowledged a second.
    produced_per_s: float = 0.0
    consumed_per_s: float = 0.0
    # l_i: ready messages, and those in consumers' hands.
    waiting: int = 0
    unacknowledged: int = 0
    oldest_age_s: float = 0.0
    # N_i and M_i.
    producers: int = 0
    consumers: int = 0
    share: float = 0.0
    machine_id: int | None = None
    # Since it serves.
    age_s: float = 0.0
    # Whether its owner answered.
    reachable: bool = True
    # Reads and subscriptions with credit that have nothing to do.
    waiting_consumers: int = 0

    @property
    def is_attended(self) -> bool:
        """Whether anybody consumes from it."""
        return bool(self.consumers or self.waiting_consumers or self.consumed_per_s > 0.0)

    @property
    def is_empty(self) -> bool:
        """Nothing in it, and nobody at it."""
        return not (self.waiting or self.unacknowledged or self.producers or self.consumers)


class QueueSample(msgspec.Struct, frozen=True, kw_only=True):
    """A logical queue over the last period."""

    queue: str
    # Seconds, of the loop's own clock.
    at: float
    replicas: list[ReplicaSample]
    # What came to the logical queue, wherever it went.
    arrived_per_s: float = 0.0
    # The alias's own backlog.
    alias_waiting: int = 0
    # Replicas that were ordered and have no place yet: a machine is booting for them.
    pending: int = 0
    # Slots without a replica on machines that run; None: not known.
    slots_free: int | None = None
    # Whether the fleet keeps a machine warm.
    keeps_warm: bool = False
    # The largest of CPU, memory and store-wait loads; 1: busy.
    resource_load: float = 0.0
    # How old the oldest measurement in it is.
    age_s: float = 0.0
    # Consumers are at every replica, and come to a new one by themselves.
    consumers_roam: bool = False


class MachineSample(msgspec.Struct, frozen=True, kw_only=True):
    """One machine as the provisioner sees it."""

    machine_id: int
    state: MachineState
    slots: int
    used: int = 0
    host: str | None = None
    # Counts up with every machine; the newest has the largest.
    added_at: float = 0.0
    # Draining replicas among the used: they will be free.
    draining: int = 0


# What to do


class AddReplica(msgspec.Struct, frozen=True, tag=True):
    """Another replica, as soon as there is a slot for it."""

    count: int = 1


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Begin to remove a replica; its share goes down step by step."""

    number: int


class CancelDrain(msgspec.Struct, frozen=True, tag=True):
    """It stays after all."""

    number: int


class Retire(msgspec.Struct, frozen=True, tag=True):
    """It is empty: remove it, and free its slot."""

    number: int


class CancelPending(msgspec.Struct, frozen=True, tag=True):
    """Replicas that were ordered and have no slot yet are not needed any more."""

    count: int


class SetShares(msgspec.Struct, frozen=True, tag=True):
    """Parts of new messages, by number of the replica."""

    shares: dict[int, float]


class Exchange(msgspec.Struct, frozen=True, tag=True):
    """Move about so many waiting messages, in whole segments; source 0 is the alias."""

    source: int
    target: int
    count: int


class Migrate(msgspec.Struct, frozen=True, tag=True):
    """Let so many connected clients go over to another replica."""

    role: Role
    source: int
    target: int
    count: int = 1


class KeepUp(msgspec.Struct, frozen=True, tag=True):
    """The prefetch of a queue's consumers is steered, to keep up with their handlers."""


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
    """Another machine; `warm` when nothing waits for it yet."""

    slots: int
    warm: bool = False
    host: str | None = None


class Halt(msgspec.Struct, frozen=True, tag=True):
    """A machine is not needed any more."""

    machine_id: int


class Place(msgspec.Struct, frozen=True, tag=True):
    """A replica of a queue, or an instance of a service, comes to a slot of a machine."""

    # The queue or the service.
    queue: str
    machine_id: int
    kind: SlotKind = SlotKind.REPLICA


FleetAction: TypeAlias = Boot | Halt | Place


# What to do about an HTTP service: first inside its instances, then how many there are


class SetConcurrency(msgspec.Struct, frozen=True, tag=True):
    """So many requests at a time may an instance have."""

    instance_id: int
    concurrency: int


class Weigh(msgspec.Struct, frozen=True, tag=True):
    """What doors give each instance beside the others; none of them is a spare, nor becomes one."""

    weights: dict[int, float]


class Promote(msgspec.Struct, frozen=True, tag=True):
    """A spare serves from now on."""

    instance_id: int


class MakeSpare(msgspec.Struct, frozen=True, tag=True):
    """An instance is not needed for now, and stays as a spare."""

    instance_id: int


class AddInstance(msgspec.Struct, frozen=True, tag=True):
    """Another instance, as soon as there is a slot for it."""

    count: int = 1
    is_spare: bool = False


class DrainInstance(msgspec.Struct, frozen=True, tag=True):
    """Nothing new comes to an instance; it goes when it has answered what it has."""

    instance_id: int


class RemoveInstance(msgspec.Struct, frozen=True, tag=True):
    """An instance has nothing left, or failed: it goes, and its slot is free."""

    instance_id: int


class Admit(msgspec.Struct, frozen=True, tag=True):
    """Doors have so many requests in hand at most and refuse the others; None: no bound."""

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

# What goes on among the replicas that there are, and changes nothing about how many.
WITHIN = SetShares | Exchange | Migrate | KeepUp | Weigh


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a loop has decided, and why: for telemetry, the console and `tidegate explain`."""

    at: float
    # "queue", "fleet", "http"
    loop: str
    # The queue, FLEET, or core.hosting.decided_about a service.
    service: str
    law: str
    # Which rule of the law spoke, in a few words: "avg_load > max_load", "R5", "held: stale".
    rule: str
    inputs: dict[str, float] = {}
    outputs: dict[str, float] = {}
    actions: list[AnyAction] = []
    # Sentences for people: why, and what would have changed it.
    reason: str = ""
    otherwise: str = ""
    # False: recommended only, or refused on the way; `outcome` says which.
    carried_out: bool = True
    outcome: str = ""
    # The user or client, when law is PERSON.
    by: str = ""

    @property
    def is_worth_keeping(self) -> bool:
        """Whether anything was done or wanted, beside the usual turning of shares."""
        return any(not isinstance(action, SetShares) for action in self.actions)
