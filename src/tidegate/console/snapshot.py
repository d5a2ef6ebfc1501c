"""Snapshots: the state of the broker and the store at one moment, as one user may see it.

Theory of operation.

`SnapshotPoller.poll` updates one `Snapshot` in place, about once a second, from the broker and the
store at the same time. To keep 500 queues cheap for a node, each source has its own interval:

    summary stats     each poll
    durations         every 2 s or more, so that about 75 queues per second are read; and each
                      poll for services that a page shows
    topologies        each second, and only if they have changed
    list of queues    every 15 s, and when a queue has appeared or disappeared
    machines, store   every 2 s

Every request is bounded by 3 seconds. A failed request adds a complaint to the snapshot, and the
previous value stays. If no node answers, `is_stale` is set and the rest of the broker is not asked.

A new connection (another node, or other rights) makes all sources due. Data from the store is
filtered by the user's permissions here. Data from the broker is filtered by the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

from tidegate.agreements.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.agreements.evaluation import SEVERITY, Verdict
from tidegate.agreements.ledger import StoredAgreementStatus
from tidegate.client.client import Client
from tidegate.console.schemas import (
    AgreementState,
    Kind,
    Light,
    Point,
    PromiseState,
    ReplicaPoint,
    ServiceRow,
)
from tidegate.core.errors import NotAuthenticated, TidegateError
from tidegate.core.machines import FleetInfo
from tidegate.core.model import DEFAULT_POLICY, Permissions, QueueInfo, Right
from tidegate.core.services import NO_OVERRIDE, DoorSample, Instance, InstanceState, Service
from tidegate.core.text import format_duration_long
from tidegate.core.topology import ControlMode, ReplicaState, ScalingPolicy, Topology
from tidegate.telemetry.stats import ClusterStats, ConsumerStats, QueueStats

Answer = TypeVar("Answer")

# Timeout of each request: the next poll is due by then.
ANSWER_S_MAX = 3.0
# Mean number of queues per second whose durations are read, beside the displayed ones.
_DURATIONS_PER_S = 75.0
_DURATIONS_S_MIN = 2.0
_LIST_S = 15.0
_FLEET_S = 2.0
_STORE_S = 2.0
_TOPOLOGIES_S = 1.0
_NODES = "the nodes"


class ConsoleStore(Protocol):
    """The part of a store that the console reads; nothing here changes data."""

    async def services(self) -> list[Service]: ...
    async def instances(self, service: str | None = None) -> list[Instance]: ...
    async def door_samples(self, service: str) -> list[DoorSample]: ...
    async def standings(self) -> dict[str, bytes]: ...
    async def decisions(self, service: str, count: int) -> list[bytes]: ...


class Snapshot:
    """The newest known state, as far as the user may see it."""

    def __init__(self) -> None:
        self.at = 0.0
        self.numbers = ClusterStats([])
        # Stats of each logical queue: of its alias and replicas, or of the plain queue.
        self.parts: dict[str, list[QueueStats]] = {}
        # Stats with durations, by queue id; possibly older.
        self.detailed: dict[int, QueueStats] = {}
        # Queues whose entries in `detailed` are from this poll.
        self.fresh: set[str] = set()
        self.queues: dict[str, QueueInfo] = {}
        self.topologies: dict[str, Topology] = {}
        self.fleet = FleetInfo()
        self.services: dict[str, Service] = {}
        self.instances: dict[str, list[Instance]] = {}
        self.doors: dict[str, list[DoorSample]] = {}
        # By ("queue" or "http", name).
        self.standings: dict[tuple[str, str], StoredAgreementStatus] = {}
        self.has_store = False
        # No node has answered: the values of queues are old.
        self.is_stale = True
        # Names of nodes that answered recently, did not leave, and are silent now.
        self.nodes_gone: list[str] = []
        self.complaints: list[str] = []


class SnapshotPoller:
    """Keeps a snapshot up to date."""

    def __init__(
        self,
        client: Client,
        permissions: Callable[[], Permissions],
        store: ConsoleStore | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._permissions = permissions
        self._store = store
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        self._topology_version = -1
        self._generation = client.generation
        self._names: set[str] = set()
        self._nodes = MissingNodes()
        self.snapshot = Snapshot()
        self.snapshot.has_store = store is not None

    @property
    def parts(self) -> int:
        """Number of queues with stats, each replica counted."""
        return sum(len(node.queues) for node in self.snapshot.numbers.nodes)

    async def poll(self, focused: Iterable[str]) -> Snapshot:
        """Poll all sources that are due; raise NotAuthenticated if the broker rejects the user."""
        sight = self.snapshot
        sight.complaints = []
        sight.at = time.time()
        if self._client.generation != self._generation:
            # A new connection may lead to another node, or have other rights.
            self._generation = self._client.generation
            self._asked_at.clear()
            self._topology_version = -1
        hosting = self._hosting(self._store) if self._store is not None else asyncio.sleep(0)
        # Concurrently, so that a silent source does not delay the other.
        await asyncio.gather(self._broker(focused), hosting)
        # The worst complaint comes first.
        sight.complaints.sort(key=lambda one: not one.startswith(_NODES))
        return sight

    async def _broker(self, focused: Iterable[str]) -> None:
        await self._numbers(focused)
        # A silent node would not answer the other requests either, and pages should hear of it
        # soon.
        if self.snapshot.is_stale:
            return
        await self._miss_nodes()
        await self._lists()
        if self._is_due("fleet", _FLEET_S):
            with self._complaining("the machines"):
                self.snapshot.fleet = await with_timeout(self._client.fleet())

    async def _numbers(self, focused: Iterable[str]) -> None:
        sight = self.snapshot
        sight.fresh = set()
        sight.is_stale = True
        sight.numbers = ClusterStats([])
        every_s = max(_DURATIONS_S_MIN, len(sight.detailed) / _DURATIONS_PER_S)
        with self._complaining(_NODES):
            if self._is_due("durations", every_s):
                found = await with_timeout(self._client.stats())
                self._take(found)
                sight.fresh = set(sight.parts)
                sight.detailed = {one.queue_id: one for one in _queues(found)}
            else:
                self._take(await with_timeout(self._client.stats(brief=True)))
        if sight.is_stale:
            return
        for name in focused:
            if name not in sight.parts or name in sight.fresh:
                continue
            with self._complaining(f"queue {name}"):
                for one in _queues(await with_timeout(self._client.stats(name))):
                    sight.detailed[one.queue_id] = one
                sight.fresh.add(name)

    def _take(self, numbers: ClusterStats) -> None:
        sight = self.snapshot
        sight.numbers = numbers
        sight.is_stale = False
        sight.parts = {}
        for one in _queues(numbers):
            sight.parts.setdefault(one.logical or one.name, []).append(one)

    async def _miss_nodes(self) -> None:
        now = self._clock()
        self._nodes.update((node.name for node in self.snapshot.numbers.nodes), now)
        if self._nodes.is_to_ask(now):
            with self._complaining("who is a member"):
                members = await with_timeout(self._client.members())
                self._nodes.listed({one.name for one in members}, now)
        self.snapshot.nodes_gone = self._nodes.names(now)

    async def _lists(self) -> None:
        sight = self.snapshot
        # Queues that were never used since their node started have no stats, but are listed.
        others = sight.parts.keys() != self._names
        if self._is_due("queues", _LIST_S, at_once=others):
            self._names = set(sight.parts)
            with self._complaining("the list of queues"):
                listed = await with_timeout(self._client.queues())
                sight.queues = {one.name: one for one in listed if not one.alias_id}
                for one in sight.queues.values():
                    # A queue that was deleted and created again has another id.
                    self._client.note_queue(one)
        if self._is_due("topologies", _TOPOLOGIES_S):
            with self._complaining("how queues scale"):
                version, found = await with_timeout(self._client.topologies(self._topology_version))
                self._topology_version = version
                if found is not None:
                    sight.topologies = {one.queue: one for one in found}

    async def _hosting(self, store: ConsoleStore) -> None:
        sight = self.snapshot
        with self._complaining("the store"):
            if self._is_due("store", _STORE_S):
                services = await with_timeout(store.services())
                sight.services = {
                    one.spec.name: one
                    for one in services
                    if self._permissions().allows(Right.SEE, one.spec.name)
                }
                instances: dict[str, list[Instance]] = {}
                for instance in await with_timeout(store.instances()) if sight.services else []:
                    instances.setdefault(instance.service, []).append(instance)
                sight.instances = instances
                sight.standings = self._visible(await with_timeout(store.standings()))
            sight.doors = {
                name: await with_timeout(store.door_samples(name)) for name in sight.services
            }

    def _visible(
        self, documents: Mapping[str, bytes]
    ) -> dict[tuple[str, str], StoredAgreementStatus]:
        found: dict[tuple[str, str], StoredAgreementStatus] = {}
        for document in documents.values():
            kept = StoredAgreementStatus.from_json(document)
            if kept is None:
                continue
            kind, name = ("http", kept.http) if kept.http else ("queue", kept.queue or "")
            if self._permissions().allows(Right.SEE, name):
                found[kind, name] = kept
        return found

    def _is_due(self, what: str, every_s: float, *, at_once: bool = False) -> bool:
        now = self._clock()
        before = self._asked_at.get(what)
        # Half a second of tolerance, since polls come about once a second.
        if before is not None and not at_once and now - before < every_s - 0.5:
            return False
        if at_once and before is not None and now - before < 0.9:
            return False
        self._asked_at[what] = now
        return True

    @contextlib.contextmanager
    def _complaining(self, about: str) -> Iterator[None]:
        """Turn a failed request into a complaint; the poll continues."""
        try:
            yield
        except NotAuthenticated:
            raise
        except TimeoutError:
            self.snapshot.complaints.append(f"{about}: no answer within {ANSWER_S_MAX:g} s")
        except TidegateError as failure:
            self.snapshot.complaints.append(f"{about}: {failure}")


def _queues(numbers: ClusterStats) -> Iterator[QueueStats]:
    for node in numbers.nodes:
        yield from node.queues


async def with_timeout(asked: Awaitable[Answer]) -> Answer:
    """Await a request for at most 3 seconds; raise TimeoutError after that."""
    async with asyncio.timeout(ANSWER_S_MAX):
        return await asked


# Nodes that have answered recently and are silent now, without those that left gracefully.
#
# A node that leaves removes itself from the list of members. A node that dies stays in the list
# until its lease expires. So the list tells the two apart, if it is read soon after a node fell
# silent.


# If a node is not in the list so soon after its last answer, it has left gracefully. Leases last 3
# s by default, and are renewed at a third of that.
LEAVES_S = 2.0
# How long a silent node is reported as missing.
MISSED_S = 120.0


class MissingNodes:
    """The time of each node's last answer."""

    def __init__(self) -> None:
        self._answered_at: dict[str, float] = {}

    def update(self, answered: Iterable[str], now: float) -> None:
        self._answered_at.update(dict.fromkeys(answered, now))
        self._answered_at = {
            name: at for name, at in self._answered_at.items() if now - at < MISSED_S
        }

    def is_to_ask(self, now: float) -> bool:
        """Return whether the list of members can still tell why a node is silent."""
        return any(0.0 < now - at <= LEAVES_S for at in self._answered_at.values())

    def listed(self, members: Collection[str], now: float) -> None:
        """Remove the nodes that have left, by the present list of members."""
        self._answered_at = {
            name: at
            for name, at in self._answered_at.items()
            if now - at > LEAVES_S or name in members
        }

    def names(self, now: float) -> list[str]:
        return sorted(name for name, at in self._answered_at.items() if at < now)


