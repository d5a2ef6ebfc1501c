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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from tidegate.access.permissions import Permissions
from tidegate.agreement.kept_standing import KeptStanding
from tidegate.client.client import Client
from tidegate.console.missed_nodes import MissedNodes
from tidegate.core.errors import NotAuthenticated, TidegateError
from tidegate.core.fleet import FleetInfo
from tidegate.core.hosting import DoorSample, Instance, Service
from tidegate.core.model import QueueInfo
from tidegate.core.replication import Topology
from tidegate.core.users import Right
from tidegate.telemetry.numbers import ClusterNumbers, QueueNumbers

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


class HostingView(Protocol):
    """The part of a store that the console reads; nothing here changes data."""

    async def services(self) -> list[Service]: ...
    async def instances(self, service: str | None = None) -> list[Instance]: ...
    async def door_samples(self, service: str) -> list[DoorSample]: ...
    async def standings(self) -> dict[str, bytes]: ...
    async def decisions(self, service: str, count: int) -> list[bytes]: ...


class Sight:
    """The newest known state, as far as the user may see it."""

    def __init__(self) -> None:
        self.at = 0.0
        self.numbers = ClusterNumbers([])
        # Stats of each logical queue: of its alias and replicas, or of the plain queue.
        self.parts: dict[str, list[QueueNumbers]] = {}
        # Stats with durations, by queue id; possibly older.
        self.detailed: dict[int, QueueNumbers] = {}
        # Queues whose entries in `detailed` are from this poll.
        self.fresh: set[str] = set()
        self.queues: dict[str, QueueInfo] = {}
        self.topologies: dict[str, Topology] = {}
        self.fleet = FleetInfo()
        self.services: dict[str, Service] = {}
        self.instances: dict[str, list[Instance]] = {}
        self.doors: dict[str, list[DoorSample]] = {}
        # By ("queue" or "http", name).
        self.standings: dict[tuple[str, str], KeptStanding] = {}
        self.has_store = False
        # No node has answered: the values of queues are old.
        self.is_stale = True
        # Names of nodes that answered recently, did not leave, and are silent now.
        self.nodes_gone: list[str] = []
        self.complaints: list[str] = []


class Look:
    """Keeps a snapshot up to date."""

    def __init__(
        self,
        client: Client,
        permissions: Callable[[], Permissions],
        store: HostingView | None,
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
        self._nodes = MissedNodes()
        self.sight = Sight()
        self.sight.has_store = store is not None

    @property
    def parts(self) -> int:
        """Number of queues with stats, each replica counted."""
        return sum(len(node.queues) for node in self.sight.numbers.nodes)

    async def again(self, focused: Iterable[str]) -> Sight:
        """Poll all sources that are due; raise NotAuthenticated if the broker rejects the user."""
        sight = self.sight
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
        if self.sight.is_stale:
            return
        await self._miss_nodes()
        await self._lists()
        if self._is_due("fleet", _FLEET_S):
            with self._complaining("the machines"):
                self.sight.fleet = await in_time(self._client.fleet())

    async def _numbers(self, focused: Iterable[str]) -> None:
        sight = self.sight
        sight.fresh = set()
        sight.is_stale = True
        sight.numbers = ClusterNumbers([])
        every_s = max(_DURATIONS_S_MIN, len(sight.detailed) / _DURATIONS_PER_S)
        with self._complaining(_NODES):
            if self._is_due("durations", every_s):
                found = await in_time(self._client.stats())
                self._take(found)
                sight.fresh = set(sight.parts)
                sight.detailed = {one.queue_id: one for one in _queues(found)}
            else:
                self._take(await in_time(self._client.stats(brief=True)))
        if sight.is_stale:
            return
        for name in focused:
            if name not in sight.parts or name in sight.fresh:
                continue
            with self._complaining(f"queue {name}"):
                for one in _queues(await in_time(self._client.stats(name))):
                    sight.detailed[one.queue_id] = one
                sight.fresh.add(name)

    def _take(self, numbers: ClusterNumbers) -> None:
        sight = self.sight
        sight.numbers = numbers
        sight.is_stale = False
        sight.parts = {}
        for one in _queues(numbers):
            sight.parts.setdefault(one.logical or one.name, []).append(one)

    async def _miss_nodes(self) -> None:
        now = self._clock()
        self._nodes.take((node.name for node in self.sight.numbers.nodes), now)
        if self._nodes.is_to_ask(now):
            with self._complaining("who is a member"):
                members = await in_time(self._client.members())
                self._nodes.listed({one.name for one in members}, now)
        self.sight.nodes_gone = self._nodes.names(now)

    async def _lists(self) -> None:
        sight = self.sight
        # Queues that were never used since their node started have no stats, but are listed.
        others = sight.parts.keys() != self._names
        if self._is_due("queues", _LIST_S, at_once=others):
            self._names = set(sight.parts)
            with self._complaining("the list of queues"):
                listed = await in_time(self._client.queues())
                sight.queues = {one.name: one for one in listed if not one.alias_id}
                for one in sight.queues.values():
                    # A queue that was deleted and created again has another id.
                    self._client.note_queue(one)
        if self._is_due("topologies", _TOPOLOGIES_S):
            with self._complaining("how queues scale"):
                version, found = await in_time(self._client.topologies(self._topology_version))
                self._topology_version = version
                if found is not None:
                    sight.topologies = {one.queue: one for one in found}

    async def _hosting(self, store: HostingView) -> None:
        sight = self.sight
        with self._complaining("the store"):
            if self._is_due("store", _STORE_S):
                services = await in_time(store.services())
                sight.services = {
                    one.spec.name: one
                    for one in services
                    if self._permissions().allows(Right.SEE, one.spec.name)
                }
                instances: dict[str, list[Instance]] = {}
                for instance in await in_time(store.instances()) if sight.services else []:
                    instances.setdefault(instance.service, []).append(instance)
                sight.instances = instances
                sight.standings = self._visible(await in_time(store.standings()))
            sight.doors = {name: await in_time(store.door_samples(name)) for name in sight.services}

    def _visible(self, documents: Mapping[str, bytes]) -> dict[tuple[str, str], KeptStanding]:
        found: dict[tuple[str, str], KeptStanding] = {}
        for document in documents.values():
            kept = KeptStanding.from_json(document)
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
            self.sight.complaints.append(f"{about}: no answer within {ANSWER_S_MAX:g} s")
        except TidegateError as failure:
            self.sight.complaints.append(f"{about}: {failure}")


def _queues(numbers: ClusterNumbers) -> Iterator[QueueNumbers]:
    for node in numbers.nodes:
        yield from node.queues


async def in_time(asked: Awaitable[Answer]) -> Answer:
    """Await a request for at most 3 seconds; raise TimeoutError after that."""
    async with asyncio.timeout(ANSWER_S_MAX):
        return await asked
