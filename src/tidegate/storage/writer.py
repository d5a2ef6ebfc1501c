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
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

from tidegate.core.crash import crash_point
from tidegate.core.errors import LimitReached, TidegateError, Unavailable
from tidegate.core.ports import Settlement, Store, Write
from tidegate.core.replication import STORE_SHIFT

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
# Commits under way at a time, and the most messages that one may have for the next to follow it.
_UNDER_WAY_MAX = 2
_SMALL = 16


class WriteSource(Protocol):
    """What has segments to store."""

    def collect_writes(self) -> list[Write]:
        """What waits now; it is under way from here on."""
        ...

    def written(self, write: Write, stored: bool | None) -> None:
        """The fate of one write: on disk, or fenced off; None: fenced off, and perhaps on disk."""
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
        number: int = 0,
        on_commit: Callable[[float, int], None] | None = None,
        on_free: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._number = number
        self._on_commit = on_commit
        # Told whenever what was collected has found its fate.
        self._on_free = on_free
        self._sources: dict[WriteSource, None] = {}
        # Messages of each commit under way.
        self._under_way: deque[int] = deque()
        # What was under way when the store went away; nothing else is written meanwhile.
        self._lost: Pending = []
        self._repairing: asyncio.Task[None] | None = None
        self._aborted = False
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self.idle = asyncio.Event()
        self.idle.set()

    async def stop(self) -> None:
        """Return when everything is written."""
        await self.idle.wait()

    def abort(self) -> None:
        """Write nothing more; whoever waits is told by its source."""
        self._aborted = True
        self._sources.clear()
        if self._repairing is not None:
            self._repairing.cancel()

    def wants(self, source: WriteSource) -> None:
        """A source has something to write: at the end of this turn, when the store is free."""
        self._sources[source] = None
        self.idle.clear()
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._may_commit():
            self._scheduled = True
            self._loop.call_soon(self._commit)

    def _may_commit(self) -> bool:
        """A second small commit may follow a small one, to be there when the store is free.

        Behind a large one it is better to wait for company: each commit costs a flush.
        """
        if self._aborted or self._lost or self._repairing is not None:
            return False
        return not self._under_way or (
            len(self._under_way) < _UNDER_WAY_MAX and self._under_way[-1] <= _SMALL
        )

    def _commit(self) -> None:
        self._scheduled = False
        if not self._may_commit():
            return
        sources, self._sources = self._sources, {}
        pending = [(source, write) for source in sources for write in source.collect_writes()]
        if pending:
            self._submit(pending, time.perf_counter())
        else:
            self._next()

    def _next(self) -> None:
        if self._on_free is not None:
            self._on_free()
        if self._sources:
            self._schedule()
        elif not self._under_way:
            self.idle.set()

    def _submit(self, pending: Pending, started: float) -> None:
        count = sum(write.segment.count for _, write in pending)

        def done(outcome: list[bool] | Exception) -> None:
            self._under_way.popleft()
            if isinstance(outcome, list):
                if self._on_commit is not None:
                    self._on_commit(time.perf_counter() - started, count)
                crash_point("after-commit-before-confirm")
                for (source, write), stored in zip(pending, outcome, strict=True):
                    self._tell(source, write, stored)
                self._next()
            elif isinstance(outcome, Unavailable):
                self._lost += pending
                if not self._under_way:
                    log.warning("commit without an answer, looking it up: %s", outcome)
                    self._repairing = asyncio.create_task(self._repair())
            else:
                self._refuse(pending, outcome)
                self._next()

        crash_point("before-commit")
        self._under_way.append(count)
        self._store.submit([write for _, write in pending], done, writer=self._number)

    @staticmethod
    def _tell(source: WriteSource, write: Write, stored: bool | None) -> None:
        """One source's bug is not the others' loss: the writer must go on."""
        try:
            source.written(write, stored)
        except Exception:
            log.exception("a bug while a stored segment was handed on")

    async def _repair(self) -> None:
        """After an unknown outcome: confirm what turns out to be stored, write the rest again.

        Nothing is written before the store has answered the question.
        """
        backoff_s = _BACKOFF_FIRST_S
        while self._lost:
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
            by_queue: dict[int, list[int]] = {}
            for _, write in self._lost:
                by_queue.setdefault(write.segment.queue_id, []).append(write.segment.first_id)
            try:
                found = {
                    (queue_id, first_id)
                    for queue_id, firsts in by_queue.items()
                    for first_id in await self._store.stored(queue_id, firsts)
                }
            except Exception as failure:
                log.warning("the store does not say what it has: %s", failure)
                continue
            await self._settle_lost(found)
        self._repairing = None
        self._next()

    async def _settle_lost(self, found: set[tuple[int, int]]) -> None:
        """In their order: what is stored is confirmed, the first that are not are written again."""

        def is_stored(entry: tuple[WriteSource, Write]) -> bool:
            segment = entry[1].segment
            return (segment.queue_id, segment.first_id) in found

        stored = list(takewhile(is_stored, self._lost))
        for source, write in stored:
            self._tell(source, write, True)
        del self._lost[: len(stored)]
        missing = list(takewhile(lambda entry: not is_stored(entry), self._lost))
        if not missing:
            return
        answer: asyncio.Future[list[bool] | Exception] = self._loop.create_future()
        self._store.submit([write for _, write in missing], answer.set_result, writer=self._number)
        outcome = await answer
        if isinstance(outcome, Unavailable):
            log.warning("commit without an answer, looking it up: %s", outcome)
            return
        del self._lost[: len(missing)]
        if isinstance(outcome, list):
            for (source, write), fate in zip(missing, outcome, strict=True):
                # Fenced off now; but the first try may have been stored, and what it stored been
                # taken away by whoever owns the queue since.
                self._tell(source, write, fate or None)
        else:
            self._refuse(missing, outcome)

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
                # In order, as transactions do: they must not wait for each other.
                work.sort(key=lambda each: each[1].queue_id)
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


class Writers:
    """Writers and settlers by store: one that is away holds up nobody else's commits."""

    def __init__(
        self,
        store: Store,
        count: int,
        *,
        on_commit: Callable[[float, int], None] | None = None,
        on_free: Callable[[], None] | None = None,
        linger_s: float = 0.05,
    ) -> None:
        self._store = store
        # For each store.
        self._count = count
        self._on_commit = on_commit
        self._on_free = on_free
        self._linger_s = linger_s
        self._writers: dict[tuple[int, int], Writer] = {}
        self._settlers: dict[int, Settler] = {}

    def writer(self, queue_id: int) -> Writer:
        """The one that the writes of a queue go through."""
        number = queue_id % self._count
        key = (queue_id >> STORE_SHIFT, number)
        writer = self._writers.get(key)
        if writer is None:
            writer = self._writers[key] = Writer(
                self._store, number=number, on_commit=self._on_commit, on_free=self._on_free
            )
        return writer

    def settler(self, queue_id: int) -> Settler:
        settler = self._settlers.get(queue_id >> STORE_SHIFT)
        if settler is None:
            settler = Settler(self._store, linger_s=self._linger_s)
            self._settlers[queue_id >> STORE_SHIFT] = settler
            settler.start()
        return settler

    async def stop(self) -> None:
        """Return when everything is written."""
        for writer in self._writers.values():
            await writer.stop()
        for settler in self._settlers.values():
            await settler.stop()

    def abort(self) -> None:
        """Write nothing more."""
        for writer in self._writers.values():
            writer.abort()
        for settler in self._settlers.values():
            settler.abort()
