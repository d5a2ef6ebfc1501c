"""The history of each service: a row for the overview and a point for its charts per snapshot.

Counts between two snapshots are differences of totals, so each service remembers the previous
totals. The rates of queues come from the nodes, over their last full second.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.console.agreement_states import agreement_in, not_judged, state_of
from tidegate.console.model import (
    AgreementState,
    Kind,
    Light,
    Point,
    ReplicaPoint,
    ServiceRow,
)
from tidegate.console.sight import Sight
from tidegate.console.waits import NOTHING, Buckets, Waits, added, percentiles
from tidegate.core.by_hand import NOTHING_SAID
from tidegate.core.hosting import DoorSample, Instance, InstanceState
from tidegate.core.model import DEFAULT_POLICY
from tidegate.core.replication import ReplicaState, Topology
from tidegate.core.scaling import ScalingPolicy, Steering
from tidegate.telemetry.numbers import ConsumerNumbers, QueueNumbers

Key = tuple[Kind, str]


class QueueSeen:
    """The history of one queue with all its replicas."""

    def __init__(self, name: str) -> None:
        self._name = name
        # By queue id of the alias or replica.
        self._waits_before: dict[int, Buckets] = {}
        self._waits = NOTHING

    def look(self, sight: Sight, agreement: AgreementState | None) -> tuple[ServiceRow, Point]:
        name = self._name
        parts = sight.parts.get(name, [])
        topology = sight.topologies.get(name)
        detailed = [sight.detailed[one.queue_id] for one in parts if one.queue_id in sight.detailed]
        is_fresh = name in sight.fresh
        if is_fresh:
            self._waits = self._learned(detailed)
        dead_queue, dead = _dead_letters(sight, name)
        oldest_s = max((one.oldest_age_s for one in parts if one.waiting), default=None)
        waiting = sum(one.waiting for one in parts)
        row = ServiceRow(
            kind=Kind.QUEUE,
            name=name,
            light=Light.NONE if agreement is None else agreement.light,
            budget_left=None if agreement is None else agreement.budget_left,
            in_per_s=sum(one.put_per_s for one in parts),
            out_per_s=sum(one.acked_per_s for one in parts),
            waiting=waiting,
            oldest_age_s=oldest_s,
            wait_p95_s=self._waits.p95_s,
            replicas=1 if topology is None else _serving(topology),
            replicas_wanted=1 if topology is None else _wanted(topology),
            consumers=sum(one.consumer_count for one in parts),
            paused=any(one.paused for one in parts),
            steering="" if topology is None else topology.scaling.steering.value,
            dead=dead,
            dead_queue=dead_queue,
        )
        point = self._point(sight, row, parts, detailed if is_fresh else [], topology)
        return row, point

    def _learned(self, detailed: Sequence[QueueNumbers]) -> Waits:
        before, self._waits_before = (
            self._waits_before,
            {one.queue_id: one.wait.buckets for one in detailed},
        )
        # Totals of the first snapshot are older than the interval.
        return percentiles(
            added(before[one.queue_id], one.wait.buckets)
            for one in detailed
            if one.queue_id in before
        )

    def _point(
        self,
        sight: Sight,
        row: ServiceRow,
        parts: Sequence[QueueNumbers],
        detailed: Sequence[QueueNumbers],
        topology: Topology | None,
    ) -> Point:
        waits = self._waits if detailed else NOTHING
        consumers = [consumer for one in detailed for consumer in one.consumers]
        prefetch = sum(one.prefetch for one in parts)
        places = {} if topology is None else {one.number: one for one in topology.replicas}
        machines = {one.machine_id for one in places.values() if one.machine_id is not None}
        replicas = []
        numbers = {one.replica: one for one in parts if one.replica}
        for number in sorted(places.keys() | numbers.keys()):
            one, place = numbers.get(number), places.get(number)
            replicas.append(
                ReplicaPoint(
                    number=number,
                    state=ReplicaState.SERVING.value if place is None else place.state.value,
                    waiting=0 if one is None else one.waiting,
                    in_per_s=0.0 if one is None else one.put_per_s,
                    out_per_s=0.0 if one is None else one.acked_per_s,
                    share=None if place is None else place.share,
                    machine_id=None if place is None else place.machine_id,
                )
            )
        return Point(
            at=sight.at,
            in_per_s=row.in_per_s,
            out_per_s=row.out_per_s,
            waiting=row.waiting,
            oldest_age_s=row.oldest_age_s,
            wait_p50_s=waits.p50_s,
            wait_p95_s=waits.p95_s,
            wait_p99_s=waits.p99_s,
            prefetch=prefetch / row.consumers if row.consumers else None,
            prefetch_wanted=_mean(consumers, "wanted"),
            # The sum over the whole queue, like the rates.
            target_per_s=_sum(consumers, "target_per_s"),
            replicas=replicas,
            machines=len(machines) if machines else None,
        )


class HttpSeen:
    """The history of one HTTP application with all its instances."""

    def __init__(self, name: str) -> None:
        self._name = name
        # By door id, which changes with each start.
        self._before: dict[str, DoorSample] = {}

    def look(self, sight: Sight, agreement: AgreementState | None) -> tuple[ServiceRow, Point]:
        doors = sight.doors.get(self._name, [])
        instances = sight.instances.get(self._name, [])
        before, self._before = self._before, {one.door: one for one in doors}
        pairs = [(before[one.door], one) for one in doors if one.door in before]
        in_per_s = sum(_per_s(old, new, old.accepted, new.accepted) for old, new in pairs)
        out_per_s = sum(_per_s(old, new, old.answered, new.answered) for old, new in pairs)
        waits = percentiles(added(old.response, new.response) for old, new in pairs)
        serving = [one for one in instances if _serves(one)]
        service = sight.services.get(self._name)
        by_hand = NOTHING_SAID if service is None else service.by_hand
        ordered = sum(
            one.state not in (InstanceState.DRAINING, InstanceState.FAILED) and not one.is_spare
            for one in instances
        )
        row = ServiceRow(
            kind=Kind.HTTP,
            name=self._name,
            light=Light.NONE if agreement is None else agreement.light,
            budget_left=None if agreement is None else agreement.budget_left,
            in_per_s=in_per_s,
            out_per_s=out_per_s,
            waiting=sum(one.in_flight for one in doors),
            wait_p95_s=waits.p95_s,
            replicas=len(serving),
            replicas_wanted=ordered if by_hand.instances is None else by_hand.instances,
            steering=(Steering.AUTO if by_hand.instances is None else Steering.MANUAL).value,
        )
        point = Point(
            at=sight.at,
            in_per_s=in_per_s,
            out_per_s=out_per_s,
            waiting=row.waiting,
            wait_p50_s=waits.p50_s,
            wait_p95_s=waits.p95_s,
            wait_p99_s=waits.p99_s,
            replicas=[_instance_point(one, instances, pairs) for one in instances],
            machines=len({one.machine_id for one in instances if one.machine_id is not None}),
        )
        return row, point


def queue_agreement(sight: Sight, name: str) -> AgreementState | None:
    """Return the state of a queue's agreement; None if it has none."""
    topology = sight.topologies.get(name)
    text = None if topology is None else topology.scaling.agreement
    return _agreement(sight, "queue", name, text)


