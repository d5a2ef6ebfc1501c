"""Group commit: whatever waits when the store is free goes into the next transaction.

One task per writer. A source (a queue replica) hands over its segments when asked, and is
told the fate of each: stored, or fenced. A commit whose answer was lost is looked up before
anything is tried again, so nothing is stored twice and nothing is confirmed on hope.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.core.crash import crash_point
from tidegate.core.errors import LimitReached, TidegateError, Unavailable
from tidegate.core.ports import Settlement, Store, Write

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0


class WriteSource(Protocol):
    """What has segments to store."""

    def collect_writes(self) -> list[Write]:
        """What waits now; it is under way from here on."""
        ...

    def written(self, write: Write, stored: bool) -> None:
        """The fate of one write: on disk, or fenced off."""
        ...

    def refused(self, writes: Sequence[Write], error: TidegateError) -> None:
        """None of these is stored."""
        ...


Pending = list[tuple[WriteSource, Write]]


class SettleSource(Protocol):
    """What has acknowledgements to store."""

    def collect_settlement(self) -> Settlement | None:
        """What waits now; it is under way from here on."""
        ...

    def settled(self, settlement: Settlement, stored: bool) -> None: ...


class Writer:
    """Puts of many replicas, in as few commits as the store allows."""

    def __init__(
        self,
        store: Store,
        *,
        on_commit: Callable[[float, int], None] | None = None,
        on_free: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._on_commit = on_commit
        # Told whenever what was collected has found its fate.
        self._on_free = on_free
        self._sources: dict[WriteSource, None] = {}
        self._busy = False
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self._repairs: set[asyncio.Task[None]] = set()
        self.idle = asyncio.Event()
        self.idle.set()

    async def stop(self) -> None:
        """Return when everything is written."""
        await self.idle.wait()

    def abort(self) -> None:
        """Write nothing more; whoever waits is told by its source."""
        self._busy = True
        self._sources.clear()
        for repair in self._repairs:
            repair.cancel()

    def wants(self, source: WriteSource) -> None:
        """A source has something to write: at the end of this turn, when the store is free."""
        self._sources[source] = None
        if not self._busy and not self._scheduled:
            self._scheduled = True
            self.idle.clear()
            self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._scheduled = False
        if self._busy:
            return
        # Busy from here on: a source that has more than fits asks again while it is collected.
        self._busy = True
        sources, self._sources = self._sources, {}
        pending = [(source, write) for source in sources for write in source.collect_writes()]
        if pending:
            self._submit(pending, time.perf_counter(), _BACKOFF_FIRST_S)
        else:
            self._next()

    def _next(self) -> None:
        self._busy = False
        if self._on_free is not None:
            self._on_free()
        if self._sources:
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._commit)
        else:
            self.idle.set()

    def _submit(self, pending: Pending, started: float, backoff_s: float) -> None:
        def done(outcome: list[bool] | Exception) -> None:
            if isinstance(outcome, list):
                # Before the confirms: the next commit is on its way while they are sent.
                if self._on_commit is not None:
                    count = sum(write.segment.count for _, write in pending)
                    self._on_commit(time.perf_counter() - started, count)
                crash_point("after-commit-before-confirm")
                for (source, write), stored in zip(pending, outcome, strict=True):
                    self._tell(source, write, stored)
                self._next()
            elif isinstance(outcome, Unavailable):
                log.warning("commit without an answer, looking it up: %s", outcome)
                repair = asyncio.create_task(self._repair(pending, started, backoff_s))
                self._repairs.add(repair)
                repair.add_done_callback(self._repairs.discard)
            else:
                self._refuse(pending, outcome)
                self._next()

        crash_point("before-commit")
        self._store.submit([write for _, write in pending], done)

    @staticmethod
    def _tell(source: WriteSource, write: Write, stored: bool) -> None:
        """One source's bug is not the others' loss: the writer must go on."""
        try:
            source.written(write, stored)
        except Exception:
            log.exception("a bug while a stored segment was handed on")

    async def _repair(self, pending: Pending, started: float, backoff_s: float) -> None:
        """After an unknown outcome: confirm what turns out to be stored, write the rest again.

        Nothing is written before the store has answered the question.
        """
        by_queue: dict[int, list[int]] = {}
        for _, write in pending:
            by_queue.setdefault(write.segment.queue_id, []).append(write.segment.first_id)
        while True:
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
            try:
                found = {
                    (queue_id, first_id)
                    for queue_id, firsts in by_queue.items()
                    for first_id in await self._store.stored(queue_id, firsts)
                }
                break
            except Exception as failure:
                log.warning("the store does not say what it has: %s", failure)
        left = []
        for source, write in pending:
            if (write.segment.queue_id, write.segment.first_id) in found:
                self._tell(source, write, True)
            else:
                left.append((source, write))
        if left:
            self._submit(left, started, backoff_s)
        else:
            self._next()

    @staticmethod
    def _refuse(pending: Pending, failure: Exception) -> None:
        if isinstance(failure, TidegateError):
            error = failure
        else:
            log.error("the store refused a commit: %s", failure)
            error = LimitReached(f"the store refused: {failure}")
        by_source: dict[WriteSource, list[Write]] = {}
        for source, write in pending:
            by_source.setdefault(source, []).append(write)
        for source, writes in by_source.items():
            source.refused(writes, error)


class Settler:
    """Acknowledgements of many replicas: gathered a little longer, since few wait for them."""

    def __init__(self, store: Store, *, linger_s: float = 0.05) -> None:
        self._store = store
        self._linger_s = linger_s
        self._sources: dict[SettleSource, None] = {}
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="settler")

    async def stop(self) -> None:
        if self._task is not None:
            self._urgent.set()
            await self.idle.wait()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def abort(self) -> None:
        """Write nothing more."""
        if self._task is not None:
            self._task.cancel()

    def wants(self, source: SettleSource, *, urgent: bool = False) -> None:
        self._sources[source] = None
        self.idle.clear()
        self._wake.set()
        if urgent:
            self._urgent.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), self._linger_s)
            self._wake.clear()
            self._urgent.clear()
            sources, self._sources = self._sources, {}
            work = [(s, found) for s in sources if (found := s.collect_settlement()) is not None]
            if work:
                await self._settle(work)
            if not self._sources:
                self.idle.set()

    async def _settle(self, work: list[tuple[SettleSource, Settlement]]) -> None:
        backoff_s = _BACKOFF_FIRST_S
        crash_point("before-settle")
        while True:
            try:
                flags = await self._store.settle([settlement for _, settlement in work])
                break
            except Exception as failure:
                # Settling twice changes nothing, so an unknown outcome is simply repeated; and
                # whatever else it is, without this task nothing would be settled any more.
                log.warning("acknowledgements wait for the store: %s", failure)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
        crash_point("after-settle")
        for (source, settlement), stored in zip(work, flags, strict=True):
            try:
                source.settled(settlement, stored)
            except Exception:
                log.exception("a bug while a settlement was handed on")
