"""The view of one user: one poll per second, however many pages the user has open.

Theory of operation.

A task polls once a second; every two seconds if the user sees many queues. Each poll updates the
snapshot, builds an `Overview` and one point per service, and wakes the waiting pages
(`next_snapshot`).

- The task starts with the first request. It stops five minutes after the last one, and starts again
  with the next.
- A change by the user (`hurry`) triggers the next poll at once, at least 0.25 seconds after the one
  before.
- A displayed service (`focus`) gets its durations with each poll for 20 seconds; at most 16
  services at a time.
- If no node answers, the rows stay as they were, no points are added, and the overview has a
  complaint.
- Errors never end the view, except one: if the broker rejects the user, all waiting pages get that
  error, and so does every later call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.client.address import Credentials
from tidegate.client.client import Client
from tidegate.console.schemas import (
    AgreementState,
    Attention,
    Kind,
    Light,
    Overview,
    Point,
    ReplicaPoint,
    ServiceRow,
)
from tidegate.console.snapshot import (
    ConsoleStore,
    HttpServiceHistory,
    Key,
    QueueHistory,
    Snapshot,
    SnapshotPoller,
    http_agreement,
    queue_agreement,
    with_timeout,
)
from tidegate.core.decisions import format_count
from tidegate.core.errors import NotAuthenticated, TidegateError, Unavailable
from tidegate.core.machines import MachineState
from tidegate.core.model import Grant, Permissions, Right
from tidegate.core.text import format_duration_long

log = logging.getLogger(__name__)

POLL_S = 1.0
# With many queues: still within two seconds, and half the load on nodes.
POLL_MANY_S = 2.0
MANY_SERVICES = 750
# Minimum seconds between two polls.
_REST_S = 0.25
# Polling stops so long after the last request.
IDLE_S = 300.0
# A service counts as displayed for so long after a request for it.
FOCUS_S = 20.0
FOCUSED_MAX = 16
SERVICES_MAX = 2_000
# Interval over which growing dead letters are reported.
_DEAD_S = 300.0


class UserView:
    """The services as one user sees them."""

    def __init__(
        self,
        client: Client,
        permissions: Callable[[], Permissions],
        store: ConsoleStore | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._poller = SnapshotPoller(client, permissions, store, clock)
        self._clock = clock
        self._seen: dict[Key, QueueHistory | HttpServiceHistory] = {}
        self._timelines: dict[Key, ServiceTimeline] = {}
        self._focused: dict[Key, float] = {}
        self._dead: deque[tuple[float, dict[str, int]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._looked: asyncio.Future[None] | None = None
        self._asked_at = clock()
        self._looked_at = -math.inf
        self._hurried = asyncio.Event()
        self._ended: TidegateError | None = None
        self._encoded: bytes | None = None
        self.overview = Overview(at=0.0, attention=None, services=[])
        self.agreements: dict[Key, AgreementState] = {}

    # Interface for pages

    async def current(self) -> Overview:
        """Return the newest overview; poll first if it is older than a few seconds."""
        self._wake()
        # The monotonic clock, which no clock change affects.
        if self._clock() - self._looked_at > 3 * POLL_MANY_S:
            await self.next_snapshot()
        return self.overview

    async def next_snapshot(self) -> None:
        """Wait for the next poll; raise NotAuthenticated if the broker rejects the user."""
        self._wake()
        if self._looked is None:
            self._looked = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._looked)

    def hurry(self) -> None:
        """Poll at once: the user has changed something, or looks for a new service."""
        self._hurried.set()

    def encoded(self) -> bytes:
        """Return the overview as JSON, encoded once for all streams."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(self.overview)
        return self._encoded

    def focus(self, key: Key) -> None:
        """Read all about a displayed service with each poll, for a while."""
        self._focused.pop(key, None)
        self._focused[key] = self._clock()
        # Each displayed service costs the nodes a request. Beyond the maximum the oldest ones are
        # updated as seldom as all others.
        while len(self._focused) > FOCUSED_MAX:
            del self._focused[next(iter(self._focused))]

    @property
    def snapshot(self) -> Snapshot:
        return self._poller.snapshot

    def row(self, key: Key) -> ServiceRow | None:
        return next((one for one in self.overview.services if (one.kind, one.name) == key), None)

    def timeline(self, key: Key) -> ServiceTimeline:
        """Return a service's timeline; empty if the service is unknown."""
        return self._timelines.get(key) or ServiceTimeline()

    def newest(self, key: Key) -> Point | None:
        return self.timeline(key).newest

    async def close(self) -> None:
        """End the view for good, before its connection closes."""
        self._ended = Unavailable("this user has left the console: log in again")
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tell(self._ended)

    # Polling

    def _wake(self) -> None:
        self._asked_at = self._clock()
        if self._ended is not None:
            raise self._ended
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._clock() - self._asked_at < IDLE_S:
            begun = self._clock()
            try:
                await self._once()
            except NotAuthenticated as failure:
                self._ended = failure
                self._tell(failure)
                return
            except Exception:
                log.exception("a bug while looking")
            self._looked_at = self._clock()
            self._tell(None)
            await asyncio.sleep(_REST_S)
            with contextlib.suppress(TimeoutError):
                every_s = POLL_S if self._poller.parts < MANY_SERVICES else POLL_MANY_S
                left_s = max(every_s - (self._clock() - begun), 0.0)
                await asyncio.wait_for(self._hurried.wait(), left_s)
            self._hurried.clear()

    async def _once(self) -> None:
        now = self._clock()
        self._focused = {k: at for k, at in self._focused.items() if now - at < FOCUS_S}
        sight = await self._poller.poll(
            [name for kind, name in self._focused if kind is Kind.QUEUE]
        )
        # Without stats, draw no points: show the previous rows with the complaint.
        rows = self.overview.services if sight.is_stale else self._services(sight)
        dead = {row.name: row.dead for row in rows if row.dead_queue}
        self._dead.append((now, dead))
        while now - self._dead[0][0] > _DEAD_S:
            self._dead.popleft()
        machines = sight.fleet.machines
        self.overview = Overview(
            at=sight.at,
            attention=attention(sight, rows, self.agreements, self._dead[0][1]),
            services=rows,
            nodes=len(sight.numbers.nodes),
            machines_up=sum(one.state is MachineState.UP for one in machines),
            machines_warm=sum(one.state is MachineState.WARM for one in machines),
            machines_booting=sum(one.state is MachineState.BOOTING for one in machines),
            complaints=sight.complaints[:5],
        )
        self._encoded = None

    def _services(self, sight: Snapshot) -> list[ServiceRow]:
        there: list[Key] = [(Kind.HTTP, name) for name in sorted(sight.services)]
        there += [(Kind.QUEUE, name) for name in sorted(sight.queues.keys() | sight.parts.keys())]
        if len(there) > SERVICES_MAX:
            sight.complaints.append(
                f"{len(there) - SERVICES_MAX} services more than are shown: a user with fewer "
                "grants sees fewer"
            )
            del there[SERVICES_MAX:]
        rows = []
        self.agreements = {}
        for key in there:
            kind, name = key
            seen = self._seen.get(key)
            if seen is None:
                seen = self._seen[key] = (
                    HttpServiceHistory if kind is Kind.HTTP else QueueHistory
                )(name)
                self._timelines[key] = ServiceTimeline()
            agreement = (http_agreement if kind is Kind.HTTP else queue_agreement)(sight, name)
            if agreement is not None:
                self.agreements[key] = agreement
            row, point = seen.update(sight, agreement)
            rows.append(row)
            self._timelines[key].add(point)
        for gone in self._seen.keys() - set(there):
            del self._seen[gone], self._timelines[gone]
        return rows

    def _tell(self, failure: TidegateError | None) -> None:
        looked, self._looked = self._looked, None
        if looked is None or looked.done():
            return
        if failure is None:
            looked.set_result(None)
        else:
            looked.set_exception(failure)
            # Retrieve the exception, since no task may be waiting.
            looked.exception()


