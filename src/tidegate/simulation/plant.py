"""The simulated plant: replicas, machines, the alias, clients and faults in virtual time.

Theory of operation

**Model.** The plant is a fluid in whole messages (see `SimulatedReplica`). It advances in ticks of
at most `tick_s`, and not by one event per message. At 750 messages per second an hour has 2.7
million events but only 3,600 ticks. The laws read only waiting messages, ages and rates, and these
are the same to within a tick.

**Events.** A boot that ends, a replica that starts, and a dead machine that is noticed take effect
at the start of the next tick. Arrivals of a tick form one cohort, whose time is the middle of the
tick.

**Actions.** The plant executes actions as the nodes do. An action that no longer fits does nothing.
- An ordered replica waits for a slot (`pending`), then starts, then serves. Its share is 0 until
  the loop sets one, unless no replica has a share.
- A draining replica keeps its messages. It is removed only when it is empty.
- While no replica serves, the alias keeps the new messages. They move to replicas with the next
  arrivals that a replica can take, or by a transfer.

**Competing replicas.** If `settings.competing` is set, replicas are consumers of one queue, as pods
that KEDA scales. Shares and transfers then do nothing, waiting messages are divided evenly, and a
draining replica is removed as soon as it has finished its messages.

**Faults.** A dead machine makes its replicas unreachable. After `detection_s` they wait for another
slot. A crashed replica restarts on its machine after `restart_s`. In both cases stored messages
survive, and messages in service wait again.

**Invariants.** Every message that arrived is waiting, in service or consumed. The same seed gives
the same run.
"""

from __future__ import annotations

import enum
import math
import random
from typing import Annotated

import msgspec

from tidegate.core.decisions import (
    AddReplica,
    AnyAction,
    Boot,
    CancelDrain,
    CancelPending,
    Drain,
    Exchange,
    Halt,
    MachineSample,
    Migrate,
    Place,
    QueueSample,
    ReplicaSample,
    Retire,
    SetShares,
)
from tidegate.core.machines import MachineState
from tidegate.core.topology import MemberRole, ReplicaState
from tidegate.laws.scaling.clients import ReplicaLoad, elect
from tidegate.simulation.replica import SimulatedMachines, SimulatedReplica

# Above this mean a Poisson number is drawn as a rounded normal one.
_POISSON_SMALL = 30.0