# The history of each service: a row for the overview and a point for its charts per snapshot.
#
# Counts between two snapshots are differences of totals, so each service remembers the previous
# totals. The rates of queues come from the nodes, over their last full second.


Key = tuple[Kind, str]


class QueueHistory:
    """The history of one queue with all its replicas."""

    def __init__(self, name: str) -> None:
        self._name = name
        # By queue id of the alias or replica.
        self._waits_before: dict[int, Buckets] = {}
        self._waits = NO_WAITS

    def update(self, sight: Snapshot, agreement: AgreementState | None) -> tuple[ServiceRow, Point]:
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
            replicas_wanted=1 if topology is None else _replicas_wanted(topology),
            consumers=sum(one.consumer_count for one in parts),
            paused=any(one.paused for one in parts),
            steering="" if topology is None else topology.scaling.steering.value,
            dead=dead,
            dead_queue=dead_queue,
        )
        point = self._point(sight, row, parts, detailed if is_fresh else [], topology)
        return row, point

    def _learned(self, detailed: Sequence[QueueStats]) -> WaitPercentiles:
        before, self._waits_before = (
            self._waits_before,
            {one.queue_id: one.wait.buckets for one in detailed},
        )
        # Totals of the first snapshot are older than the interval.
        return percentiles(
            bucket_increments(before[one.queue_id], one.wait.buckets)
            for one in detailed
            if one.queue_id in before
        )

    def _point(
        self,
        sight: Snapshot,
        row: ServiceRow,
        parts: Sequence[QueueStats],
        detailed: Sequence[QueueStats],
        topology: Topology | None,
    ) -> Point:
        waits = self._waits if detailed else NO_WAITS
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


