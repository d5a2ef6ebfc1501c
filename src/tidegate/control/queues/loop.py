"""Why a replica that is to go is still there, for `tidegate explain`, once that takes long.

A drain that goes well is over within seconds, and nothing is said of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tidegate.agreements.document import with_agreed_scaling
from tidegate.control.agreement_monitor import AgreementMonitor
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.planning import PlanningInput, replica_capacity
from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.control.queues.guards import NO_SHARE, own_workers
from tidegate.core.decisions import (
    NON_SCALING_ACTIONS,
    AddReplica,
    AnyAction,
    CancelPending,
    Decision,
    Exchange,
    Migrate,
    QueueSample,
    ReplicaSample,
    format_rule,
)
from tidegate.core.errors import RetryLater
from tidegate.core.machines import MachineInfo
from tidegate.core.runtime import crash_point
from tidegate.core.store import Store
from tidegate.core.topology import (
    ALIAS,
    ASSIGNMENT_SLOTS,
    ControlMode,
    ReplicaState,
    Scaling,
    ScalingPolicy,
    Topology,
    replica_name,
)
from tidegate.engines.native.actuator import NativeActuator
from tidegate.engines.native.sensor import NativeSensor

if TYPE_CHECKING:
    from tidegate.control.machines import FleetLoop

log = logging.getLogger(__name__)


# Producers that have just heard of it put to it for some seconds more.
PATIENCE_S = 15.0


class Lingering:
    """Looks after the drains of one logical queue."""

    def __init__(self) -> None:
        # By number of the replica: since when it has been about to go.
        self._since: dict[int, float] = {}

    def words(self, topology: Topology, sample: QueueSample) -> list[str]:
        """Return a sentence for each replica that drains for longer than PATIENCE_S."""
        going = [one for one in sample.replicas if one.state is ReplicaState.DRAINING]
        self._since = {one.number: self._since.get(one.number, sample.at) for one in going}
        return [
            f"replica {one.number} is still to go: {', '.join(found)}"
            for one in going
            if sample.at - self._since[one.number] >= PATIENCE_S
            and (found := _what_keeps(one, topology))
        ]


def _what_keeps(one: ReplicaSample, topology: Topology) -> list[str]:
    """Without numbers: they change with every look, and each other sentence is written down."""
    if not one.reachable:
        return ["it cannot be reached"]
    keeps = {
        "it still gets new messages": one.share > NO_SHARE,
        "messages wait in it": one.waiting > 0,
        "messages are with its consumers": one.unacknowledged > 0,
        "producers have put to it in the last seconds": one.producers > 0,
        "consumers that are not its own workers are there": one.consumers
        > own_workers(topology.scaling),
        "it is the home of groups or receivers": topology.is_home(one.number),
    }
    return [words for words, is_so in keeps.items() if is_so]


# The loop of one logical queue: reconcile, sample, decide, act, record.
#
# Theory of operation
# -------------------
#
# A `QueueLoop` exists on the leader for each logical queue. `ControlLoops` polls the nodes' stats
# and then calls `run_once` when the queue's polling interval has passed. One period does this:
#
#     1. reconcile   retire replicas whose queue is gone; starting replicas serve; assign the groups
#                    and receivers to replicas (`TopologyReconciler`)
#     2. sample      the sensor builds a `QueueSample` from the stats that were just polled
#     3. measure     the queue's agreement, if it has one, judges the last window
#     4. decide      the `Autoscaler` returns the actions and their explanation
#     5. inside      in automatic mode with the policy "agreement": at a warning, automatic prefetch
#                    is switched on before replicas are added, as a decision of its own
#     6. act         the actuator executes each action
#     7. record      the journal stores the decision; the agreement records what changed in it
#
# The loop itself decides nothing about the number of replicas. A replica that is ordered only
# raises
# `pending`. With a fleet, `FleetLoop` places pending replicas on machines in its next period and
# lowers `pending`. Without a fleet every node has room, and the replica is created at once.
#
# What does not change:
#
# - The mode "recommend" executes no action that changes the number of replicas, with one exception:
#   a queue without any replica gets its first one, because it would deliver nothing without it.
# - An override is stronger than the agreement, and the agreement is stronger than learned values.
# - An action that fails does not stop the others. Its text is part of the decision's result, and
# the
#   next period decides again from the next sample.
#
# `pending` is in memory only. After a change of leader it is 0, and the autoscaler orders the
# missing
# replicas again. `StaleEpoch` and other errors of the store leave `run_once`; the leader handles
# them.


class QueueLoop:
    """Runs the periods of one logical queue while this node leads."""

    def __init__(
        self,
        store: Store,
        sensor: NativeSensor,
        actuator: NativeActuator,
        journal: Journal,
        learned: AcceptedModels,
        fleet_loop: FleetLoop | None,
        keeping: AgreementMonitor,
    ) -> None:
        self._keeping = keeping
        self._store = store
        self._sensor = sensor
        self._actuator = actuator
        self._journal = journal
        self._learned = learned
        self._fleet_loop = fleet_loop
        self._upkeep = TopologyReconciler()
        self._worker_words = WorkerErrors()
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
        is_ours = topology.scaling.steering is ControlMode.AUTO
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
        homes = self._upkeep.assignments(topology, lambda number: self._seen(topology, number))
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

    def _seen(self, topology: Topology, number: int) -> ReportedAssignments | None:
        place = topology.replica(number)
        queue_id = (
            topology.queue_id if number == ALIAS else None if place is None else place.queue_id
        )
        numbers = None if queue_id is None else self._sensor.numbers_of(queue_id)
        return (
            None
            if numbers is None
            else ReportedAssignments(numbers.homes_held, numbers.homes_ahead)
        )

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
            pledge = agreement.wait_target(scaling.sla_delta)
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
            actions=[*decision.actions, *return_to_alias(sample)],
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
            scaling = with_agreed_scaling(scaling, agreement.said)
        return self._learned.complete(topology.queue, scaling)

    def capacity_guess(self, topology: Topology) -> PlanningInput | None:
        """Return the assumed capacity of one replica; None unless the policy is "agreement".

        It is used until the autoscaler has measured the capacity.
        """
        agreement, scaling = self._keeping.agreement, topology.scaling
        if agreement is None or scaling.policy is not ScalingPolicy.AGREEMENT:
            return None
        learned = self._learned.capacity(topology.queue)
        return replica_capacity(agreement.said, scaling.capacity_per_s, learned)

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
            failure = await self._execute(topology, inside.action, epoch)
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
            outcome="; ".join(filter(None, (failure, f"{then}: {format_rule(decision.rule)}"))),
        )
        await self._journal.write(first, epoch)

    async def _act(
        self, topology: Topology, sample: QueueSample, decision: Decision, epoch: int
    ) -> Decision:
        recommends = topology.scaling.steering is ControlMode.RECOMMEND
        # In recommend mode too: a queue without any replica delivers nothing.
        is_first = not topology.replicas and not self.pending
        left, failures = [], []
        for action in decision.actions:
            if recommends and not isinstance(action, NON_SCALING_ACTIONS) and not is_first:
                left.append(action)
                continue
            failure = await self._execute(topology, action, epoch)
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
        if away := unreachable_replicas(topology, sample):
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
        words = self._worker_words.errors_of(topology.queue, waiting, machines, sample.at)
        return ": ".join([told, *words[:1]])

    def _arrivals(self) -> str:
        numbers = ", ".join(map(str, self._came))
        return f"replica {numbers} serves now" if self._came else ""

    async def _execute(self, topology: Topology, action: AnyAction, epoch: int) -> str | None:
        match action:
            case AddReplica(count):
                self.pending += count
                return None if self._fleet_loop else await self._add_here(topology, epoch)
            case CancelPending(count):
                self.pending = max(self.pending - count, 0)
                return None
        return await self._actuator.execute(topology, action, epoch)  # type: ignore[arg-type]

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


# Reconciles a topology with what its replicas report: replica states and assignments.
#
# Two things change besides the number of replicas:
#
#     STARTING → SERVING     the replica's owner answers and, if a machine runs its workers, a
#                            consumer is there
#     slot → other replica   its replica serves no more, or another has far fewer slots; nothing of
#                            the slot was seen in the last samples, and the assignment is open
#     closed → open          no member except the assigned replica holds or accepts anything of it
#
# A topology has ASSIGNMENT_SLOTS assignment slots. Each group and each receiver hashes to one of
# them, and all its messages go to the replica assigned to this slot, in order. A negative number in
# `assignments` is a closed assignment: the slot is about to move to that replica.
#
# An assignment moves in two steps, so that no message overtakes another. First it is closed: a
# member that still holds messages of the slot hands them over, and no member accepts new ones. When
# only the new replica can have any, the assignment is opened. Until then it does not move again;
# the messages for the next replica would come from two places, in any order. A busy slot does not
# move, unless its replica is draining.
#
# This module is pure: it reads samples and returns changes.


# Samples in which a slot must be empty before it moves. A member with the old topology may still
# accept messages for it, and a slot that stays empty this long is not in constant use.
SAMPLES_MIN = 3
# Samples to wait for a draining replica. Then its slots move although they are busy: their messages
# are handed over while the assignment is closed, or end with the consumers that hold them.
SAMPLES_PATIENT = 10


class ReportedAssignments(NamedTuple):
    """What a replica, or the alias, reports about assignment slots."""

    # Slots of which it holds any message.
    held: Collection[int]
    # Slots for which it accepts puts, or holds messages that precede all later puts.
    ahead: Collection[int]


# The report of a replica by its number, or of ALIAS; None if its owner did not answer.
ReadAssignments = Callable[[int], ReportedAssignments | None]


class TopologyReconciler:
    """Reconciles the topology of one logical queue."""

    def __init__(self) -> None:
        # Consecutive samples in which a slot was empty.
        self._empty_looks = [0] * ASSIGNMENT_SLOTS
        # Consecutive samples in which the slot's replica was draining.
        self._going_looks = [0] * ASSIGNMENT_SLOTS

    def serving(self, topology: Topology, sample: QueueSample) -> list[int]:
        """Return the numbers of starting replicas that can serve from now on."""
        has_worker = topology.scaling.worker is not None
        return [
            replica.number
            for replica in sample.replicas
            if replica.state is ReplicaState.STARTING
            and replica.reachable
            and (replica.consumers > 0 or not has_worker or replica.machine_id is None)
        ]

    def assignments(self, topology: Topology, seen: ReadAssignments) -> list[int] | None:
        """Return the new assignment of every slot; None if nothing changes.

        Empty means that the alias holds all groups and receivers again, because the last replica
        drains. Call it once per period: it counts the samples in which slots were empty.
        """
        serving = [p.number for p in topology.replicas if p.state is ReplicaState.SERVING]
        if len(topology.homes) != ASSIGNMENT_SLOTS:
            return (
                [-serving[index % len(serving)] for index in range(ASSIGNMENT_SLOTS)]
                if serving
                else None
            )
        homes = self._opened(topology, seen)
        self._observe(topology, seen)
        if not serving:
            # The last replicas drain. The alias takes over all slots once they are empty and open.
            is_over = all(p.state is ReplicaState.DRAINING for p in topology.replicas)
            is_empty = min(self._empty_looks) >= SAMPLES_MIN and min(homes) > 0
            return [] if is_over and is_empty else None
        counts = Counter(dict.fromkeys(serving, 0))
        counts.update(abs(number) for number in homes if abs(number) in counts)
        least = min(counts.values())
        for index, home in enumerate(homes):
            number = abs(home)
            if home < 0 and topology.replica(number) is not None:
                # Parts of the slot may be in the new replica and parts on the way. A second move
                # would deliver them to the next replica from two places, in any order.
                continue
            if home > 0 and not self._may_leave(index):
                continue
            if number in counts and counts[number] - least <= 1:
                continue
            poorest = min(serving, key=lambda one: (counts[one], one))
            least = counts[poorest]
            if number not in counts:
                homes[index] = -poorest
                counts[poorest] += 1
            elif counts[number] - counts[poorest] > 1:
                homes[index] = -poorest
                counts[number] -= 1
                counts[poorest] += 1
        return None if homes == topology.homes else homes

    def _may_leave(self, index: int) -> bool:
        return (
            self._empty_looks[index] >= SAMPLES_MIN or self._going_looks[index] >= SAMPLES_PATIENT
        )

    def _opened(self, topology: Topology, seen: ReadAssignments) -> list[int]:
        """Return the assignments; open each one whose slot only the assigned replica still has.

        A member that did not answer keeps all assignments closed, except those to itself.
        """
        homes = list(topology.homes)
        if all(home > 0 for home in homes):
            return homes
        ahead = {
            number: None if (said := seen(number)) is None else frozenset(said.ahead)
            for number in (ALIAS, *(place.number for place in topology.replicas))
        }
        silent = {number for number, indices in ahead.items() if indices is None}
        elsewhere: dict[int, set[int]] = {}
        for number, indices in ahead.items():
            for index in indices or ():
                elsewhere.setdefault(index, set()).add(number)
        for index, home in enumerate(homes):
            if home < 0 and elsewhere.get(index, set()) | silent <= {-home}:
                homes[index] = -home
        return homes

    def _observe(self, topology: Topology, seen: ReadAssignments) -> None:
        holdings: dict[int, Collection[int] | None] = {
            place.number: None if (said := seen(place.number)) is None else said.held
            for place in topology.replicas
        }
        going = {p.number for p in topology.replicas if p.state is ReplicaState.DRAINING}
        for index, number in enumerate(topology.homes):
            # A replica that is gone holds nothing.
            holding = holdings.get(abs(number), ())
            is_empty = holding is not None and index not in holding
            self._empty_looks[index] = self._empty_looks[index] + 1 if is_empty else 0
            is_going = holding is not None and abs(number) in going
            self._going_looks[index] = self._going_looks[index] + 1 if is_going else 0


def return_to_alias(sample: QueueSample) -> list[Exchange]:
    """Return the transfers to the alias when all replicas drain.

    No replica is left to take over the messages, so the alias holds them. Empty if any replica
    stays or is ordered.
    """
    if sample.pending or any(one.state is not ReplicaState.DRAINING for one in sample.replicas):
        return []
    return [
        Exchange(source=one.number, target=ALIAS, count=one.waiting)
        for one in sample.replicas
        if one.reachable and one.waiting and not one.share
    ]


def missing_workers(topology: Topology, sample: QueueSample) -> list[ReplicaSample]:
    """Return the replicas that only wait for their workers; `tidegate explain` shows them."""
    if topology.scaling.worker is None:
        return []
    return [
        replica
        for replica in sample.replicas
        if replica.state is ReplicaState.STARTING
        and replica.reachable
        and replica.machine_id is not None
        and not replica.consumers
    ]


def unreachable_replicas(topology: Topology, sample: QueueSample) -> list[str]:
    """Describe the replicas that have served and cannot be reached, each with its store.

    The store is the likely reason.
    """
    away = {
        replica.number
        for replica in sample.replicas
        if not replica.reachable and replica.state is not ReplicaState.STARTING
    }
    return [
        f"replica {place.number} in store {place.store_number}"
        for place in topology.replicas
        if place.number in away
    ]


# What machines report about workers that do not start.
#
# A machine reports everything that is wrong with it in one text; each part begins with the name of
# a replica. The same worker may fail with a different text every few seconds. A text is therefore
# kept for a while, because the journal would record every change as a new decision.


# Seconds for which the text of a replica is kept.
_KEPT_S = 60.0


class WorkerErrors:
    """Worker errors of the replicas of one queue that wait for their workers."""

    def __init__(self) -> None:
        # By replica number: since when, and the text.
        self._said: dict[int, tuple[float, str]] = {}

    def errors_of(
        self,
        queue: str,
        waiting: Sequence[ReplicaSample],
        machines: Iterable[MachineInfo],
        now: float,
    ) -> list[str]:
        """Return the distinct reports about these replicas' workers; empty if there are none."""
        details = {machine.machine_id: machine.detail for machine in machines}
        kept: dict[int, tuple[float, str]] = {}
        for replica in waiting:
            since, words = self._said.get(replica.number, (now, ""))
            if not words or now - since >= _KEPT_S:
                detail = details.get(replica.machine_id or 0, "")
                since, words = now, _part(detail, replica_name(queue, replica.number))
            if words:
                kept[replica.number] = since, words
        self._said = kept
        return list(dict.fromkeys(words for _, words in kept.values()))


def _part(detail: str, replica: str) -> str:
    """Return the part of a machine's report about one replica; empty if there is none.

    It ends where the part of another replica of the same queue begins.
    """
    found = detail.find(f"{replica}: ")
    if found < 0:
        return ""
    logical = replica.rpartition("#")[0]
    return detail[found:].split(f"; {logical}#")[0]
