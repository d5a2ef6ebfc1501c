"""The monitor of the demo: it polls snapshots, prints changes, and waits for conditions.

A wait lasts at least one given time and at most another. If no node answers for too long, the
monitor ends the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from tidegate.cli.demo.evidence import Evidence
from tidegate.cli.demo.moments import Course, Moment, changes, moment_of
from tidegate.cli.demo.stage import Stage
from tidegate.cli.demo.story import ARCHIVE, ORDERS
from tidegate.cli.demo.view import Stagehand
from tidegate.cli.glance import Lookout, looking
from tidegate.cli.store_wiring import opened
from tidegate.client.client import Client
from tidegate.client.connect import connect
from tidegate.console.model import Kind
from tidegate.core.ending import ended
from tidegate.core.errors import Unavailable

# After its owner was killed, a queue answers when another node owns it.
_PATIENCE_S = 30.0
# Without a snapshot for this long, the demo ends.
_BLIND_S = 40.0

Condition = Callable[[Moment], bool]


class Spectator:
    """Polls the snapshots of a run."""

    def __init__(self, stage: Stage, view: Stagehand, evidence: Evidence) -> None:
        self._stage = stage
        self._view = view
        self._evidence = evidence
        self._moment: Moment | None = None
        self._seen = asyncio.Condition()
        self.course = Course()

    @property
    def now(self) -> Moment:
        assert self._moment is not None, "chapters begin after the first look"
        return self._moment

    async def until(self, condition: Condition, at_least_s: float, at_most_s: float) -> bool:
        """Wait for a condition; return False if it does not occur within `at_most_s`.

        The wait takes at least `at_least_s`, even if the condition holds earlier.
        """
        began = time.monotonic()
        seen = False
        async with self._seen:
            while time.monotonic() - began < at_most_s:
                seen = self._moment is not None and condition(self._moment)
                left_s = (at_least_s if seen else at_most_s) - (time.monotonic() - began)
                if seen and left_s <= 0.0:
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(left_s, 0.01)):
                        await self._seen.wait()
        return seen

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[Client]:
        """Poll and print in this context; a failure of the monitor cancels the scenario."""
        # A condition belongs to one event loop, and a later run uses another loop.
        self._seen = asyncio.Condition()
        async with (
            connect(self._stage.url, mode="admin", name="demo", reconnect_s=_PATIENCE_S) as mq,
            opened(self._stage.store_urls) as store,
            looking(mq, store) as lookout,
        ):
            watching = asyncio.create_task(self._watch(lookout))
            playing = asyncio.current_task()
            assert playing is not None
            watching.add_done_callback(lambda done: None if done.cancelled() else playing.cancel())
            try:
                yield mq
            except asyncio.CancelledError:
                if watching.done() and not watching.cancelled():
                    watching.result()
                raise
            finally:
                await ended([watching])

    async def _watch(self, lookout: Lookout) -> None:
        watch = lookout.person.watch
        seen_at = time.monotonic()
        while True:
            if (address := self._stage.watch()) is not None:
                self._view.serve(address)
            for queue in (ORDERS, ARCHIVE):
                watch.focus((Kind.QUEUE, queue))
            glance = await lookout.look()
            if not glance.lost:
                seen_at = time.monotonic()
                agreement = watch.agreements.get((Kind.QUEUE, ORDERS))
                await self._take(moment_of(glance, watch.sight, agreement))
            elif time.monotonic() - seen_at > _BLIND_S:
                raise Unavailable(f"nobody answers any more: {glance.lost}")

    async def _take(self, now: Moment) -> None:
        before, self._moment = self._moment, now
        self.course.take(now)
        self._evidence.follow()
        for words in [] if before is None else changes(before, now):
            self._view.tell(words)
        self._view.show(now, self.course, self._evidence)
        async with self._seen:
            self._seen.notify_all()
