"""One instance of a service on its machine: kept alive, and what is to be said of it.

    code fetched → process started → asked until it answers → asked each second → it died, or hangs
          └──────────────── again, later and later ─────────────────┘

Once it has failed it counts as failed until it answers again. One that listens and does not answer
for long hangs: it is killed, since it would not hear anything else. Being slow is no such thing,
for an instance that is killed because it is busy leaves its load to the others.
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
# Between two questions, before it has answered and after.
_LOOK_S = 0.02
_ASK_EVERY_S = 1.0
# It takes long to start; then so long that it counts as failed.
_LATE_S = 10.0
_TOO_LATE_S = 60.0
# Without an answer for so long it hangs.
_HANGS_S = 10.0
# One that answered for so long was no failure from the start.
_GOT_SOMEWHERE_S = 10.0
# What it may take beyond its drain before it is killed.
_GOODBYE_S = 10.0


class AppOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What all instances of a machine share."""

    machine_id: int
    host: str = "127.0.0.1"
    # Under which others reach it; None: the host.
    advertise: str | None = None
    drain_s: float = 30.0


class AppInstance:
    """An instance, as its machine has it."""

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
        # Why it is not ready; "": it is, or is on its way.
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
        """Have it answer what it has, and end."""
        if self._is_leaving:
            return
        self._is_leaving = True
        log.info("instance is let go", extra=self._where)
        if self._process is None:
            self._life.cancel()
        else:
            self._process.ask_to_end()

    async def end(self) -> None:
        """Now, with its drain."""
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
        """One process, from its start to its end; why it ended."""
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
        """Ask it until it ends; or what is said of it when it hangs."""
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
