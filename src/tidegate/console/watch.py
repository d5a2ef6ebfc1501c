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
from collections.abc import Callable

import msgspec

from tidegate.access.permissions import Permissions
from tidegate.client.client import Client
from tidegate.console.attention import attention
from tidegate.console.model import AgreementState, Kind, Overview, Point, ServiceRow
from tidegate.console.services_seen import (
    HttpSeen,
    Key,
    QueueSeen,
    http_agreement,
    queue_agreement,
)
from tidegate.console.sight import HostingView, Look, Sight
from tidegate.console.timeline import Timeline
from tidegate.core.errors import NotAuthenticated, TidegateError, Unavailable
from tidegate.core.fleet import MachineState

log = logging.getLogger(__name__)

LOOK_S = 1.0
# With many queues: still within two seconds, and half the load on nodes.
LOOK_AT_MUCH_S = 2.0
MUCH = 750
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


class Watch:
    """The services as one user sees them."""

    def __init__(
        self,
        client: Client,
        permissions: Callable[[], Permissions],
        store: HostingView | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = Look(client, permissions, store, clock)
        self._clock = clock
        self._seen: dict[Key, QueueSeen | HttpSeen] = {}
        self._timelines: dict[Key, Timeline] = {}
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
        if self._clock() - self._looked_at > 3 * LOOK_AT_MUCH_S:
            await self.next_look()
        return self.overview

    async def next_look(self) -> None:
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
    def sight(self) -> Sight:
        return self._look.sight

    def row(self, key: Key) -> ServiceRow | None:
        return next((one for one in self.overview.services if (one.kind, one.name) == key), None)

    def timeline(self, key: Key) -> Timeline:
        """Return a service's timeline; empty if the service is unknown."""
        return self._timelines.get(key) or Timeline()

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
                every_s = LOOK_S if self._look.parts < MUCH else LOOK_AT_MUCH_S
                left_s = max(every_s - (self._clock() - begun), 0.0)
                await asyncio.wait_for(self._hurried.wait(), left_s)
            self._hurried.clear()

    async def _once(self) -> None:
        now = self._clock()
        self._focused = {k: at for k, at in self._focused.items() if now - at < FOCUS_S}
        sight = await self._look.again([name for kind, name in self._focused if kind is Kind.QUEUE])
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

    def _services(self, sight: Sight) -> list[ServiceRow]:
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
                seen = self._seen[key] = (HttpSeen if kind is Kind.HTTP else QueueSeen)(name)
                self._timelines[key] = Timeline()
            agreement = (http_agreement if kind is Kind.HTTP else queue_agreement)(sight, name)
            if agreement is not None:
                self.agreements[key] = agreement
            row, point = seen.look(sight, agreement)
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
