"""One look each second for one user, however many pages that user has open.

Every look makes an overview and a point per service; pages wait for the next (`next_look`). A watch
that nobody has asked for some minutes ends, and begins anew when somebody comes back. It never ends
by an error: what cannot be asked is a complaint in the overview, and the next look tries again.
Only a user that is no longer let in ends it.
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
# Where there is much to look at: still within two seconds, and half the work for nodes.
LOOK_AT_MUCH_S = 2.0
MUCH = 750
# Between two looks, however much somebody hurries.
_REST_S = 0.25
# How long it goes on without anybody who wants to know.
IDLE_S = 300.0
# How long somebody who has asked for a service is taken to look at it.
FOCUS_S = 20.0
FOCUSED_MAX = 16
SERVICES_MAX = 2_000
# Over which dead letters are called growing.
_DEAD_S = 300.0


class Watch:
    """What is seen by one user."""

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

    # Who wants to know

    async def current(self) -> Overview:
        """The newest overview, after a first look if there was none of late."""
        self._wake()
        # By a clock that nobody sets.
        if self._clock() - self._looked_at > 3 * LOOK_AT_MUCH_S:
            await self.next_look()
        return self.overview

    async def next_look(self) -> None:
        """Until something new was seen; NotAuthenticated when the user is not let in any more."""
        self._wake()
        if self._looked is None:
            self._looked = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._looked)

    def hurry(self) -> None:
        """Somebody has changed something, or looks for what may just have come: look at once."""
        self._hurried.set()

    def encoded(self) -> bytes:
        """The overview as JSON, made once for all who get it."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(self.overview)
        return self._encoded

    def focus(self, key: Key) -> None:
        """Somebody looks at a service: all about it is asked for each time, for a while."""
        self._focused.pop(key, None)
        self._focused[key] = self._clock()
        # Each is a question of its own to a node: a program that asks for all of them gets the
        # others as seldom as everybody does.
        while len(self._focused) > FOCUSED_MAX:
            del self._focused[next(iter(self._focused))]

    @property
    def sight(self) -> Sight:
        return self._look.sight

    def row(self, key: Key) -> ServiceRow | None:
        return next((one for one in self.overview.services if (one.kind, one.name) == key), None)

    def timeline(self, key: Key) -> Timeline:
        """Empty for a service that was not seen yet."""
        return self._timelines.get(key) or Timeline()

    def newest(self, key: Key) -> Point | None:
        return self.timeline(key).newest

    async def close(self) -> None:
        """For good: its connection goes, too."""
        self._ended = Unavailable("this user has left the console: log in again")
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tell(self._ended)

    # Looking

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
        # What nobody could be asked is not drawn: it is shown as it was, with the complaint.
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
            # Nobody may be waiting any more.
            looked.exception()