class SimulatedPlant:
    """One logical queue on simulated machines."""

    def __init__(self, queue: str, settings: PlantSettings, slots: int, seed: int | str) -> None:
        self.queue = queue
        self.settings = settings
        self.chance = random.Random(f"plant {seed}")
        self.machines = SimulatedMachines(settings, self.chance)
        self.now = 0.0
        self.replicas: dict[int, SimulatedReplica] = {}
        self._next_number = 1
        # Ordered replicas without a slot.
        self.pending = 0
        # When each starting or restarting replica will serve.
        self._starting: dict[int, float] = {}
        # When each dead machine will be noticed.
        self._unnoticed: dict[int, float] = {}
        self.alias = SimulatedReplica(0, None)
        self.arrived = 0
        self._fraction = 0.0
        self._carried: dict[int, float] = {}
        self._retired_consumed = 0
        self._retired_waited_s = 0.0
        self.longest_wait_s = 0.0
        # +1 for every ordered replica, −1 for every removed or cancelled one, in temporal order.
        self.turns: list[int] = []
        # Drains that were cancelled.
        self.cancelled_drains = 0
        self._sampled_at = 0.0
        self._sampled_arrived = 0
        self.has_clients = False
        # Pairs of waiting time and number of messages since the last evaluation. `None` turns the
        # recording off.
        self.waits: list[tuple[float, float]] | None = None
        for _ in range(settings.machines_at_start):
            self.machines.boot(slots, 0.0, at_once=True)

    # Time

    def tick(self, tick_s: float, expected: float, capacity_per_s: float) -> None:
        """Advance the plant by `tick_s`, in which about `expected` messages arrive."""
        began, self.now = self.now, self.now + tick_s
        if self._starting or self._unnoticed or self.machines.next_ready_at() <= began:
            self._events(began)
        self.machines.pay(tick_s)
        came = self._came(expected)
        if came:
            self.arrived += came
            self._route(came, began + tick_s / 2)
        longest_s = self.longest_wait_s
        for replica in self.replicas.values():
            if replica.reachable and (replica.cohorts or replica.in_service):
                capacity = capacity_per_s
                if self.has_clients:
                    consumer_per_s = self.settings.consumer_per_s
                    capacity = min(capacity, replica.consumers * consumer_per_s)
                waited_s = replica.serve(capacity, tick_s, self.now, self.settings.in_service_max)
                if waited_s > longest_s:
                    longest_s = waited_s
        self.longest_wait_s = longest_s
        if self.settings.competing:
            self._delete_drained()

    def _events(self, began: float) -> None:
        self.machines.ready(began)
        for machine_id in [one for one, at in self._unnoticed.items() if at <= began]:
            del self._unnoticed[machine_id]
            self._evacuate(machine_id)
        for number in [one for one, at in self._starting.items() if at <= began]:
            del self._starting[number]
            replica = self.replicas[number]
            replica.reachable = True
            if replica.state is ReplicaState.STARTING:
                replica.state = ReplicaState.SERVING
                replica.serving_since = began
                if self.settings.competing:
                    self._even_out()
                elif not any(one.share for one in self.replicas.values()):
                    replica.share = 1.0

    def _came(self, expected: float) -> int:
        """Return a whole number of messages; fractions are carried over to later ticks."""
        if self.settings.poisson:
            return _poisson(self.chance, expected)
        whole = self._fraction + expected
        came = int(whole + 1e-9)
        self._fraction = whole - came
        return came

    def _route(self, came: int, at: float) -> None:
        """Distribute arrivals to replicas, or put them into the alias if no replica can take them.

        The parts are the shares, or the numbers of producers if clients are simulated.
        """
        takers = [
            (one, float(one.producers) if self.has_clients else one.share)
            for one in self.replicas.values()
            if one.reachable and one.state is not ReplicaState.STARTING
        ]
        total = sum(part for _, part in takers)
        if total <= 0.0:
            serving = [one for one, _ in takers if one.state is ReplicaState.SERVING]
            if not serving:
                self.alias.put(came, at)
                return
            takers, total = [(one, 1.0) for one in serving], float(len(serving))
        if self.alias.waiting:
            self._hand_over([one for one, part in takers if part])
        if len(takers) == 1:
            takers[0][0].put(came, at)
            return
        left = came
        carried = self._carried
        for position, (replica, part) in enumerate(takers):
            if not part:
                continue
            fair = came * part / total + carried.get(replica.number, 0.0)
            count = min(left, max(0, round(fair)))
            carried[replica.number] = fair - count
            if count:
                replica.put(count, at)
                left -= count
            if position == len(takers) - 1:
                break
        if left:
            owed = max(takers, key=lambda one: carried.get(one[0].number, 0.0) if one[1] else -1e9)
            owed[0].put(left, at)
            carried[owed[0].number] = carried.get(owed[0].number, 0.0) - left

    def _hand_over(self, takers: list[SimulatedReplica]) -> None:
        """Move the alias's messages to replicas in equal parts."""
        part = math.ceil(self.alias.waiting / len(takers))
        for replica in takers:
            cohorts = self.alias.give(part)
            replica.take_over(cohorts)
            replica.arrived += sum(count for _, count in cohorts)
        self.alias.arrived = self.alias.waiting

    # Samples for the loops

    def sample(self, resource_load: float = 0.0, keeps_warm: bool = False) -> QueueSample:
        """Return a sample of the period since the last one."""
        period_s = max(self.now - self._sampled_at, 1e-9)
        arrived = self.arrived - self._sampled_arrived
        self._sampled_at, self._sampled_arrived = self.now, self.arrived
        replicas: list[ReplicaSample] = [
            replica.sample(self.now, period_s) for replica in self.replicas.values()
        ]
        return QueueSample(
            queue=self.queue,
            at=self.now,
            replicas=replicas,
            arrived_per_s=arrived / period_s,
            alias_waiting=self.alias.waiting,
            pending=self.pending,
            resource_load=resource_load,
            slots_free=self._slots_free(),
            keeps_warm=keeps_warm,
        )

    def _slots_free(self) -> int:
        slots = sum(
            machine.slots
            for machine in self.machines.by_id.values()
            if machine.state is MachineState.UP or machine.state is MachineState.WARM
        )
        placed = sum(replica.machine_id is not None for replica in self.replicas.values())
        return max(slots - placed, 0)

    def machine_samples(self) -> list[MachineSample]:
        """Return samples of the machines with their used slots."""
        used: dict[int, int] = {}
        draining: dict[int, int] = {}
        for replica in self.replicas.values():
            if replica.machine_id is not None:
                used[replica.machine_id] = used.get(replica.machine_id, 0) + 1
                if replica.state is ReplicaState.DRAINING:
                    draining[replica.machine_id] = draining.get(replica.machine_id, 0) + 1
        return self.machines.samples(used, draining)

    @property
    def oldest_age_s(self) -> float:
        """Age of the oldest message that is not consumed yet, in seconds."""
        replicas = (self.alias, *self.replicas.values())
        return max(one.oldest_age_s(self.now) for one in replicas)

    @property
    def waiting(self) -> int:
        """All waiting messages, including those in the alias."""
        return self.alias.waiting + sum(one.waiting for one in self.replicas.values())

    @property
    def in_service(self) -> int:
        return sum(replica.in_service for replica in self.replicas.values())

    @property
    def consumed(self) -> int:
        return self._retired_consumed + sum(one.consumed for one in self.replicas.values())

    @property
    def waited_s(self) -> float:
        """Waiting time in seconds, summed over all consumed messages."""
        return self._retired_waited_s + sum(one.waited_s for one in self.replicas.values())

    @property
    def serving(self) -> int:
        """Number of replicas in the state SERVING."""
        return sum(one.state is ReplicaState.SERVING for one in self.replicas.values())

    @property
    def average_load(self) -> float:
        """Waiting messages per serving replica."""
        return self.waiting / max(self.serving, 1)

    # Actions of the loops

    def execute(self, action: AnyAction) -> None:
        """Execute an action of a loop. An action that no longer fits does nothing."""
        match action:
            case AddReplica(count):
                self.pending += count
                self.turns += [1] * count
            case CancelPending(count):
                gone = min(count, self.pending)
                self.pending -= gone
                self.turns += [-1] * gone
            case Drain(number):
                self._turn(number, ReplicaState.SERVING, ReplicaState.DRAINING)
                if self.settings.competing:
                    self._even_out()
                    self._delete_drained()
            case CancelDrain(number):
                if self._turn(number, ReplicaState.DRAINING, ReplicaState.SERVING):
                    self.cancelled_drains += 1
            case Retire(number):
                self._retire(number)
            case SetShares() | Exchange() if self.settings.competing:
                pass
            case SetShares(shares):
                for number, replica in self.replicas.items():
                    replica.share = max(0.0, shares.get(number, 0.0))
            case Exchange(source, target, count):
                self._exchange(source, target, count)
            case Migrate(role, source, target, count):
                self._migrate(role, source, target, count)
            case Boot(slots, warm):
                if len(self.machines.by_id) < self.settings.machines_max:
                    self.machines.boot(slots, self.now, warm=warm)
            case Halt(machine_id):
                if not any(one.machine_id == machine_id for one in self.replicas.values()):
                    self.machines.halt(machine_id)
            case Place(_, machine_id):
                self.place(machine_id)

    def place(self, machine_id: int, *, at_once: bool = False) -> None:
        """Place an ordered replica, or one of a dead machine, on a machine with a free slot."""
        machine = self.machines.by_id.get(machine_id)
        if machine is None or machine.state not in (MachineState.UP, MachineState.WARM):
            return
        used = sum(one.machine_id == machine_id for one in self.replicas.values())
        if used >= machine.slots:
            return
        homeless = [one for one in self.replicas.values() if one.machine_id is None]
        if homeless:
            replica = homeless[0]
            replica.machine_id = machine_id
        elif self.pending:
            self.pending -= 1
            replica = SimulatedReplica(self._next_number, machine_id, self.waits)
            self._next_number += 1
            self.replicas[replica.number] = replica
        else:
            return
        machine.state = MachineState.UP
        machine.warm = False
        self._starting[replica.number] = self.now + (0.0 if at_once else self.settings.start_s)

    @property
    def wanted_slots(self) -> int:
        """Replicas that wait for a slot: ordered ones, and replicas of dead machines."""
        return self.pending + sum(one.machine_id is None for one in self.replicas.values())

    def _turn(self, number: int, state: ReplicaState, to: ReplicaState) -> bool:
        replica = self.replicas.get(number)
        if replica is None or replica.state is not state:
            return False
        replica.state = to
        return True

    def _retire(self, number: int) -> None:
        replica = self.replicas.get(number)
        if replica is None or replica.state is not ReplicaState.DRAINING:
            return
        if replica.waiting or replica.in_service:
            return
        self._retired_consumed += replica.consumed
        self._retired_waited_s += replica.waited_s
        self.turns.append(-1)
        del self.replicas[number]
        self._starting.pop(number, None)
        self._carried.pop(number, None)
        self._elect_all(MemberRole.PRODUCER, replica.producers)
        self._elect_all(MemberRole.CONSUMER, replica.consumers)

    def _delete_drained(self) -> None:
        """Remove drained replicas at once, as Kubernetes deletes a pod without asking a loop."""
        for replica in list(self.replicas.values()):
            if replica.state is ReplicaState.DRAINING:
                self._retire(replica.number)

    def _even_out(self) -> None:
        """Divide waiting and new messages evenly among the serving, competing replicas."""
        serving = [one for one in self.replicas.values() if one.state is ReplicaState.SERVING]
        if not serving:
            return
        cohorts = [
            cohort
            for one in self.replicas.values()
            if one.reachable
            for cohort in one.give(one.waiting)
        ]
        part, left = divmod(sum(count for _, count in cohorts), len(serving))
        pool = SimulatedReplica(0, None)
        pool.take_over(cohorts)
        for position, replica in enumerate(serving):
            replica.share = 1 / len(serving)
            replica.take_over(pool.give(part + (position < left)))
        for replica in self.replicas.values():
            if replica.state is not ReplicaState.SERVING:
                replica.share = 0.0

    def _exchange(self, source: int, target: int, count: int) -> None:
        giver = self.alias if source == 0 else self.replicas.get(source)
        taker = self.replicas.get(target)
        if giver is None or taker is None or giver is taker or not taker.reachable:
            return
        if source and not giver.reachable:
            return
        cohorts = giver.give(count)
        taker.take_over(cohorts)
        if source == 0:
            taker.arrived += sum(moved for _, moved in cohorts)

    # Clients

    def change_clients(self, role: MemberRole, count: int) -> None:
        """Let clients join an elected replica, or leave the replica with the most of them."""
        self.has_clients = True
        if count >= 0:
            self._elect_all(role, count)
            return
        for _ in range(-count):
            there = [one for one in self.replicas.values() if _clients(one, role)]
            if there:
                _change(max(there, key=lambda one: (_clients(one, role), -one.number)), role, -1)

    def _elect_all(self, role: MemberRole, count: int) -> None:
        for _ in range(count):
            # As in a logical queue: among serving replicas, and if there is none, among all.
            open_ones = [
                one for one in self.replicas.values() if one.state is ReplicaState.SERVING
            ] or list(self.replicas.values())
            number = elect(
                role, (ReplicaLoad(one.number, one.producers, one.consumers) for one in open_ones)
            )
            if number is None:
                return
            _change(self.replicas[number], role, 1)

    def _migrate(self, role: MemberRole, source: int, target: int, count: int) -> None:
        giver, taker = self.replicas.get(source), self.replicas.get(target)
        if giver is None or taker is None:
            return
        moved = min(count, _clients(giver, role))
        _change(giver, role, -moved)
        _change(taker, role, moved)

    # Faults

    def kill_machine(self, machine_id: int | None = None) -> int | None:
        """Kill a machine and all its replicas; `None` draws a machine that holds a replica.

        Returns the id of the machine, or `None` if there is none to kill.
        """
        if machine_id is None:
            holding = sorted({one.machine_id for one in self.replicas.values() if one.machine_id})
            if not holding:
                return None
            machine_id = self.chance.choice(holding)
        machine = self.machines.by_id.get(machine_id)
        if machine is None:
            return None
        machine.state = MachineState.FAILED
        for replica in self.replicas.values():
            if replica.machine_id == machine_id:
                replica.crash()
                self._starting.pop(replica.number, None)
        self._unnoticed[machine_id] = self.now + self.settings.detection_s
        return machine_id

    def _evacuate(self, machine_id: int) -> None:
        """Let the replicas of a dead machine wait for another slot; their messages are stored."""
        for replica in self.replicas.values():
            if replica.machine_id == machine_id:
                replica.machine_id = None
        self.machines.halt(machine_id)

    def kill_replica(self) -> int | None:
        """Kill a random reachable replica's process, which restarts on the same machine."""
        running = sorted(one.number for one in self.replicas.values() if one.reachable)
        if not running:
            return None
        number = self.chance.choice(running)
        self.replicas[number].crash()
        self._starting[number] = self.now + self.settings.restart_s
        return number

    def set_speed(self, factor: float) -> None:
        """Set the speed of every existing replica to this fraction of its initial speed."""
        for replica in self.replicas.values():
            replica.capacity_factor = factor