class HttpServiceHistory:
    """The history of one HTTP application with all its instances."""

    def __init__(self, name: str) -> None:
        self._name = name
        # By door id, which changes with each start.
        self._before: dict[str, DoorSample] = {}

    def update(self, sight: Snapshot, agreement: AgreementState | None) -> tuple[ServiceRow, Point]:
        doors = sight.doors.get(self._name, [])
        instances = sight.instances.get(self._name, [])
        before, self._before = self._before, {one.door: one for one in doors}
        pairs = [(before[one.door], one) for one in doors if one.door in before]
        in_per_s = sum(_per_s(old, new, old.accepted, new.accepted) for old, new in pairs)
        out_per_s = sum(_per_s(old, new, old.answered, new.answered) for old, new in pairs)
        waits = percentiles(bucket_increments(old.response, new.response) for old, new in pairs)
        serving = [one for one in instances if _serves(one)]
        service = sight.services.get(self._name)
        by_hand = NO_OVERRIDE if service is None else service.by_hand
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
            steering=(ControlMode.AUTO if by_hand.instances is None else ControlMode.MANUAL).value,
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


def queue_agreement(sight: Snapshot, name: str) -> AgreementState | None:
    """Return the state of a queue's agreement; None if it has none."""
    topology = sight.topologies.get(name)
    text = None if topology is None else topology.scaling.agreement
    return _agreement(sight, "queue", name, text)


