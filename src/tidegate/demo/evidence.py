"""The snapshots of the demo, and the changes between two of them.

A snapshot contains the overview of `tidegate top`, the shares of replicas, and the prefetch of each
archive worker. The conditions of the scenario use these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.cli.demo.story import ARCHIVE, ORDERS
from tidegate.cli.glance import Glance
from tidegate.console.model import AgreementState, Kind, Light, ServiceRow
from tidegate.console.sight import Sight
from tidegate.core.fleet import MachineState
from tidegate.core.replication import ReplicaState

_KEPT = 240


@dataclass(frozen=True)
class Replica:
    """One replica of `orders` in a snapshot."""

    number: int
    state: str
    machine_id: int | None
    # The share of new messages, 0 to 1.
    share: float
    waiting: int
    done_per_s: float
    prefetch: int
    # Whether a node serves it and a consumer is connected.
    is_at_work: bool


@dataclass(frozen=True)
class Steered:
    """One worker of `archive` in a snapshot."""

    name: str
    prefetch: int
    rate_per_s: float
    target_per_s: float | None
    service_ms: float


@dataclass(frozen=True)
class Moment:
    """A snapshot of the demo."""

    glance: Glance
    replicas: Sequence[Replica]
    steered: Sequence[Steered]
    # Unacknowledged messages by queue.
    unacknowledged: Mapping[str, int]
    # The evidence of the last window of `orders`.
    evidence: str = ""

    def service(self, name: str) -> ServiceRow:
        found = (row for row in self.glance.rows if row.name == name)
        return next(found, ServiceRow(kind=Kind.QUEUE, name=name, light=Light.NONE))

    @property
    def serving(self) -> list[Replica]:
        return [one for one in self.replicas if one.state == "serving"]

    @property
    def at_work(self) -> list[Replica]:
        return [one for one in self.serving if one.is_at_work]

    def share(self, number: int | None) -> float:
        """Return the share of a replica; 0 if it does not exist."""
        return next((one.share for one in self.replicas if one.number == number), 0.0)

    def machines(self, *states: MachineState) -> list[int]:
        """Return the ids of the machines in one of these states."""
        return [one.machine_id for one in self.glance.fleet.machines if one.state in states]


def moment_of(glance: Glance, sight: Sight, agreement: AgreementState | None) -> Moment:
    """Return a snapshot of the demo from an overview and the console's snapshot."""
    topology = sight.topologies.get(ORDERS)
    replicas = []
    for place in [] if topology is None else topology.replicas:
        found = sight.detailed.get(place.queue_id)
        consumers = [] if found is None else found.consumers
        replicas.append(
            Replica(
                number=place.number,
                state=str(place.state),
                machine_id=place.machine_id,
                share=place.share,
                waiting=0 if found is None else found.waiting,
                done_per_s=0.0 if found is None else found.acked_per_s,
                prefetch=sum(one.prefetch for one in consumers),
                is_at_work=place.address is not None and bool(consumers),
            )
        )
    promises = [] if agreement is None else agreement.promises
    return Moment(
        glance=glance,
        replicas=sorted(replicas, key=lambda one: one.number),
        steered=sorted(_steered(sight), key=lambda one: one.name),
        unacknowledged={
            name: sum(part.unacknowledged for part in parts) for name, parts in sight.parts.items()
        },
        evidence=promises[0].evidence if promises else "",
    )


def _steered(sight: Sight) -> Iterator[Steered]:
    for part in sight.parts.get(ARCHIVE, []):
        detailed = sight.detailed.get(part.queue_id)
        for consumer in [] if detailed is None else detailed.consumers:
            step = consumer.control[-1] if consumer.control else None
            yield Steered(
                name=consumer.client_name.partition("@")[0],
                prefetch=consumer.prefetch,
                rate_per_s=consumer.delivered_per_s,
                target_per_s=None if step is None else step.target_per_s,
                service_ms=consumer.service.p50_ms,
            )


@dataclass
class Course:
    """The history of some metrics, for sparklines and the summary."""

    arrived: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    waiting: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    replicas: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    replicas_most: int = 0
    machines_most: int = 0
    arrived_most_per_s: float = 0.0

    def take(self, moment: Moment) -> None:
        orders = moment.service(ORDERS)
        self.arrived.append(orders.in_per_s)
        self.waiting.append(orders.waiting)
        self.replicas.append(len(moment.serving))
        self.replicas_most = max(self.replicas_most, len(moment.serving))
        running = moment.machines(MachineState.UP, MachineState.WARM)
        self.machines_most = max(self.machines_most, len(running))
        self.arrived_most_per_s = max(self.arrived_most_per_s, orders.in_per_s)


def changes(before: Moment, now: Moment) -> Iterator[str]:
    """Yield a sentence for each change worth printing."""
    was, is_ = len(before.serving), len(now.serving)
    if is_ != was:
        yield f"{is_} {'replica' if is_ == 1 else 'replicas'} of {ORDERS} at work"
    draining = {one.number for one in before.replicas if one.state == ReplicaState.DRAINING}
    for one in now.replicas:
        if one.state == ReplicaState.DRAINING and one.number not in draining:
            yield f"replica {one.number} begins to drain: nothing new, what it has goes first"
    yield from _of_machines(before, now)
    said, says = before.service(ORDERS).light, now.service(ORDERS).light
    if says in (Light.WARNED, Light.BREACHED) and says is not said:
        yield f"the agreement of {ORDERS} is {says}: {now.evidence}"
    elif said in (Light.WARNED, Light.BREACHED) and says is Light.MET:
        yield f"the agreement of {ORDERS} is met again"


def _of_machines(before: Moment, now: Moment) -> Iterator[str]:
    states = {one.machine_id: one.state for one in before.glance.fleet.machines}
    for machine in now.glance.fleet.machines:
        if states.get(machine.machine_id) is machine.state:
            continue
        match machine.state:
            case MachineState.BOOTING:
                yield f"machine {machine.machine_id} boots"
            case MachineState.UP if states.get(machine.machine_id) is MachineState.WARM:
                yield f"machine {machine.machine_id} was warm, and is at work"
            case MachineState.WARM:
                yield f"machine {machine.machine_id} is warm: it waits for work"
            case MachineState.FAILED:
                yield f"machine {machine.machine_id} is given up; its replicas go elsewhere"
            case MachineState.HALTING:
                yield f"machine {machine.machine_id} is not needed, and halts"
