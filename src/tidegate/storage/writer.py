"""Group commit: all writes that wait when the store is free share the next transaction.

Theory of operation

The actors are write sources (the intakes of replicas), a `Writer`, settle sources (their
settlings), a `Settler`, and the store. Everything runs in the event loop; the store answers through
a callback.

Puts. A source calls `Writer.schedule`. At the end of the current turn of the event loop, if the
store is free, the writer calls `collect_writes` of all waiting sources. It submits their segments
as one commit. When the commit has an answer, the writer calls `written` for each segment. The
result is True if it is stored and False if its epoch was refused. Producers are confirmed then.
Batches that arrive during a commit wait and share the next one: the longer a commit takes, the
larger the next one is.

A second commit may be submitted while a small one is under way, so that the store is never idle.
Behind a large commit the writer waits, since each commit costs one flush of the disk.

Acknowledgements. `Settler` works in the same way but waits some milliseconds first, or not at all
after `schedule(urgent=True)`. It has one commit under way at a time.

There is a pair of writer and settler for each store (`Writers`), so that a store that does not
answer delays no other one.

Invariants:

- A segment is submitted again only after the store has denied having it. Nothing is stored twice.
- A source gets the result True only after the store has confirmed the segment.
- Segments of one writer are stored in the order in which they were collected.

Failures:

- Puts, no answer (`Unavailable`): the result is unknown. `_repair` submits nothing else and asks
  the store which segments it has, until it answers. Stored segments are confirmed, the others are
  submitted again. If a segment submitted again is fenced, its result stays unknown and the source
  gets None.
- Puts, any other error: nothing of the commit is stored. All its sources get `refused`.
- Acknowledgements, any error: the same settlements are stored again, which changes nothing if they
  were stored before.
- A bug in a source's callback is logged and does not stop the writer.
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

from tidegate.core.errors import LimitReached, TidegateError, Unavailable
from tidegate.core.runtime import crash_point
from tidegate.core.store import Settlement, Store, Write
from tidegate.core.topology import STORE_SHIFT

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
# Commits under way at a time, and the number of messages up to which a commit is small.
_UNDER_WAY_MAX = 2
_SMALL = 16


class WriteSource(Protocol):
    """A part that has segments to store."""

    def collect_writes(self) -> list[Write]:
        """Return the segments that wait now; they are under way from here on."""
        ...

    def written(self, write: Write, stored: bool | None) -> None:
        """Handle the result of one write.

        `stored` is True if it is on disk and False if its epoch was refused. None: its epoch was
        refused, but it may have been stored before.
        """
        ...

    def refused(self, writes: Sequence[Write], error: TidegateError) -> None:
        """Handle an error: none of these writes is stored."""
        ...


Pending = list[tuple[WriteSource, Write]]


class SettleSource(Protocol):
    """A part that has acknowledgements to store."""

    def collect_settlement(self) -> Settlement | None:
        """Return what waits now, or None; it is under way from here on."""
        ...

    def settled(self, settlement: Settlement, stored: bool) -> None: ...


class Writer:
    """Commits the puts of many replicas in as few transactions as the store allows."""

    def __init__(
        self,
        store: Store,
        *,
        number: int = 0,
        on_commit: Callable[[float, int], None] | None = None,
    ) -> None:
        self._store = store
        self._number = number
        self._on_commit = on_commit
        self._sources: dict[WriteSource, None] = {}
        # The number of messages of each commit under way.
        self._under_way: deque[int] = deque()
        # Writes whose commit got no answer. While there are any, nothing else is written.
        self._lost: Pending = []
        self._repairing: asyncio.Task[None] | None = None
        self._aborted = False
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self.idle = asyncio.Event()
        self.idle.set()

    async def stop(self) -> None:
        """Wait until everything is written."""
        await self.idle.wait()

    def abort(self) -> None:
        """Write nothing more. The sources tell their callers."""
        self._aborted = True
        self._sources.clear()
        if self._repairing is not None:
            self._repairing.cancel()

    def schedule(self, source: WriteSource) -> None:
        """Ask for a call of `collect_writes`, at the end of this turn if the store is free."""
        self._sources[source] = None
        self.idle.clear()
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._may_commit():
            self._scheduled = True
            self._loop.call_soon(self._commit)

    def _may_commit(self) -> bool:
        """Return whether a commit may be submitted now.

        A second one may follow a small one, so that the store is never idle. Behind a large one it
        is better to collect more: each commit costs a flush.
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
                    self._notify_source(source, write, stored)
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
    def _notify_source(source: WriteSource, write: Write, stored: bool | None) -> None:
        """Report a result; a bug in one source must not stop the writer for the others."""
        try:
            source.written(write, stored)
        except Exception:
            log.exception("a bug while a stored segment was handed on")

    async def _repair(self) -> None:
        """Find out what was stored after commits without an answer, and write the rest again.

        Nothing else is written until the store has answered.
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
        """Confirm the stored writes, and submit the first missing ones again, in order."""

        def is_stored(entry: tuple[WriteSource, Write]) -> bool:
            segment = entry[1].segment
            return (segment.queue_id, segment.first_id) in found

        stored = list(takewhile(is_stored, self._lost))
        for source, write in stored:
            self._notify_source(source, write, True)
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
                # The epoch is refused now. The first attempt may have been stored all the same, and
                # a new owner may have removed its messages since.
                self._notify_source(source, write, fate or None)
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
    """Commits the acknowledgements of many replicas; it collects longer, since few clients wait."""

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

    def schedule(self, source: SettleSource, *, urgent: bool = False) -> None:
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
                # Sorted by queue, as in transactions: two that lock queues in different orders
                # could deadlock.
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
                # Storing a settlement twice changes nothing, so an unknown result is repeated.
                # Other errors are repeated too: without this task no acknowledgement would be
                # stored any more.
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
    """The writers and settlers of a node, by store: a store without an answer delays no other."""

    def __init__(
        self,
        store: Store,
        count: int,
        *,
        on_commit: Callable[[float, int], None] | None = None,
        linger_s: float = 0.05,
    ) -> None:
        self._store = store
        # Number of writers for each store.
        self._count = count
        self._on_commit = on_commit
        self._linger_s = linger_s
        self._writers: dict[tuple[int, int], Writer] = {}
        self._settlers: dict[int, Settler] = {}

    def writer(self, queue_id: int) -> Writer:
        """Return the writer for a queue."""
        number = queue_id % self._count
        key = (queue_id >> STORE_SHIFT, number)
        writer = self._writers.get(key)
        if writer is None:
            writer = self._writers[key] = Writer(
                self._store, number=number, on_commit=self._on_commit
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
        """Wait until everything is written."""
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
