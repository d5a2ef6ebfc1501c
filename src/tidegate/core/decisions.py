"""Samples of queues and machines, actions of control loops, and decisions.

Samples of HTTP services are in the module about services.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tidegate.core.machines import MachineState, SlotKind
from tidegate.core.topology import MemberRole, ReplicaState

# The service of decisions about machines; no queue can have this name.
FLEET = "#fleet"
# The law of decisions that record a human's override.
OVERRIDE_LAW = "person"


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
        """Whether any client consumes from the replica."""
        return bool(self.consumers or self.waiting_consumers or self.consumed_per_s > 0.0)

    @property
    def is_empty(self) -> bool:
        """Whether the replica has no messages and no clients."""
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

    role: MemberRole
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
NON_SCALING_ACTIONS = SetShares | Exchange | Migrate | KeepUp | Weigh


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
        """Whether the decision has an action besides the regular change of shares."""
        return any(not isinstance(action, SetShares) for action in self.actions)


# Decisions as text: measurements and actions, for `tidegate explain` and the console.


LabelledLine = tuple[str, str]


def format_decision(decision: Decision) -> list[LabelledLine]:
    """Return the labelled lines of a decision, without empty ones."""
    done = ", ".join(map(format_action, decision.actions))
    if decision.law != OVERRIDE_LAW:
        done = done or "nothing"
    lines = [
        ("measured", format_measurements(decision.inputs)),
        ("gave", format_measurements(decision.outputs)),
        ("because", decision.reason),
        ("done" if decision.carried_out else "wanted", done),
        ("outcome", decision.outcome),
        ("otherwise", decision.otherwise),
    ]
    return [(label, text) for label, text in lines if text]


def format_measurements(numbers: dict[str, float]) -> str:
    """Return all numbers with their names."""
    return ", ".join(f"{name} {format_measurement(value)}" for name, value in numbers.items())


def format_measurement(value: float) -> str:
    """Return a number with four significant digits, or as a whole number from 1000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_action(action: AnyAction) -> str:
    """Return a description of an action."""
    match action:
        case AddReplica(count):
            return f"{format_count(count, 'replica')} more"
        case Drain(number):
            return f"replica {number} begins to drain"
        case CancelDrain(number):
            return f"replica {number} stays after all"
        case Retire(number):
            return f"replica {number} is empty and goes"
        case CancelPending(count):
            return f"{format_count(count, 'ordered replica')} not needed any more"
        case SetShares(shares):
            parts = ", ".join(f"{number}: {100 * part:.3g} %" for number, part in shares.items())
            return f"shares {parts}"
        case Exchange(source, target, count):
            giver, taker = (f"replica {one}" if one else "the alias" for one in (source, target))
            return f"about {format_count(count, 'message')} from {giver} to {taker}"
        case Migrate(role, source, target, count):
            return f"{format_count(count, role)} from replica {source} to {target}"
        case KeepUp():
            return "the prefetch of its consumers keeps up with their handlers from now on"
        case Boot(slots, warm):
            return f"boots a {'warm ' if warm else ''}machine of {format_count(slots, 'slot')}"
        case Halt(machine_id):
            return f"halts machine {machine_id}"
        case Place(queue, machine_id, kind):
            article = "an" if kind is SlotKind.INSTANCE else "a"
            return f"{article} {kind} of {queue} comes to machine {machine_id}"
        case AddInstance(count, is_spare):
            return f"{format_count(count, 'spare' if is_spare else 'instance')} more"
        case Promote(instance_id):
            return f"spare {instance_id} serves"
        case MakeSpare(instance_id):
            return f"instance {instance_id} becomes a spare"
        case DrainInstance(instance_id):
            return f"instance {instance_id} begins to drain"
        case RemoveInstance(instance_id):
            return f"instance {instance_id} goes"
        case SetConcurrency(instance_id, concurrency):
            return f"instance {instance_id} has {format_count(concurrency, 'request')} at a time"
        case Weigh(weights):
            parts = ", ".join(f"{one}: {weight:.3g}" for one, weight in weights.items())
            return f"weights {parts}"
        case Admit(in_flight_max):
            if in_flight_max is None:
                return "every request is let in"
            return f"{format_count(in_flight_max, 'request')} in hand at most, others are refused"


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 replica`, `2 replicas`."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


# The rules of laws as text for people.
#
#     needed ≈ replicas            there are as many replicas as are needed
#     held: cool-down              nothing is changed: replicas have come or gone a moment ago
#     capacity unknown: …          what a replica can do is not known yet: …
#
# A decision stores the rule's name (`Decision.rule`), so that programs can compare and count it.
# Views for people translate it with this table. A rule without an entry is shown unchanged.


_HELD = "held: "
_UNKNOWN = "capacity unknown: "
# Endings that guards append to a rule, and the limits of a prefetch.
_ENDS = {
    ", at max": ", but no more are allowed",
    ", at min": ", but no fewer are allowed",
    ", saturated low": ", down to its lower limit",
    ", saturated high": ", up to its upper limit",
}
_RULE_TEXTS = {
    # Policy "load": by waiting messages.
    "avg_load > max_load": "more messages wait for each replica than max_load allows",
    "avg_load < min_load": "fewer messages wait for each replica than min_load says",
    "min_load ≤ avg_load ≤ max_load": "as many messages wait for each replica as may",
    "avg_load > min_load: plan cancelled": "messages pile up again: the replica that was to go "
    "stays",
    "avg_load > max_load: plan cancelled": "far too many messages wait: the replica that was to "
    "go stays",
    "avg_load < min_load: plan goes on": "few messages wait, and a replica is going already",
    "inhibited": "the replica that was added last is still to show what it does",
    "backed off": "one replica fewer was too few for this rate before",
    # Policies "feed-forward" and "agreement": by the number of replicas needed.
    "needed > replicas": "more replicas are needed than there are",
    "needed < replicas − room": "fewer replicas are needed than there are, with room to spare",
    "needed ≈ replicas": "there are as many replicas as are needed",
    "oldest age at the aim": "the oldest message has nearly waited for too long",
    "the agreement is in danger": "the agreement is in danger, so no replica may go",
    # Policy "length".
    "messages / queue_length": "there are to be as many replicas as messages ask for at "
    "queue_length each",
    "stabilisation window": "more replicas were needed within the stabilisation window",
    # Policy "clients".
    "R5: L_c ≥ 1, a new replica": "the replicas have as many clients as they can take",
    "R5: L_c ≥ 1, a marked replica stays": "the replicas have as many clients as they can take: "
    "the one that was to go stays",
    "R5: L_c > 1": "the replicas have more clients than they can take",
    "R5: L_c > 1, a marked replica stays": "the replicas have more clients than they can take: "
    "the one that was to go stays",
    "R6: L_c < 1, C_i ≤ ΣC − (N + M)": "one replica fewer can take all clients",
    "L_c within its bounds": "the replicas can take their clients, and none is too many",
    "elected": "a client was given a replica",
    "marked and empty": "a replica that was to go is empty",
    "nothing to change": "there is nothing to change",
    # Guards.
    "reversal guard": "more replicas lowered the throughput before",
    "below min": "there are fewer replicas than the least that there may be",
    "something to do": "there is something to do",
    "something to do a moment ago": "there was something to do a moment ago",
    "no consumers for another replica": "nobody would consume from another replica",
    "a replica is away": "a replica cannot be reached",
    "cool-down": "replicas have come or gone a moment ago",
    "stale": "what was measured is too old",
    "no measurement": "it is not measured",
    "no agreement": "there is no agreement that can be read",
    "one removal at a time": "another replica is still going",
    "manual": "it was set by hand",
    "fixed": "the number is fixed",
    "judged": "the agreement was judged",
    # Machines.
    "a free slot": "there is a free slot",
    "no free slot": "there is no free slot",
    "warm pool below NPP": "fewer machines are kept warm than there should be",
    "warm pool above NPP": "more machines are warm than there need be",
    "waiting for a boot": "a machine is booting",
    "nothing to do": "there is nothing to do",
    # HTTP services.
    "inside first": "first what can be changed inside, then how many there are",
    "more in hand than is answered in time": "more requests are in hand than are answered in time",
    "not a matter of load": "a promise is in danger, and more instances would not help",
    "warned": "a promise is in danger, and the load does not explain it",
    "one fewer holds with room": "one instance fewer is enough, with room to spare",
    "enough": "there are enough instances",
    "nothing is left to take": "more is needed than there is",
    "there are enough again": "there are enough instances again",
    "drained": "an instance has answered all that it had",
    "overloaded": "an instance is overloaded",
    "a spare serves": "a spare serves at once",
    "fewer than wanted": "fewer instances serve than are wanted",
    "failed": "an instance has failed",
    "hanging": "an instance does not answer",
    "one is renewed": "an instance is replaced by a newer one",
    "spares are refilled": "spares are missing",
    # Prefetch.
    "automatic": "the controller steers the prefetch",
    "held": "nothing new was measured, and nothing is changed",
    "fallback": "measurements have stopped, and the fallback counts",
}


def format_rule(rule: str) -> str:
    """Return a rule as text for people."""
    if rule in _RULE_TEXTS:
        return _RULE_TEXTS[rule]
    if rule.startswith(_HELD):
        return f"nothing is changed: {format_rule(rule.removeprefix(_HELD))}"
    if rule.startswith(_UNKNOWN):
        return f"what a replica can do is not known yet: {format_rule(rule.removeprefix(_UNKNOWN))}"
    for end, words in _ENDS.items():
        if rule.endswith(end):
            return f"{format_rule(rule.removesuffix(end))}{words}"
    return rule