def http_agreement(sight: Sight, name: str) -> AgreementState | None:
    service = sight.services.get(name)
    return _agreement(sight, "http", name, None if service is None else service.spec.agreement)


def _agreement(sight: Sight, kind: str, name: str, text: str | None) -> AgreementState | None:
    kept = sight.standings.get((kind, name))
    agreement = agreement_in(text, name)
    if kept is not None and (text or kind == "queue"):
        return state_of(kept, agreement, sight.at)
    if not text:
        return None
    why = (
        "nobody has judged it yet"
        if sight.has_store
        else "this console has no store, where standings are kept: start it with --store or --data"
    )
    return not_judged(agreement, name, why)


def _serving(topology: Topology) -> int:
    return sum(one.state is ReplicaState.SERVING for one in topology.replicas)


def _wanted(topology: Topology) -> int:
    """Return the replicas that an override or a policy wants, or those that exist and stay."""
    scaling = topology.scaling
    if scaling.steering is Steering.MANUAL and scaling.replicas_wanted is not None:
        return scaling.replicas_wanted
    if scaling.policy is ScalingPolicy.FIXED:
        return scaling.replicas.min
    return sum(one.state is not ReplicaState.DRAINING for one in topology.replicas)


def _dead_letters(sight: Sight, name: str) -> tuple[str, int]:
    """Return the queue's dead-letter queue and the number of messages in it."""
    info = sight.queues.get(name)
    policy = DEFAULT_POLICY if info is None else info.policy
    dead_queue = policy.dead_letter_queue(name)
    if dead_queue is None or dead_queue == name or dead_queue not in sight.parts:
        return "", 0
    return dead_queue, sum(one.waiting for one in sight.parts[dead_queue])


def _sum(consumers: Sequence[ConsumerNumbers], field: str) -> float | None:
    known = _of_last_step(consumers, field)
    return sum(known) if known else None


def _mean(consumers: Sequence[ConsumerNumbers], field: str) -> float | None:
    known = _of_last_step(consumers, field)
    return sum(known) / len(known) if known else None


def _of_last_step(consumers: Sequence[ConsumerNumbers], field: str) -> list[float]:
    """Return a field of the last control step, for the controlled consumers."""
    found = [getattr(one.control[-1], field) for one in consumers if one.control]
    return [value for value in found if value is not None]


def _serves(instance: Instance) -> bool:
    return instance.state is InstanceState.READY and not instance.is_spare


def _per_s(before: DoorSample, now: DoorSample, old: int, new: int) -> float:
    return (new - old) / (now.at - before.at) if now.at > before.at else 0.0


def _instance_point(
    instance: Instance,
    instances: Sequence[Instance],
    pairs: Sequence[tuple[DoorSample, DoorSample]],
) -> ReplicaPoint:
    number = instance.instance_id
    outstanding, sent_per_s, answered_per_s = 0, 0.0, 0.0
    for old, new in pairs:
        before = {one.instance_id: one for one in old.instances}
        for one in new.instances:
            if one.instance_id != number:
                continue
            outstanding += one.outstanding
            if number in before:
                sent_per_s += _per_s(old, new, before[number].sent, one.sent)
                answered_per_s += _per_s(old, new, before[number].answered, one.answered)
    weights = sum(one.weight for one in instances if _serves(one))
    return ReplicaPoint(
        number=number,
        state="spare"
        if instance.is_spare and instance.state is InstanceState.READY
        else instance.state.value,
        waiting=outstanding,
        in_per_s=sent_per_s,
        out_per_s=answered_per_s,
        share=instance.weight / weights if weights and _serves(instance) else 0.0,
        machine_id=instance.machine_id,
    )