# The attention item of the overview: the most urgent problem, in a sentence, with advice.
#
# node gone > breached > no consumers > dead letters grow > paused > no machine > warned


# A queue without consumers for longer than this is no longer just starting.
_ABANDONED_S = 10.0
_MUCH = 100


def attention(
    sight: Snapshot,
    rows: Sequence[ServiceRow],
    agreements: Mapping[tuple[Kind, str], AgreementState],
    dead_before: Mapping[str, int],
) -> Attention | None:
    """Return the most urgent problem; None if there is none.

    `dead_before` is the number of dead letters some minutes ago, by queue.
    """
    return next(_worst_first(sight, rows, agreements, dead_before), None)


def _worst_first(
    sight: Snapshot,
    rows: Sequence[ServiceRow],
    agreements: Mapping[tuple[Kind, str], AgreementState],
    dead_before: Mapping[str, int],
) -> Iterator[Attention]:
    yield from _nodes(sight)
    for light in (Light.BREACHED, Light.WARNED):
        if light is Light.WARNED:
            yield from _about_queues(rows, dead_before)
            yield from _machines(sight)
        for row in _by_budget(rows):
            if row.light is light:
                yield _of_agreement(row, agreements.get((row.kind, row.name)))


def _nodes(sight: Snapshot) -> Iterator[Attention]:
    if not sight.numbers.nodes:
        yield Attention(
            light=Light.BREACHED,
            service="",
            kind=None,
            text="No node answers: " + (sight.complaints[0] if sight.complaints else "none is up"),
            advice="Look whether `tidegate up` runs, and at its log.",
        )
    for name in sight.nodes_gone:
        yield Attention(
            light=Light.BREACHED,
            service="",
            kind=None,
            text=f"Node {name} does not answer any more.",
            advice="If it did not end by itself, its queues go to others when its lease has "
            "lapsed; `tidegate up` starts it again.",
        )
    answered = {node.member_id for node in sight.numbers.nodes}
    for machine in sight.fleet.machines:
        runs = machine.state in (MachineState.UP, MachineState.WARM)
        if runs and machine.member_id is not None and machine.member_id not in answered:
            yield Attention(
                light=Light.BREACHED,
                service="",
                kind=None,
                text=f"The node of machine {machine.machine_id} does not answer.",
                advice="Its queues go to others when its lease has lapsed; see the fleet.",
            )


