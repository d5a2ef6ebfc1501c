"""The loop of the fleet: machines as they are, what is wanted of them, orders, and places.

    fleet.reconcile → what has no place → provisioner.decide → boot, halt, place → journal

A replica has no place when it was ordered and has no slot yet (`pending`), or when the machine that
served it is gone. The second kind goes first: it holds messages. So it is with instances of
services, which are rows as soon as they are ordered: those that are to answer go before spares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidegate.adapters.native.actuator import NativeActuator
from tidegate.control.instance_wants import homeless, want_of
from tidegate.control.journal import Journal
from tidegate.control.learned import Learned
from tidegate.control.provisioner import Provisioner, Want, warm_wanted
from tidegate.control.queue_loop import QueueLoop
from tidegate.core.crash import crash_point
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.fleet import SlotKind
from tidegate.core.hosting import Instance, Service
from tidegate.core.ports import Store
from tidegate.core.replication import ReplicaPlace, Topology
from tidegate.core.steering import (
    FLEET,
    AnyAction,
    Boot,
    Decision,
    Halt,
    MachineSample,
    Place,
)
from tidegate.fleet.fleet import Fleet
from tidegate.laws.placement import free_slots

PERIOD_S = 0.5
# What the last leader had ordered is not known; so many of their periods the queues have to ask for
# it again, and so much time at least, before a machine that came for them looks like one too many.
SETTLE_PERIODS = 10
SETTLE_S_MIN = 3.0


class FleetLoop:
    """Steers the machines while this node leads."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        provisioner: Provisioner,
        actuator: NativeActuator,
        journal: Journal,
        learned: Learned,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._provisioner = provisioner
        self._actuator = actuator
        self._journal = journal
        self._learned = learned
        self._due_at = float("-inf")
        self._led_since: float | None = None
        # Slots without a replica on machines that run; None: not looked yet.
        self.slots_free: int | None = None
        # Whether any machine is to be kept warm.
        self.keeps_warm = False

    async def run_once(self, loops: Mapping[int, QueueLoop], now: float, epoch: int) -> None:
        """One period, if it is time."""
        if now < self._due_at:
            return
        self._due_at = now + PERIOD_S
        if self._led_since is None:
            self._led_since = now
        await self._fleet.reconcile(epoch)
        # As they are now: reconciling takes replicas from machines that failed.
        topologies = await self._store.topologies()
        machines = await self._fleet.samples()
        instances = await self._store.instances()
        homeless = await self._homeless(instances, machines)
        wants = [
            self._want(topology, loops[topology.queue_id])
            for topology in topologies
            if topology.queue_id in loops
        ]
        wants += [
            want_of(service, waiting, instances, self._learned) for service, waiting in homeless
        ]
        self.slots_free = sum(map(free_slots, machines))
        self.keeps_warm = warm_wanted(wants) > 0
        decision = self._provisioner.decide(machines, wants, now)
        may_halt = now - self._led_since >= settle_s(topologies)
        decision = msgspec.structs.replace(
            decision,
            service=FLEET,
            actions=[one for one in decision.actions if may_halt or not isinstance(one, Halt)],
        )
        decision = await self._act(decision, topologies, loops, homeless, epoch)
        await self._journal.write(decision, epoch)

    def hurry(self) -> None:
        """Something was ordered that needs a slot: the next period is now."""
        self._due_at = float("-inf")

    @property
    def trouble(self) -> str:
        """Why there may be no machine for what waits for one; "": there is no reason."""
        return self._fleet.boot_trouble or self._fleet.trouble

    async def stand_down(self) -> None:
        """Another leads: what was begun is left to it."""
        self._due_at = float("-inf")
        self._led_since = None
        await self._fleet.stand_down()

    async def _homeless(
        self, instances: Sequence[Instance], machines: Sequence[MachineSample]
    ) -> list[tuple[Service, list[Instance]]]:
        """The instances of each service that need a slot."""
        if not instances:
            return []
        services = await self._store.services()
        return [(service, homeless(service, instances, machines)) for service in services]

    def _want(self, topology: Topology, loop: QueueLoop) -> Want:
        scaling = loop.completed(topology)
        left = len(unplaced(topology))
        guess = loop.capacity_guess(topology)
        capacity_per_s = None if guess is None else guess.value
        want = Want.of(topology.queue, scaling, loop.pending + left, capacity_per_s)
        want = msgspec.structs.replace(want, urgent=left)
        learned = self._learned.machine_capacity_per_s
        if scaling.capacity_per_s is None and learned is not None:
            return msgspec.structs.replace(want, machine_capacity_per_s=learned)
        return want

    async def _act(
        self,
        decision: Decision,
        topologies: Iterable[Topology],
        loops: Mapping[int, QueueLoop],
        homeless: Iterable[tuple[Service, list[Instance]]],
        epoch: int,
    ) -> Decision:
        instances = {service.spec.name: list(waiting) for service, waiting in homeless}
        waiting = {
            topology.queue: (topology, unplaced(topology), loops[topology.queue_id])
            for topology in topologies
            if topology.queue_id in loops
        }
        failures = []
        for action in decision.actions:
            try:
                failure = await self._carry_out(action, waiting, instances, epoch)
            except StaleEpoch:
                raise
            except TidegateError as error:
                failure = str(error)
            if failure is not None:
                failures.append(failure)
        if self._fleet.trouble:
            failures.append(f"the provider says: {self._fleet.trouble}")
        return msgspec.structs.replace(
            decision, carried_out=not failures, outcome="; ".join(dict.fromkeys(failures))
        )

    async def _carry_out(
        self,
        action: AnyAction,
        waiting: Mapping[str, tuple[Topology, list[ReplicaPlace], QueueLoop]],
        instances: Mapping[str, list[Instance]],
        epoch: int,
    ) -> str | None:
        match action:
            case Boot(slots, _, host):
                await self._fleet.boot(slots, host, epoch)
            case Halt(machine_id):
                await self._fleet.halt(machine_id, epoch)
            case Place(service, machine_id, SlotKind.INSTANCE):
                instance = instances[service].pop(0)
                crash_point("before-instance-placed")
                # False: it was removed meanwhile, or is to end.
                await self._store.assign_instance(instance.instance_id, machine_id, epoch)
                crash_point("after-instance-placed")
            case Place(queue, machine_id):
                topology, replicas, loop = waiting[queue]
                if replicas:
                    number = replicas.pop(0).number
                    await self._store.assign_replica(topology.queue_id, number, machine_id, epoch)
                elif loop.pending:
                    if await self._actuator.add_replica(topology, epoch, machine_id) is None:
                        return f"queue {queue} scales no more"
                    loop.pending -= 1
            case _:
                raise AssertionError(f"{action} is not about machines")
        return None


def settle_s(topologies: Iterable[Topology]) -> float:
    """How long a new leader halts nothing."""
    periods_s = [topology.scaling.polling_interval_s for topology in topologies]
    return max(SETTLE_S_MIN, SETTLE_PERIODS * max(periods_s, default=0.0))


def unplaced(topology: Topology) -> list[ReplicaPlace]:
    """Replicas without a machine, in the order in which they are to get one."""
    return [place for place in topology.replicas if place.machine_id is None]
