"""The worker processes of one replica: the wanted number, restarted when they die.

If there are too many, the least busy ends first. A worker that dies is restarted with a backoff,
because a module that cannot be imported would otherwise keep a core busy. Its last output is kept
for the machine's report. An import that hangs is reported too, because it prints nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tidegate.core.crash import crash_point
from tidegate.core.quantities import format_duration
from tidegate.fleet.backoff import Backoff
from tidegate.fleet.worker_process import WorkerProcess

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 30.0
# Seconds after which a worker's death is not a failed start.
_GOT_SOMEWHERE_S = 10.0
# Seconds after which an unfinished import is reported.
_IMPORT_S = 10.0
# Seconds that a worker may need after its drain, for hooks and its exit.
_GOODBYE_S = 10.0
# Seconds that the kernel may need to end a killed worker.
_KILLED_S = 5.0


class ReplicaWorkers:
    """The workers of one replica on one machine."""

    def __init__(self, replica: str, target: str, machine_id: int, drain_s: float) -> None:
        self.replica = replica
        self.target = target
        self._machine_id = machine_id
        self._drain_s = drain_s
        self._workers: list[WorkerProcess] = []
        self._backoff = Backoff(_BACKOFF_FIRST_S, _BACKOFF_MOST_S)
        # Why the last worker died or hangs; empty if all is well.
        self.trouble = ""

    @property
    def pids(self) -> list[int]:
        """Pids of workers that were not asked to end, the oldest first."""
        return [worker.pid for worker in self._working]

    @property
    def are_gone(self) -> bool:
        return not self._workers

    @property
    def _working(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.asked_at is None]

    async def adjust(self, wanted: int, node: str, busy: Mapping[int, int]) -> None:
        """Move one step towards `wanted` workers; `busy` has the held messages of each pid."""
        now = asyncio.get_running_loop().time()
        await self._bury(now)
        working = self._working
        if len(working) > wanted:
            self._let_go(working, len(working) - wanted, busy)
        elif len(working) < wanted and self._backoff.is_due(now):
            for _ in range(wanted - len(working)):
                await self._start(node, now)
        elif wanted and working and not self._is_young(working[-1], now):
            self._backoff.succeeded()
            self.trouble = ""
        self._notice_late(now)

    async def end(self) -> None:
        """End all workers, each with its drain; kill those that take too long."""
        for worker in self._working:
            worker.ask_to_end()
        if not self._workers:
            return
        ending = [asyncio.create_task(worker.wait()) for worker in self._workers]
        _, late = await asyncio.wait(ending, timeout=self._drain_s + _GOODBYE_S)
        for worker in self._workers:
            worker.kill()
        if late:
            _, late = await asyncio.wait(late, timeout=_KILLED_S)
        for waiting in late:
            waiting.cancel()
        self._workers.clear()

    async def _start(self, node: str, now: float) -> None:
        worker = WorkerProcess(self.replica, self.target, node, self._machine_id, self._drain_s)
        try:
            await worker.start()
        except OSError as failure:
            self._backoff.failed(now)
            self.trouble = f"{self.replica}: a worker cannot be started: {failure}"
            log.error("%s", self.trouble, extra=self._where)
            return
        self._workers.append(worker)
        log.info("worker started", extra={**self._where, "pid": worker.pid})

    def _let_go(self, working: list[WorkerProcess], count: int, busy: Mapping[int, int]) -> None:
        # One at a time: messages that the first returns may go to the next one.
        if any(worker.asked_at is not None for worker in self._workers):
            return
        # Among equals end the youngest; the others have warm caches.
        idlest = min(working, key=lambda worker: (busy.get(worker.pid, 0), -worker.started_at))
        log.info(
            "worker is let go",
            extra={
                **self._where,
                "pid": idlest.pid,
                "holds": busy.get(idlest.pid, 0),
                "of": len(working),
            },
        )
        crash_point("before-worker-told")
        idlest.ask_to_end()
        crash_point("after-worker-told")

    async def _bury(self, now: float) -> None:
        for worker in list(self._workers):
            late_s = None if worker.asked_at is None else now - worker.asked_at
            if worker.exit_code is None:
                if late_s is not None and late_s > self._drain_s + _GOODBYE_S:
                    log.error(
                        "a worker did not end and is killed",
                        extra={**self._where, "pid": worker.pid},
                    )
                    worker.kill()
                continue
            await worker.wait()
            self._workers.remove(worker)
            if worker.asked_at is None:
                self._mourn(worker, now)
            else:
                crash_point("after-worker-gone")

    def _mourn(self, worker: WorkerProcess, now: float) -> None:
        if not self._is_young(worker, now):
            self._backoff.succeeded()
        wait_s = self._backoff.failed(now)
        self.trouble = f"{self.replica}: worker {self.target} {worker.how_it_ended}"
        log.error(
            "a worker died and is started again",
            extra={
                **self._where,
                "code": worker.exit_code,
                "in_s": round(wait_s, 1),
                "said": worker.last_words,
            },
        )

    def _notice_late(self, now: float) -> None:
        for worker in self._working:
            if now - worker.started_at >= _IMPORT_S and not worker.has_imported:
                self.trouble = (
                    f"{self.replica}: worker {self.target} (pid {worker.pid}) still imports its "
                    f"module after {format_duration(_IMPORT_S)}: it may hang there"
                )
                return

    def _is_young(self, worker: WorkerProcess, now: float) -> bool:
        return now - worker.started_at < _GOT_SOMEWHERE_S

    @property
    def _where(self) -> dict[str, object]:
        return {"machine": self._machine_id, "replica": self.replica}
