"""One instance of a service on its machine: keeps its process running and reports its state.

Theory of operation
-------------------

    code fetched → process started → probed until it answers → probed every second
          └──────── any step failed, or it died or hangs: again after a backoff

An `AppInstance` owns one task for its whole life. The task fetches the code, starts an `AppProcess`
and probes its health path. If anything fails, the state becomes FAILED with the reason, and the
task tries again after a backoff. After a failure the state stays FAILED until the instance answers.

    STARTING   until the first response; with a detail after _LATE_S, FAILED after _TOO_LATE_S
    READY      it answers
    FAILED     it could not start, died, or hangs

An instance that listens and does not answer for _HANGS_S is killed, because it would not react to a
request to end. A slow instance is not killed: its load would only move to the other instances.

`HostedInstances` creates one `AppInstance` for each instance assigned to the machine, reports the
states to the store, and drops instances that have ended. When an instance is to end, it finishes
its requests and is killed only after its drain time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegate.client.connect import URL_VARIABLE
from tidegate.core.crash import crash_point
from tidegate.core.errors import TidegateError, Unavailable
from tidegate.core.hosting import Instance, InstanceState, ServiceSpec
from tidegate.core.quantities import format_duration
from tidegate.fleet.app_process import AppProcess
from tidegate.fleet.backoff import Backoff
from tidegate.fleet.child_process import MACHINE_VARIABLE
from tidegate.fleet.package_cache import PackageCache

log = logging.getLogger(__name__)

SERVICE_VARIABLE = "TIDEGATE_SERVICE"
INSTANCE_VARIABLE = "TIDEGATE_INSTANCE"
_BACKOFF_S = (0.5, 30.0)
# Seconds between two probes, before and after the first response.
_LOOK_S = 0.02
_ASK_EVERY_S = 1.0
# Seconds after which a start is reported as slow, and as failed.
_LATE_S = 10.0
_TOO_LATE_S = 60.0
# Seconds without a response after which an instance hangs.
_HANGS_S = 10.0
# Seconds after which a failure is not a failed start, so that the backoff begins again.
_GOT_SOMEWHERE_S = 10.0
# Seconds that it may need after its drain before it is killed.
_GOODBYE_S = 10.0


class AppOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all instances of a machine share."""

    machine_id: int
    host: str = "127.0.0.1"
    # The host under which others reach it; None means `host`.
    advertise: str | None = None
    drain_s: float = 30.0


class AppInstance:
    """An instance that runs on this machine."""

    def __init__(
        self,
        instance: Instance,
        spec: ServiceSpec,
        options: AppOptions,
        node: str,
        packages: PackageCache,
        news: Callable[[], None],
    ) -> None:
        self.instance_id = instance.instance_id
        self.spec = spec
        self.state = InstanceState.STARTING
        # Why it is not ready; empty if it is ready, or still starting.
        self.detail = ""
        self._version = instance.version
        self._options = options
        self._node = node
        self._packages = packages
        self._news = news
        self._process: AppProcess | None = None
        self._backoff = Backoff(*_BACKOFF_S)
        self._has_failed = False
        self._is_leaving = False
        self._life = asyncio.create_task(self._live())

    @property
    def address(self) -> str | None:
        return None if self._process is None else self._process.address

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_leaving(self) -> bool:
        return self._is_leaving

    @property
    def is_gone(self) -> bool:
        return self._life.done()

    def let_go(self) -> None:
        """Ask it to finish its requests and end."""
        if self._is_leaving:
            return
        self._is_leaving = True
        log.info("instance is let go", extra=self._where)
        if self._process is None:
            self._life.cancel()
        else:
            self._process.ask_to_end()

    async def end(self) -> None:
        """Ask it to end and wait until it has ended."""
        self.let_go()
        await asyncio.wait({self._life})

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                folder = await self._code()
                why = await self._run(folder)
            except (TidegateError, OSError) as failure:
                why = str(failure)
            except Exception as failure:
                log.exception("a bug in the life of an instance", extra=self._where)
                why = f"a bug of the machine: {failure!r}"
            self._process = None
            if self._is_leaving:
                return
            wait_s = self._backoff.failed(loop.time())
            log.error(
                "an instance failed and is started again: %s",
                why,
                extra={**self._where, "in_s": round(wait_s, 1)},
            )
            self._has_failed = True
            self._become(InstanceState.FAILED, why)
            await asyncio.sleep(wait_s)

    async def _code(self) -> Path | None:
        if self.spec.package is not None:
            return await self._packages.folder_of(self.spec.package)
        if self.spec.folder is None:
            return None
        folder = Path(self.spec.folder)
        if not await asyncio.to_thread(folder.is_dir):
            raise Unavailable(
                f"there is no folder {folder} on this machine: ship the code, or have it there"
            )
        return folder

    async def _run(self, folder: Path | None) -> str:
        """Run one process from start to end; return why it ended."""
        process = AppProcess(
            self.spec.target,
            host=self._options.host,
            advertise=self._options.advertise,
            health_path=self.spec.health_path,
            environment={
                URL_VARIABLE: self._node,
                **self.spec.environment,
                SERVICE_VARIABLE: self.spec.name,
                INSTANCE_VARIABLE: str(self.instance_id),
                MACHINE_VARIABLE: str(self._options.machine_id),
            },
            folder=folder,
            drain_s=self._options.drain_s,
        )
        await process.start()
        crash_point("after-instance-started")
        self._process = process
        if self._is_leaving:
            process.ask_to_end()
        log.info("instance started", extra={**self._where, "pid": process.pid})
        hangs = await self._watch(process)
        if hangs is not None:
            process.kill()
        await process.wait()
        return hangs or f"{self.spec.target} {process.how_it_ended}"

    async def _watch(self, process: AppProcess) -> str | None:
        """Probe the process until it ends; return the reason if it must be killed, else None."""
        loop = asyncio.get_running_loop()
        answered_at: float | None = None
        while not await process.ends_within(_LOOK_S if answered_at is None else _ASK_EVERY_S):
            if process.asked_at is not None:
                if loop.time() - process.asked_at > self._options.drain_s + _GOODBYE_S:
                    return f"{self.spec.target} did not end when told to, and is killed"
                continue
            trouble = await process.trouble()
            now = loop.time()
            if trouble is None:
                answered_at = now
                self._answers(now - process.started_at)
            elif answered_at is None:
                self._is_late(process, now - process.started_at, trouble)
            elif now - answered_at >= _HANGS_S and process.exit_code is None:
                silent = format_duration(round(now - answered_at, 1))
                return f"{self.spec.target} has not answered for {silent} and is killed: {trouble}"
        return None

    def _answers(self, age_s: float) -> None:
        if age_s >= _GOT_SOMEWHERE_S:
            self._backoff.succeeded()
        self._has_failed = False
        self._become(InstanceState.READY, "")

    def _is_late(self, process: AppProcess, age_s: float, trouble: str) -> None:
        if age_s < _LATE_S:
            if not self._has_failed:
                self._become(InstanceState.STARTING, "")
            return
        self._has_failed |= age_s >= _TOO_LATE_S
        state = InstanceState.FAILED if self._has_failed else InstanceState.STARTING
        self._become(state, process.late(_TOO_LATE_S if age_s >= _TOO_LATE_S else _LATE_S, trouble))

    def _become(self, state: InstanceState, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state, self.detail = state, detail
            self._news()

    @property
    def _where(self) -> dict[str, object]:
        return {
            "machine": self._options.machine_id,
            "service": self.spec.name,
            "instance": self.instance_id,
            "version": self._version,
        }
