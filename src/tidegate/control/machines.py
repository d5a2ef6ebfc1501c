"""The loop of the machines: reconcile, find what has no slot, decide, act, record.

Theory of operation
-------------------

The leader calls `run_once` at the end of every round. At most every PERIOD_S it does this:

    1. reconcile  the `Fleet` compares its machines with the provider's and with the nodes that live
    2. collect    replicas and instances that have no slot become `SlotRequest`s
    3. decide     the `Provisioner` returns actions: boot, halt, place
    4. act        execute the actions, and record the decision

Two kinds of replicas have no slot. One was ordered by its queue's loop and does not exist yet
(`QueueLoop.pending`). The other exists, but its machine is gone. The second kind is urgent, because
it holds messages that no node serves. Instances of services exist in the store as soon as they are
ordered. Instances that are to answer requests are placed before spares.

Placing a replica that does not exist yet creates it on its machine and lowers `pending`.

`pending` is lost when the leader changes. A new leader therefore halts no machine for some time
(`settle_s`), until the queues have ordered again; otherwise it would halt a machine that was booted
for one of them.

Failures: an action that fails is part of the decision's result, and the others still run. If the
provider fails, `trouble` says why machines are missing, and queue loops and services show it.
`StaleEpoch` leaves `run_once`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.provisioning import (
    Provisioner,
    SlotRequest,
    slot_request,
    unplaced_instances,
    warm_machines_needed,
)
from tidegate.control.queues.loop import QueueLoop
from tidegate.core.decisions import FLEET, AnyAction, Boot, Decision, Halt, MachineSample, Place
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.machines import SlotKind
from tidegate.core.runtime import crash_point
from tidegate.core.services import Instance, Service
from tidegate.core.store import Store
from tidegate.core.topology import ReplicaInfo, Topology
from tidegate.engines.native.actuator import NativeActuator
from tidegate.fleet.fleet import Fleet
from tidegate.laws.placement import free_slots

PERIOD_S = 0.5
# A new leader does not know what the last one had ordered. It halts nothing until the queues had so
# many periods, and this minimum of seconds, to order again.
SETTLE_PERIODS = 10
SETTLE_S_MIN = 3.0


class FleetLoop:
    """Controls the machines while this node leads."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        provisioner: Provisioner,
        actuator: NativeActuator,
        journal: Journal,
        learned: AcceptedModels,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._provisioner = provisioner
        self._actuator = actuator
        self._journal = journal
        self._learned = learned
        self._due_at = float("-inf")
        self._led_since: float | None = None
        # Free slots on running machines; None before the first period.
        self.slots_free: int | None = None
        # Whether any machine is to be kept warm.
        self.keeps_warm = False

    async def run_once(self, loops: Mapping[int, QueueLoop], now: float, epoch: int) -> None:
        """Run one period, unless the last one was less than PERIOD_S ago."""
        if now < self._due_at:
            return
        self._due_at = now + PERIOD_S
        if self._led_since is None:
            self._led_since = now
        await self._fleet.reconcile(epoch)
        # Read them again: reconciling takes replicas away from failed machines.
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
            slot_request(service, waiting, instances, self._learned)
            for service, waiting in homeless
        ]
        self.slots_free = sum(map(free_slots, machines))
        self.keeps_warm = warm_machines_needed(wants) > 0
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
        """Make the next period due at once, because something was ordered that needs a slot."""
        self._due_at = float("-inf")

    @property
    def trouble(self) -> str:
        """Why no machine may come for waiting replicas; empty if no reason is known."""
        return self._fleet.boot_trouble or self._fleet.trouble

    async def reset(self) -> None:
        """Reset, because this node no longer leads; the new leader continues from the store."""
        self._due_at = float("-inf")
        self._led_since = None
        await self._fleet.reset()

    async def _homeless(
        self, instances: Sequence[Instance], machines: Sequence[MachineSample]
    ) -> list[tuple[Service, list[Instance]]]:
        """Return each service with its instances that need a slot."""
        if not instances:
            return []
        services = await self._store.services()
        return [(service, unplaced_instances(service, instances, machines)) for service in services]

    def _want(self, topology: Topology, loop: QueueLoop) -> SlotRequest:
        scaling = loop.completed(topology)
        left = len(unplaced(topology))
        guess = loop.capacity_guess(topology)
        capacity_per_s = None if guess is None else guess.value
        want = SlotRequest.of(topology.queue, scaling, loop.pending + left, capacity_per_s)
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
                failure = await self._execute(action, waiting, instances, epoch)
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

    async def _execute(
        self,
        action: AnyAction,
        waiting: Mapping[str, tuple[Topology, list[ReplicaInfo], QueueLoop]],
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
                # Returns False if the instance was removed meanwhile or is to end; nothing to do
                # then.
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
    """Return the seconds after a change of leader in which no machine is halted."""
    periods_s = [topology.scaling.polling_interval_s for topology in topologies]
    return max(SETTLE_S_MIN, SETTLE_PERIODS * max(periods_s, default=0.0))


def unplaced(topology: Topology) -> list[ReplicaInfo]:
    """Return the replicas without a machine, in the order in which they get one."""
    return [place for place in topology.replicas if place.machine_id is None]