def _machines(sight: Snapshot) -> Iterator[Attention]:
    failed = [one for one in sight.fleet.machines if one.state is MachineState.FAILED]
    booting = [one for one in sight.fleet.machines if one.state is MachineState.BOOTING]
    waiting = sight.fleet.instances_waiting
    if waiting and not booting:
        yield Attention(
            light=Light.WARNED,
            service="",
            kind=None,
            text=f"{format_count(waiting, 'instance')} without a machine, and none is booting.",
            advice="Allow more machines (fleet.machines_max), or start `tidegate machine`.",
        )
    if failed and sight.fleet.machines:
        newest = max(failed, key=lambda one: one.ordered_at)
        why = newest.detail or "nobody knows why"
        if sight.at - newest.ordered_at < 600.0:
            yield Attention(
                light=Light.WARNED,
                service="",
                kind=None,
                text=f"Machine {newest.machine_id} has failed: {why}",
                advice="The leader orders another; if that fails too, see fleet.boot.",
            )


def _about_queues(
    rows: Sequence[ServiceRow], dead_before: Mapping[str, int]
) -> Iterator[Attention]:
    queues = [row for row in rows if row.kind is Kind.QUEUE]
    of_dead = {row.dead_queue for row in queues if row.dead_queue}
    worst = sorted(queues, key=lambda row: -(row.oldest_age_s or 0.0))
    for row in worst:
        # A queue of dead letters needs no consumers.
        if row.name in of_dead or row.paused or not row.waiting or row.consumers:
            continue
        if (row.oldest_age_s or 0.0) > _ABANDONED_S and row.out_per_s == 0.0:
            yield Attention(
                light=Light.WARNED,
                service=row.name,
                kind=Kind.QUEUE,
                text=f"Nobody consumes from {row.name}: {format_count(row.waiting, 'message')} "
                f"there, "
                f"the oldest for {format_duration_long(row.oldest_age_s or 0.0)}.",
                advice="Start its workers.",
            )
    for row in queues:
        more = row.dead - dead_before.get(row.name, row.dead)
        if more > 0:
            yield Attention(
                light=Light.WARNED,
                service=row.name,
                kind=Kind.QUEUE,
                text=f"{row.name} has given up {format_count(more, 'message')} in the last "
                f"minutes; "
                f"{row.dead:,} in {row.dead_queue}.",
                advice="Read there why; redrive them when it is mended.",
            )
    for row in sorted(queues, key=lambda row: -row.waiting):
        if row.paused and row.waiting >= _MUCH:
            yield Attention(
                light=Light.WARNED,
                service=row.name,
                kind=Kind.QUEUE,
                text=f"{row.name} is paused, with {format_count(row.waiting, 'message')} waiting.",
                advice="Resume it when its consumers may go on.",
            )


def _by_budget(rows: Sequence[ServiceRow]) -> list[ServiceRow]:
    return sorted(rows, key=lambda row: 1.0 if row.budget_left is None else row.budget_left)


