"""The loop of one logical queue: reconcile, sample, decide, act, record.

Theory of operation
-------------------

A `QueueLoop` exists on the leader for each logical queue. `ControlLoops` polls the nodes' stats and
then calls `run_once` when the queue's polling interval has passed. One period does this:

    1. reconcile   retire replicas whose queue is gone; starting replicas serve; assign the groups
                   and receivers to replicas (`TopologyReconciler`)
    2. sample      the sensor builds a `QueueSample` from the stats that were just polled
    3. measure     the queue's agreement, if it has one, judges the last window
    4. decide      the `Autoscaler` returns the actions and their explanation
    5. inside      in automatic mode with the policy "agreement": at a warning, automatic prefetch
                   is switched on before replicas are added, as a decision of its own
    6. act         the actuator executes each action
    7. record      the journal stores the decision; the agreement records what changed in it

The loop itself decides nothing about the number of replicas. A replica that is ordered only raises
`pending`. With a fleet, `FleetLoop` places pending replicas on machines in its next period and
lowers `pending`. Without a fleet every node has room, and the replica is created at once.

What does not change:

- The mode "recommend" executes no action that changes the number of replicas, with one exception:
  a queue without any replica gets its first one, because it would deliver nothing without it.
- An override is stronger than the agreement, and the agreement is stronger than learned values.
- An action that fails does not stop the others. Its text is part of the decision's result, and the
  next period decides again from the next sample.

`pending` is in memory only. After a change of leader it is 0, and the autoscaler orders the missing
replicas again. `StaleEpoch` and other errors of the store leave `run_once`; the leader handles
them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from tidegate.adapters.native.actuator import NativeActuator
from tidegate.adapters.native.sensor import NativeSensor
from tidegate.agreement.scaling_terms import obeying
from tidegate.control.agreement_figures import Figure, capacity_of
from tidegate.control.agreement_keeping import AgreementKeeping
from tidegate.control.autoscaler import Autoscaler
from tidegate.control.journal import Journal
from tidegate.control.learned import Learned
from tidegate.control.lingering import Lingering
from tidegate.control.upkeep import SeenHomes, Upkeep, homecoming, missing_workers, out_of_reach
from tidegate.control.worker_words import WorkerWords
from tidegate.core.crash import crash_point
from tidegate.core.errors import RetryLater
from tidegate.core.ports import Store
from tidegate.core.replication import ALIAS, ReplicaState, Topology
from tidegate.core.rule_words import in_words
from tidegate.core.scaling import Scaling, ScalingPolicy, Steering
from tidegate.core.steering import (
    WITHIN,
    AddReplica,
    AnyAction,
    CancelPending,
    Decision,
    Migrate,
    QueueSample,
    ReplicaSample,
)

if TYPE_CHECKING:
    from tidegate.control.fleet_loop import FleetLoop

log = logging.getLogger(__name__)


class QueueLoop:
    """Runs the periods of one logical queue while this node leads."""

    def __init__(
        self,
        store: Store,
        sensor: NativeSensor,
        actuator: NativeActuator,
        journal: Journal,
        learned: Learned,
        fleet_loop: FleetLoop | None,
        keeping: AgreementKeeping,
    ) -> None:
        self._keeping = keeping
        self._store = store
        self._sensor = sensor
        self._actuator = actuator
        self._journal = journal
        self._learned = learned
        self._fleet_loop = fleet_loop
        self._upkeep = Upkeep()
        self._worker_words = WorkerWords()
        self._lingering = Lingering()
        # Replicas that began to serve in this period.
        self._came: list[int] = []
        self._autoscaler: Autoscaler | None = None
        self.topology: Topology | None = None
        # Replicas that are ordered and have no slot yet.
        self.pending = 0
        self._began_at = float("-inf")

    def is_due(self, topology: Topology, now: float) -> bool:
        """Return whether the polling interval has passed; a changed interval applies at once."""
        return now - self._began_at >= topology.scaling.polling_interval_s

    async def run_once(self, topology: Topology, now: float, epoch: int) -> None:
        """Run one period at `now` (monotonic seconds) under the leader's `epoch`."""
        self._began_at = now
        self.topology = topology = await self._keep_up(topology, now, epoch)
        fleet = self._fleet_loop
        slots_free = None if fleet is None else fleet.slots_free
        keeps_warm = fleet is not None and fleet.keeps_warm
        sample = self._sensor.sample(topology, now, self.pending, slots_free, keeps_warm)
        await self._keeping.measure(topology, now)
        decision = self._decide(topology, sample)
        is_ours = topology.scaling.steering is Steering.AUTO
        if is_ours and topology.scaling.policy is ScalingPolicy.AGREEMENT:
            await self._inside_first(topology, sample, decision, epoch)
        decision = await self._act(topology, sample, decision, epoch)
        await self._journal.write(decision, epoch, self._arrivals())
        await self._keeping.account(topology, decision, epoch, self._unplaced())

    async def _keep_up(self, topology: Topology, now: float, epoch: int) -> Topology:
        if await self._forget_missing(topology, epoch):
            topology = await self._store.topology(topology.queue_id) or topology
        sample = self._sensor.sample(topology, now, self.pending)
        queue_id, changed = topology.queue_id, False
        self._came = self._upkeep.serving(topology, sample)
        for number in self._came:
            crash_point("before-serving")
            changed |= await self._store.set_replica_state(
                queue_id, number, ReplicaState.SERVING, epoch
            )
            crash_point("after-serving")
        homes = self._upkeep.homes(topology, lambda number: self._seen(topology, number))
        if homes is not None:
            changed |= await self._store.set_homes(queue_id, homes, epoch)
        return (await self._store.topology(queue_id) or topology) if changed else topology

    async def _forget_missing(self, topology: Topology, epoch: int) -> bool:
        """Retire replicas whose queue no longer exists; return whether the topology changed.

        No node can serve or empty such a replica, so it would drain for ever.
        """
        queue_id, changed = topology.queue_id, False
        for place in topology.replicas:
            try:
                if place.address or await self._store.locate(place.queue_id) is not None:
                    continue
            except RetryLater:
                continue  # The replica's store is unavailable, so its queue may still exist.
            log.warning("replica %s of %s is gone: forgotten", place.number, topology.queue)
            state = ReplicaState.DRAINING
            changed |= await self._store.set_replica_state(queue_id, place.number, state, epoch)
            changed |= await self._store.retire_replica(queue_id, place.number, epoch)
        return changed

    def _seen(self, topology: Topology, number: int) -> SeenHomes | None:
        place = topology.replica(number)
        queue_id = (
            topology.queue_id if number == ALIAS else None if place is None else place.queue_id
        )
        numbers = None if queue_id is None else self._sensor.numbers_of(queue_id)
        return None if numbers is None else SeenHomes(numbers.homes_held, numbers.homes_ahead)

    def _decide(self, topology: Topology, sample: QueueSample) -> Decision:
        agreement = self._keeping.agreement
        scaling = self.completed(topology)
        if self._autoscaler is None:
            self._autoscaler = Autoscaler(scaling)
        self._autoscaler.scaling = scaling
        pledge, lessons = None, ""
        if agreement is not None:
            self._keeping.reconfigured(self._autoscaler.lead_s)
            agreement.learn_warnings(scaling.boot_s, self._learned.warnings(agreement.said.name))
            pledge = agreement.pledge(scaling.sla_delta)
            lessons = " ".join(f"{one.metric}: {one.because}." for one in agreement.lessons)
        guess = self.capacity_guess(topology)
        decision = self._autoscaler.decide(sample, pledge, None if guess is None else guess.value)
        if guess is not None and guess.is_known and not self._autoscaler.has_seen_capacity:
            lessons = (
                f"What a replica can do is {guess.origin}, until it is seen. {lessons}".strip()
            )
        defaults = self._learned.says(
            topology.queue, topology.scaling, has_fleet=self._fleet_loop is not None
        )
        return msgspec.structs.replace(
            decision,
            actions=[*decision.actions, *homecoming(sample)],
            reason=" ".join(
                filter(None, (decision.reason, self._keeping.trouble, lessons, defaults))
            ),
        )

    def completed(self, topology: Topology) -> Scaling:
        """Return the queue's scaling settings, completed by the agreement and by learned values.

        A value that the user set wins, then the agreement's, then the learned one.
        """
        scaling, agreement = topology.scaling, self._keeping.agreement
        if agreement is not None and scaling.policy is ScalingPolicy.AGREEMENT:
            scaling = obeying(scaling, agreement.said)
        return self._learned.complete(topology.queue, scaling)

    def capacity_guess(self, topology: Topology) -> Figure | None:
        """Return the assumed capacity of one replica; None unless the policy is "agreement".

        It is used until the autoscaler has measured the capacity.
        """
        agreement, scaling = self._keeping.agreement, topology.scaling
        if agreement is None or scaling.policy is not ScalingPolicy.AGREEMENT:
            return None
        learned = self._learned.capacity(topology.queue)
        return capacity_of(agreement.said, scaling.capacity_per_s, learned)

    async def _inside_first(
        self, topology: Topology, sample: QueueSample, decision: Decision, epoch: int
    ) -> None:
        """At a warning, switch on automatic prefetch if that can help.

        Does nothing if the agreement gives no reason for it. Otherwise records a decision of its
        own, even if there is no action, so that `tidegate explain` shows why.
        """
        inside = await self._keeping.inside(topology, sample)
        if inside is None:
            return
        failure = None
        if inside.action is not None:
            failure = await self._carry_out(topology, inside.action, epoch)
        then = f"then the number of replicas, which is {decision.outputs.get('replicas', 0.0):.0f}"
        first = Decision(
            at=sample.at,
            loop="agreement",
            service=topology.queue,
            law="agreement",
            rule="inside first",
            actions=[] if inside.action is None else [inside.action],
            reason=inside.said,
            carried_out=failure is None,
            outcome="; ".join(filter(None, (failure, f"{then}: {in_words(decision.rule)}"))),
        )
        await self._journal.write(first, epoch)

    async def _act(
        self, topology: Topology, sample: QueueSample, decision: Decision, epoch: int
    ) -> Decision:
        recommends = topology.scaling.steering is Steering.RECOMMEND
        # In recommend mode too: a queue without any replica delivers nothing.
        is_first = not topology.replicas and not self.pending
        left, failures = [], []
        for action in decision.actions:
            if recommends and not isinstance(action, WITHIN) and not is_first:
                left.append(action)
                continue
            failure = await self._carry_out(topology, action, epoch)
            if failure is not None:
                failures.append(failure)
                if isinstance(action, Migrate) and self._autoscaler is not None:
                    self._autoscaler.not_migrated()
        outcome = list(dict.fromkeys(failures))
        if left:
            outcome.insert(0, decision.outcome)
        if waiting := missing_workers(topology, sample):
            outcome.append(await self._waits_for_workers(topology, sample, waiting))
        if unplaced := self._unplaced():
            outcome.append(unplaced)
        if away := out_of_reach(topology, sample):
            outcome.append(f"{', '.join(away)} cannot be reached: the others have its share")
        outcome += self._lingering.words(topology, sample)
        return msgspec.structs.replace(
            decision, carried_out=not left and not failures, outcome="; ".join(outcome)
        )

    def _unplaced(self) -> str:
        """Return why ordered replicas have no slot; empty if they have one or will get one."""
        if not self.pending or self._fleet_loop is None or not self._fleet_loop.trouble:
            return ""
        return f"{self.pending} wait for a machine: {self._fleet_loop.trouble}"

    async def _waits_for_workers(
        self, topology: Topology, sample: QueueSample, waiting: list[ReplicaSample]
    ) -> str:
        numbers = ", ".join(str(replica.number) for replica in waiting)
        told = f"replica {numbers} waits for its workers ({topology.scaling.worker})"
        machines = await self._store.machines()
        words = self._worker_words.of(topology.queue, waiting, machines, sample.at)
        return ": ".join([told, *words[:1]])

    def _arrivals(self) -> str:
        numbers = ", ".join(map(str, self._came))
        return f"replica {numbers} serves now" if self._came else ""

    async def _carry_out(self, topology: Topology, action: AnyAction, epoch: int) -> str | None:
        match action:
            case AddReplica(count):
                self.pending += count
                return None if self._fleet_loop else await self._add_here(topology, epoch)
            case CancelPending(count):
                self.pending = max(self.pending - count, 0)
                return None
        return await self._actuator.carry_out(topology, action, epoch)  # type: ignore[arg-type]

    async def _add_here(self, topology: Topology, epoch: int) -> str | None:
        """Create the pending replicas at once; without a fleet every node has room.

        Return a sentence if the queue no longer scales, else None. `pending` is 0 afterwards in any
        case: the next sample shows which replicas exist, and the law orders the missing ones again.
        """
        count, self.pending = self.pending, 0
        for _ in range(count):
            if await self._actuator.add_replica(topology, epoch, None) is None:
                return "the queue scales no more"
        return None
