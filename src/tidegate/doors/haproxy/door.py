"""HAProxy as a door: a supervised process that the door controls through its runtime socket.

Theory of operation.

A `HaproxyDoor` owns the listening socket, a private folder, the pipe of the request log, and one
HAProxy process at a time. The process inherits the socket and the pipe.

The door maps the `Door` protocol to HAProxy:

    set_backends     ─▶ `add server`, `set server … weight|state|addr`, `set maxconn`,
                        `del server`, and the process variable that names the backup spare
    set_admission    ─▶ a process variable that a rule compares with the requests in flight
    sample           ◀─ `show stat typed` for counts, the request log for response times

Three tasks run, beside the reader of the request log:

- `_watch` waits for the process to end and starts the next one. It retries without limit, with
  growing pauses. The next process starts with the backends that are wanted at that moment.
- `_tidy` deletes servers in maintenance once their last connection has closed.
- `_end_sessions` puts a draining server into maintenance when its session grace is over.

Invariants:

- `_wanted` is the last list of backends, with addresses instead of host names. The configuration
  file of a new process and the commands to a running one both derive from it.
- `_turn` serializes starts and commands, so a command never reaches a process that is starting.
- Totals in samples never decrease, across any number of processes (`HaproxySensor`).

Failures:

- HAProxy dies: connections wait in the backlog of the listening socket until the next process
  accepts them. Samples carry the reason in `trouble`.
- HAProxy hangs, so that four commands in a row get no answer: the door kills it, and `_watch`
  starts another one.
- A command fails: `RuntimeCommands` compares the running servers with the wanted ones before the
  next command.
- The door dies: the kernel kills HAProxy if `setpriv` is installed, so it does not keep the port.
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
# Pauses before the attempts to restart it; the last one repeats.
_AGAIN_S = (0.0, 0.1, 0.5, 1.0, 5.0)
_TIDY_S = 1.0
# How late sessions may end at most. The leader waits longer than this before it removes an
# instance.
_GRACE_LOOK_S = 0.25
# Consecutive commands without an answer, of some seconds each (`RuntimeSocket`), after which a live
# process counts as hung.
_UNANSWERED_MAX = 4


class HaproxyDoor:
    """A `Door` that an HAProxy process implements."""

    engine = Engine.HAPROXY

    def __init__(self, settings: DoorSettings) -> None:
        self._settings = settings
        self._name = secrets.token_hex(8)
        # Identifies this door in the field LoadBalanced.
        self._token = secrets.token_hex(8)
        self._in_flight_max = settings.limits.in_flight_max
        self._kept = 1000
        self._wanted: list[Backend] = []
        self._has_begun = False
        self._trouble = ""
        self._stopping = False
        # Serializes commands and starts.
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
        """Process id of the running HAProxy; 0 means that none runs."""
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
        # Private to this user: write access to the runtime socket gives full control of HAProxy.
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
        # The wanted backends may change during the start. Record what this configuration contains.
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
        # A cleaner of temporary folders may have removed it.
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
        """Start another HAProxy with the same servers whenever one has died."""
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
            # Catch OSError too (a full disk, say): no other task would retry the start.
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
        # The next process starts with these backends, even if this one rejects the commands.
        self._wanted, unknown = await by_number(backends)
        self._has_begun = self._has_begun or bool(self._wanted)
        await self._order_wanted()
        if unknown:
            # Fail only after the other backends are set: one unknown host name must not keep
            # requests from new instances, or send requests to removed ones.
            raise Unavailable(unknown)

    async def _order_wanted(self) -> None:
        async with self._turn:
            if self._orders is not None and self._process is not None and self._process.alive:
                await self._orders.carry_out(self._wanted_now())

    async def _end_sessions(self) -> None:
        """Put draining servers into maintenance when their session grace is over.

        This needs no call of `set_backends`: sessions end by the clock.
        """
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
        # A process that starts later reads these values from its configuration.
        if self._process is not None and self._process.alive:
            await self._runtime.order(
                "experimental-mode on",
                f"set var proc.in_flight_max int({self._in_flight_max})",
                f"set var proc.kept int({self._kept})",
            )

    async def sample(self) -> DoorSample:
        """Return the totals that the door has counted so far.

        If HAProxy does not answer, the sample has the previous totals, and `trouble` says why.
        Raises InvalidValue before `start`.
        """
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
        # `_turn` is no sign of a start: a command that waits for an answer holds it too.
        # `has_answered` tells a starting process from a hung one.
        if silent and process is not None and process.alive and process.has_answered:
            logger.error("the door of %s: HAProxy hangs and is ended", self._settings.service)
            self._runtime.unanswered = 0
            await process.kill()

    async def _tidy(self) -> None:
        """Delete unwanted servers once their last connection has closed."""
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