def _of_agreement(row: ServiceRow, state: AgreementState | None) -> Attention:
    what = "breaches" if row.light is Light.BREACHED else "is close to breaching"
    evidence = ""
    if state is not None:
        said = [one.evidence for one in state.promises if one.light is row.light and one.evidence]
        evidence = f": {said[0]}" if said else ""
    budget = ""
    if row.budget_left is not None:
        budget = f" {max(row.budget_left, 0.0):.0%} of its error budget is left."
    doing = "" if state is None or not state.doing else f"Being done: {state.doing}"
    return Attention(
        light=row.light,
        service=row.name,
        kind=row.kind,
        text=f"{row.name} {what} its agreement{evidence}.{budget}",
        advice=doing or "See its page for what was decided, and why.",
    )


# The last 15 minutes of one service, in bounded memory, for charts.
#
# The newest three minutes have every point; older ones have each fifth point. Points are packed: a
# service takes some tens of kilobytes, 500 services a few tens of megabytes. If a service has more
# than 32 replicas, only the newest point contains them.


FINE_POINTS = 180
COARSE_EVERY = 5
COARSE_POINTS = 144
REPLICAS_KEPT_MAX = 32

_POINT_FIELDS = tuple(name for name in Point.__struct_fields__ if name != "replicas")
_REPLICA_FIELDS = ReplicaPoint.__struct_fields__


class ServiceTimeline:
    """The points of one service; the newest is last."""

    def __init__(self) -> None:
        self._fine: deque[bytes] = deque()
        self._coarse: deque[bytes] = deque(maxlen=COARSE_POINTS)
        self._passed = 0
        self.newest: Point | None = None

    def add(self, point: Point) -> None:
        self.newest = point
        self._fine.append(_packed(point))
        if len(self._fine) > FINE_POINTS:
            gone = self._fine.popleft()
            self._passed += 1
            if self._passed % COARSE_EVERY == 0:
                self._coarse.append(gone)

    def points(self) -> list[Point]:
        found = [_unpacked(one) for one in (*self._coarse, *self._fine)]
        if self.newest is not None:
            found[-1] = self.newest
        return found


def _packed(point: Point) -> bytes:
    few = len(point.replicas) <= REPLICAS_KEPT_MAX
    replicas = [
        [getattr(one, name) for name in _REPLICA_FIELDS] for one in (point.replicas if few else [])
    ]
    return msgspec.msgpack.encode([[getattr(point, name) for name in _POINT_FIELDS], replicas])


def _unpacked(packed: bytes) -> Point:
    values, replicas = msgspec.msgpack.decode(packed)
    fields: dict[str, Any] = dict(zip(_POINT_FIELDS, values, strict=True))
    return Point(
        **fields,
        replicas=[ReplicaPoint(**dict(zip(_REPLICA_FIELDS, one, strict=True))) for one in replicas],
    )


# A user's connection to the broker.
#
# All pages and programs of one user share it. If a user is removed or gets other rights, the broker
# closes the connection. If it then rejects the user, the console ends the user's sessions too.


# Makes a client for a user's credentials, not opened yet; None means without a login.
Connect = Callable[[Credentials | None], Client]


class UserConnection:
    """A user with a broker connection; `user` is "" if no login is needed."""

    def __init__(
        self, client: Client, user: str, grants: list[Grant], store: ConsoleStore | None
    ) -> None:
        self.client = client
        self.user = user
        self.store = store
        # Number of open event streams of this user.
        self.streams = 0
        self._take(grants)
        self.watch = UserView(client, lambda: self.permissions, store)

    def _take(self, grants: list[Grant]) -> None:
        self._generation = self.client.generation
        self.permissions = Permissions(grants)
        self.is_admin = self.permissions.is_everything
        self.read_only = all(one.role is Right.READ for one in grants)

    async def refresh(self) -> None:
        """Read the user's rights again if the connection was replaced.

        The broker closes the connection when the rights change.
        """
        if self.client.generation != self._generation:
            _, grants = await with_timeout(self.client.rights())
            self._take(grants)

    @staticmethod
    async def logged_in(
        connect: Connect, credentials: Credentials | None, store: ConsoleStore | None
    ) -> UserConnection:
        """Log in at the broker.

        Raises NotAuthenticated if the password is wrong or missing, Unavailable if no node answers.
        """
        client = await connect(credentials).open()
        try:
            user, grants = await with_timeout(client.rights())
        except BaseException:
            await client.close()
            raise
        return UserConnection(client, user, grants, store)

    @property
    def is_gone(self) -> bool:
        """Whether the broker rejects this user now."""
        return isinstance(self.client.outage, NotAuthenticated)

    async def close(self) -> None:
        await self.watch.close()
        await self.client.close()

    def may(self, right: Right, queue: str) -> bool:
        return self.permissions.allows(right, queue)
