"""HAProxy as a door: started, watched and started again by us, steered through its socket.

    set_backends  ─▶ `add server`, `set server … weight|state|addr`, `set maxconn`, `del server`,
                     and a process variable that names the spare to stand in
    sessions end  ─▶ the same, by the clock
    set_admission ─▶ a process variable that a rule compares with the requests in hand
    sample        ◀─ `show stat typed` for counts, the log of requests for response times

The listening socket is ours, and HAProxy inherits it: when it dies, connections wait in the backlog
until the next one is there, with the servers of the one before.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import socket
from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import time

import msgspec

from tidegate.adapters.door_settings import DoorSettings, why_not_bound
from tidegate.adapters.haproxy.configuration import FRONTEND, configuration
from tidegate.adapters.haproxy.numeric import by_number
from tidegate.adapters.haproxy.orders import Orders
from tidegate.adapters.haproxy.process import HaproxyProcess
from tidegate.adapters.haproxy.program import haproxy_program
from tidegate.adapters.haproxy.runtime_folder import SOCKET, new_folder
from tidegate.adapters.haproxy.runtime_socket import RuntimeSocket
from tidegate.adapters.haproxy.sensor import HaproxySensor
from tidegate.adapters.haproxy.session_grace import within_grace
from tidegate.adapters.haproxy.soft_stop import soft_stop
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.hosting import Backend, DoorSample, Engine

logger = logging.getLogger(__name__)

_BACKLOG = 1024
# Between two attempts to start it again, when the first has come to nothing.
_AGAIN_S = (0.0, 0.1, 0.5, 1.0, 5.0)
_TIDY_S = 1.0
# How late sessions may end, at most; the leader waits longer than that before it ends an instance.
_GRACE_LOOK_S = 0.25
# Of some seconds each (runtime_socket.py): one that is alive and says nothing for so long hangs.
_UNANSWERED_MAX = 4


class HaproxyDoor:
    """A Door (core/hosting.py) that HAProxy stands behind."""

    engine = Engine.HAPROXY

    def __init__(self, settings: DoorSettings) -> None:
        self._settings = settings
        self._name = secrets.token_hex(8)
        # Its name in the field LoadBalanced.
        self._token = secrets.token_hex(8)
        self._in_flight_max = settings.limits.in_flight_max
        self._kept = 1000
        self._wanted: list[Backend] = []
        self._has_begun = False
        self._trouble = ""
        self._stopping = False
        # Orders and starts do not mix.
        self._turn = asyncio.Lock()
        self._listener: socket.socket | None = None
        self._folder: Path | None = None
        self._runtime = RuntimeSocket("")
        self._sensor: HaproxySensor | None = None
        self._process: HaproxyProcess | None = None
        self._orders: Orders | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        if self._listener is None:
            raise InvalidValue("the door has no address before start()")
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def pid(self) -> int:
        """Of the HAProxy that runs now; 0: none does."""
        return 0 if self._process is None else self._process.pid

    async def start(self) -> None:
        haproxy_program()
        settings = self._settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            self._listener = socket.create_server(
                (settings.host, settings.port), family=family, backlog=_BACKLOG
            )
        except OSError as failure:
            raise Unavailable(why_not_bound(settings, failure)) from failure
        # Only for this user: who may write to the runtime socket may do anything.
        self._folder = new_folder()
        self._runtime = RuntimeSocket(str(self._folder / SOCKET))
        self._sensor = HaproxySensor(self._runtime)
        self._sensor.log.start()
        try:
            async with self._turn:
                await self._start_process()
        except BaseException:
            self._clean_up()
            raise
        running = (self._watch(), self._tidy(), self._end_sessions())
        self._tasks = [asyncio.create_task(one) for one in running]

    async def _start_process(self) -> None:
        assert self._listener is not None
        assert self._sensor is not None
        assert self._folder is not None
        inherited = (self._listener.fileno(), self._sensor.log.write_fd)
        # What is wanted may change while it starts: it knows of what it was told, and no more.
        configured = self._wanted_now()
        text = configuration(
            self._settings,
            configured,
            runtime_socket=self._runtime.path,
            listener_fd=inherited[0],
            log_fd=inherited[1],
            token=self._token,
            in_flight_max=self._in_flight_max,
            kept=self._kept,
        )
        # Who tidies up temporary folders may have been there since.
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / "haproxy.cfg"
        path.touch(mode=0o600)
        path.write_text(text)
        self._process = HaproxyProcess(str(path), self._runtime)
        await self._process.start(inherited)
        self._orders = Orders(
            self._runtime, configured, sticky=self._settings.session_secret is not None
        )

    async def _watch(self) -> None:
        """A HAProxy that has died is replaced by another with the same servers."""
        while self._process is not None:
            await self._process.wait()
            if self._stopping:
                return
            self._trouble = f"HAProxy {self._process.how_it_ended}; it is started again"
            logger.error("the door of %s: %s", self._settings.service, self._trouble)
            if self._sensor is not None:
                self._sensor.restarted()
            await self._start_again()
            self._trouble = ""

    async def _start_again(self) -> None:
        attempt = 0
        while True:
            await asyncio.sleep(_AGAIN_S[min(attempt, len(_AGAIN_S) - 1)])
            try:
                async with self._turn:
                    await self._start_process()
                return
            # A disk that is full, say: whatever it is, nobody else would start it again.
            except (TidegateError, OSError) as failure:
                self._trouble = f"HAProxy cannot be started again: {failure}"
                logger.error("the door of %s: %s", self._settings.service, self._trouble)
            attempt += 1

    async def stop(self, timeout_s: float = 30.0) -> int:
        if self._listener is None:
            return 0
        self._stopping = True
        self._listener.close()
        cut_off = 0
        if self._process is not None and self._process.alive:
            cut_off = await soft_stop(self._process, self._runtime.path, FRONTEND, timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None:
            await self._process.kill()
        self._clean_up()
        return cut_off

    def _clean_up(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._sensor is not None:
            self._sensor.log.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def set_backends(self, backends: Sequence[Backend]) -> None:
        # The next HAProxy begins with these, whatever this one says.
        self._wanted, unknown = await by_number(backends)
        self._has_begun = self._has_begun or bool(self._wanted)
        await self._order_wanted()
        if unknown:
            # The others have theirs: one machine that is called what nobody knows is no reason to
            # send requests to those that go, or none to those that have come.
            raise Unavailable(unknown)

    async def _order_wanted(self) -> None:
        async with self._turn:
            if self._orders is not None and self._process is not None and self._process.alive:
                await self._orders.carry_out(self._wanted_now())

    async def _end_sessions(self) -> None:
        """Who drains lets its sessions go when it is time, whether anybody says so or not."""
        while not self._stopping:
            await asyncio.sleep(_GRACE_LOOK_S)
            if any(one.sessions_until is not None for one in self._wanted):
                try:
                    await self._order_wanted()
                except TidegateError as failure:
                    logger.warning("the door of %s: %s", self._settings.service, failure)

    def _wanted_now(self) -> list[Backend]:
        is_sticky = self._settings.session_secret is not None
        return within_grace(self._wanted, time() if is_sticky else inf)

    async def set_admission(self, in_flight_max: int | None) -> None:
        most = self._settings.limits.in_flight_max
        self._in_flight_max = most if in_flight_max is None else in_flight_max
        await self._set_variables()

    async def _set_variables(self) -> None:
        # One that is just started begins with these.
        if self._process is not None and self._process.alive:
            await self._runtime.order(
                "experimental-mode on",
                f"set var proc.in_flight_max int({self._in_flight_max})",
                f"set var proc.kept int({self._kept})",
            )

    async def sample(self) -> DoorSample:
        """What it has seen; if it does not answer, what it had, and why it does not."""
        sensor, trouble = self._sensor, self._trouble
        if sensor is None:
            raise InvalidValue("the door has seen nothing before start()")
        try:
            async with sensor.turn:
                await sensor.look()
                trouble = trouble or sensor.dropped_lines()
            kept = sensor.kept(self._kept)
            if kept != self._kept:
                self._kept = kept
                await self._set_variables()
        except TidegateError as failure:
            trouble = trouble or str(failure)
            await self._end_if_it_hangs()
        seen = sensor.sample(self._settings.service, self._name, self.address, time(), trouble)
        return msgspec.structs.replace(seen, has_begun=self._has_begun)

    async def _end_if_it_hangs(self) -> None:
        process = self._process
        silent = self._runtime.unanswered >= _UNANSWERED_MAX
        # Whoever waits for its answer has the turn, so the turn says nothing of whether it starts.
        if silent and process is not None and process.alive and process.has_answered:
            logger.error("the door of %s: HAProxy hangs and is ended", self._settings.service)
            self._runtime.unanswered = 0
            await process.kill()

    async def _tidy(self) -> None:
        """Servers that are wanted no longer go when their last connection has."""
        while self._sensor is not None:
            await asyncio.sleep(_TIDY_S)
            try:
                async with self._turn, self._sensor.turn:
                    if self._orders is None or not self._orders.leaving:
                        continue
                    await self._sensor.look()
                    for name in await self._orders.delete_leaving():
                        self._sensor.deleted(name)
            except TidegateError as failure:
                logger.warning("the door of %s: %s", self._settings.service, failure)