def _clients(replica: SimulatedReplica, role: MemberRole) -> int:
    return replica.producers if role is MemberRole.PRODUCER else replica.consumers


def _change(replica: SimulatedReplica, role: MemberRole, by: int) -> None:
    if role is MemberRole.PRODUCER:
        replica.producers += by
    else:
        replica.consumers += by


def _poisson(chance: random.Random, mean: float) -> int:
    """Return a random number from a Poisson distribution."""
    if mean <= 0.0:
        return 0
    if mean > _POISSON_SMALL:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


# Settings of the simulated plant: the speed of replicas, boot times, and faults.


_Above0 = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
_From0 = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Part = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class FaultKind(enum.StrEnum):
    """The kinds of faults."""

    MACHINE = "machine"  # a machine dies; its replicas are down until they have another slot
    REPLICA = "replica"  # a replica's process dies and restarts on its machine
    STALE = "stale"  # measurements stop; the loop reads the last ones with growing age
    NAN = "nan"  # measurements contain NaN
    SLOW = "slow"  # every replica delivers half of its normal rate


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault."""

    at_s: float
    kind: FaultKind
    # Duration of faults that last.
    duration_s: float = 60.0


class ClientChange(msgspec.Struct, frozen=True, kw_only=True):
    """Clients that join or leave the queue."""

    at_s: float
    role: MemberRole
    # Below 0 they leave.
    count: int = 1


class PlantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The simulated environment. Times in seconds, rates in messages per second."""

    # Rate of a replica with its workers, if the trace does not set it.
    capacity_per_s: _Above0 = 100.0
    # Messages that a replica's workers hold at once.
    in_service_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    # Time from a free slot to serving.
    start_s: _From0 = 1.0
    boot_s: _From0 = 96.9
    # Standard deviation of boot times as a fraction of their mean (log-normal). 0 means all alike.
    boot_spread: _Part = 0.0
    # Fraction of the boots that fail at their end.
    boot_failure: _Part = 0.0
    machines_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    # Machines that run at the start.
    machines_at_start: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 1
    # Whether arrivals are a Poisson process; otherwise they are evenly spaced.
    poisson: bool = True
    # The longest step of the plant's clock.
    tick_s: Annotated[float, msgspec.Meta(ge=0.01, le=60.0)] = 1.0
    # Time until a dead machine is noticed, and until a dead replica's process runs again.
    detection_s: _From0 = 3.0
    restart_s: _From0 = 2.0
    # Whether replicas are consumers of one queue, as with KEDA. Shares then have no effect.
    competing: bool = False
    # With policy "clients": the rate of one consumer.
    consumer_per_s: _Above0 = 50.0