def http_agreement(sight: Snapshot, name: str) -> AgreementState | None:
    service = sight.services.get(name)
    return _agreement(sight, "http", name, None if service is None else service.spec.agreement)


def _agreement(sight: Snapshot, kind: str, name: str, text: str | None) -> AgreementState | None:
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


def _replicas_wanted(topology: Topology) -> int:
    """Return the replicas that an override or a policy wants, or those that exist and stay."""
    scaling = topology.scaling
    if scaling.steering is ControlMode.MANUAL and scaling.replicas_wanted is not None:
        return scaling.replicas_wanted
    if scaling.policy is ScalingPolicy.FIXED:
        return scaling.replicas.min
    return sum(one.state is not ReplicaState.DRAINING for one in topology.replicas)


def _dead_letters(sight: Snapshot, name: str) -> tuple[str, int]:
    """Return the queue's dead-letter queue and the number of messages in it."""
    info = sight.queues.get(name)
    policy = DEFAULT_POLICY if info is None else info.policy
    dead_queue = policy.dead_letter_queue(name)
    if dead_queue is None or dead_queue == name or dead_queue not in sight.parts:
        return "", 0
    return dead_queue, sum(one.waiting for one in sight.parts[dead_queue])


def _sum(consumers: Sequence[ConsumerStats], field: str) -> float | None:
    known = _of_last_step(consumers, field)
    return sum(known) if known else None


def _mean(consumers: Sequence[ConsumerStats], field: str) -> float | None:
    known = _of_last_step(consumers, field)
    return sum(known) / len(known) if known else None


def _of_last_step(consumers: Sequence[ConsumerStats], field: str) -> list[float]:
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


# Percentiles of the durations between two snapshots, from totals that only grow.
#
# Nodes and doors count durations in buckets since they began. The difference of two snapshots is
# the
# histogram of the interval. A histogram that has shrunk comes from a new owner, which counts from
# 0.


# Upper bound of a bucket in seconds, and its count.
Buckets = Sequence[tuple[float, int]]

FRACTIONS = (0.50, 0.95, 0.99)


class WaitPercentiles(NamedTuple):
    """The 50th, 95th and 99th percentile in seconds; None means that nothing was delivered."""

    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


NO_WAITS = WaitPercentiles()


def bucket_increments(before: Buckets, now: Buckets) -> dict[float, int]:
    """Return the increments of the buckets; the present counts if the histogram began again."""
    known = dict(before)
    grown = {bound: count - known.get(bound, 0) for bound, count in now}
    if any(count < 0 for count in grown.values()) or not known.keys() <= grown.keys():
        return dict(now)
    return {bound: count for bound, count in grown.items() if count}


def percentiles(parts: Iterable[dict[float, int]]) -> WaitPercentiles:
    """Return the percentiles of several histograms together."""
    total: dict[float, int] = {}
    for part in parts:
        for bound, count in part.items():
            total[bound] = total.get(bound, 0) + count
    if not total:
        return NO_WAITS
    found: list[float] = []
    seen, of_all = 0, sum(total.values())
    for bound in sorted(total):
        seen += total[bound]
        while len(found) < len(FRACTIONS) and seen >= FRACTIONS[len(found)] * of_all:
            found.append(bound)
    return WaitPercentiles(*found)


# Agreements as status lights, from what the leader has stored about them.


_LIGHTS = {
    Verdict.MET: Light.MET,
    Verdict.WARNED: Light.WARNED,
    Verdict.BREACHED: Light.BREACHED,
    Verdict.NO_DATA: Light.UNKNOWN,
}


# The cache holds one entry per service: agreements are read each second and hardly ever change.
@lru_cache(maxsize=2048)
def agreement_in(text: str | None, name: str) -> Agreement | None:
    """Parse an agreement; return None if there is none or it is invalid."""
    if not text:
        return None
    try:
        return parse_agreement(text, name)
    except AgreementInvalid:
        return None


def not_judged(agreement: Agreement | None, name: str, why: str) -> AgreementState:
    """Return the state of an agreement that has no verdict."""
    return AgreementState(
        name=name if agreement is None else agreement.name,
        light=Light.UNKNOWN,
        promises=[] if agreement is None else _unmeasured(agreement),
        doing=why,
    )


def state_of(
    kept: StoredAgreementStatus, agreement: Agreement | None, now: float
) -> AgreementState:
    """Return the state of an agreement; its limits too if the document is given."""
    standing = kept.standing
    silent = kept.is_silent(now)
    lines = {} if agreement is None else {one.name: one for one in agreement.metrics}
    worst_first = sorted(kept.promises, key=lambda one: -SEVERITY.index(one.verdict))
    promises = []
    for one in worst_first:
        promise = lines.get(one.metric)
        promises.append(
            PromiseState(
                metric=one.metric,
                light=Light.UNKNOWN if silent else _LIGHTS[one.verdict],
                value=one.value,
                warning=None if promise is None else promise.warning,
                breach=None if promise is None else promise.breach,
                unit="" if promise is None else promise.unit.value,
                evidence=one.evidence,
            )
        )
    return AgreementState(
        name=kept.agreement,
        light=Light.UNKNOWN if silent else _LIGHTS[kept.verdict],
        budget_left=standing.budget_left,
        burn_rate=standing.burn_hour,
        alarm=standing.alarm,
        met=standing.last_hour.met,
        warned=standing.last_hour.warned,
        breached=standing.last_hour.breached,
        promises=promises,
        doing=f"nobody has judged it for {format_duration_long(now - kept.at)}"
        if silent
        else kept.doing,
        judged_at=kept.at,
    )


def _unmeasured(agreement: Agreement) -> list[PromiseState]:
    return [
        PromiseState(
            metric=one.name,
            light=Light.UNKNOWN,
            value=None,
            warning=one.warning,
            breach=one.breach,
            unit=one.unit.value,
            evidence="",
        )
        for one in agreement.metrics
    ]
