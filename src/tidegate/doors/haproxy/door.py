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
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import time

import msgspec

from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.services import Backend, DoorSample, Engine
from tidegate.core.text import escape_control_characters
from tidegate.doors import DoorSettings, why_not_bound
from tidegate.doors.haproxy.configuration import FRONTEND, by_number, configuration, within_grace
from tidegate.doors.haproxy.runtime import RuntimeCommands, RuntimeSocket, counter_value, parse_rows
from tidegate.doors.haproxy.sensor import HaproxySensor

logger = logging.getLogger(__name__)

_BACKLOG = 1024
# Pauses before the attempts to restart it; the last one repeats.
_AGAIN_S = (0.0, 0.1, 0.5, 1.0, 5.0)
_TIDY_S = 1.0
# How late sessions may end at most. The leader waits longer than this before it removes an
# instance.
_GRACE_POLL_S = 0.25
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
        self._orders: RuntimeCommands | None = None
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
        self._orders = RuntimeCommands(
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
                await self._orders.execute(self._wanted_now())

    async def _end_sessions(self) -> None:
        """Put draining servers into maintenance when their session grace is over.

        This needs no call of `set_backends`: sessions end by the clock.
        """
        while not self._stopping:
            await asyncio.sleep(_GRACE_POLL_S)
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
                await sensor.poll()
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
                    await self._sensor.poll()
                    for name in await self._orders.delete_leaving():
                        self._sensor.deleted(name)
            except TidegateError as failure:
                logger.warning("the door of %s: %s", self._settings.service, failure)


# One HAProxy child process, from its start to its exit.
#
# The child ends with this process, even if this process is killed.


_READY_S = 10.0
_EXIT_POLL_S = 0.02
_LINES_KEPT = 20
_TOLD_MAX = 500


class HaproxyProcess:
    """A HAProxy child process; an instance starts one process, once."""

    def __init__(self, configuration_path: str, runtime: RuntimeSocket) -> None:
        self._configuration_path = configuration_path
        self._runtime = runtime
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reading: asyncio.Task[None] | None = None
        # False while the process starts; `start` waits for the first answer.
        self.has_answered = False

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, inherited_fds: Sequence[int]) -> None:
        """Start HAProxy, and return when it answers on its runtime socket.

        Raises Unavailable with HAProxy's error text if it exits, or does not answer in 10 seconds.
        """
        command = [haproxy_program(), "-db", "-f", self._configuration_path]
        # The kernel kills HAProxy if this process is killed. Otherwise it would keep the port
        # without supervision.
        pdeathsig = shutil.which("setpriv")
        if pdeathsig is not None:
            command = [pdeathsig, "--pdeathsig", "KILL", *command]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # HAProxy needs nothing but its configuration, so it inherits no other variables.
                env={"PATH": os.environ.get("PATH", os.defpath)},
                pass_fds=inherited_fds,
                # Ctrl-C reaches this process only, which then stops HAProxy gracefully.
                start_new_session=True,
            )
        except OSError as failure:
            raise Unavailable(f"haproxy cannot be started: {failure}") from failure
        assert self._process.stderr is not None
        self._reading = asyncio.create_task(self._read(self._process.stderr))
        try:
            async with asyncio.timeout(_READY_S):
                await self._answers()
        except TimeoutError:
            await self.kill()
            raise Unavailable(
                f"haproxy did not answer within {_READY_S:g} s: {self.last_words}"
            ) from None
        except asyncio.CancelledError:
            # The child would keep the inherited listener, and no object would stop it.
            await self.kill()
            raise

    async def _answers(self) -> None:
        while self.alive:
            try:
                await self._runtime.info()
                self.has_answered = True
                return
            except Unavailable:
                await asyncio.sleep(_EXIT_POLL_S)
        await self.wait()
        raise Unavailable(f"haproxy does not start: {self.last_words}")

    def ask_to_end(self) -> None:
        """Tell HAProxy to accept no connections, answer its requests, and exit."""
        self._signal(signal.SIGUSR1)

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.alive:
                self._process.send_signal(number)

    async def wait(self) -> None:
        """Wait until the process has exited and its last line of output is read."""
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    @property
    def last_words(self) -> str:
        """Its first alert line, or else its last line, shortened."""
        alerts = [line for line in self._lines if line.startswith("[ALERT]")]
        return (alerts or list(self._lines)[-1:] or ["it said nothing"])[0][:_TOLD_MAX]

    @property
    def how_it_ended(self) -> str:
        code = None if self._process is None else self._process.returncode
        if code is not None and code < 0:
            return f"was ended by signal {-code}"
        return f"ended with code {code}: {self.last_words}"

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                # Skip lines that exceed the buffer.
                continue
            if not line:
                return
            text = escape_control_characters(line.decode(errors="replace").strip())
            if text:
                self._lines.append(text)


# Names a program outside the usual places.
PROGRAM_VARIABLE = "TIDEGATE_HAPROXY"


def haproxy_program() -> str:
    """Return the path of the program; raise Unavailable, with what to do, if there is none."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        if found := shutil.which(named):
            return found
        raise Unavailable(
            f"{PROGRAM_VARIABLE} names {named}, which is no program; install HAProxy (Debian: apt "
            "install haproxy), or take the engine gateway"
        )
    # Debian installs it in a folder that only root has in PATH.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which("haproxy", path=path)
    if found is None:
        raise Unavailable(
            "there is no haproxy on this computer; install it (Debian: apt install haproxy), or "
            "take the engine gateway"
        )
    return found


SOCKET = "runtime"
# HAProxy's limit. If the usual temporary folder has a longer path, the folder is made in /tmp.
_SOCKET_PATH_MAX = 97
_SHORT_PLACE = "/tmp"


def new_folder() -> Path:
    """Make a folder for this user only, short enough for the path of a socket in it."""
    for place in (None, _SHORT_PLACE):
        folder = Path(tempfile.mkdtemp(prefix="tidegate-door-", dir=place))
        if len(bytes(folder / SOCKET)) <= _SOCKET_PATH_MAX:
            return folder
        folder.rmdir()
    raise AssertionError(f"a path in {_SHORT_PLACE} is short")


# The graceful stop of an HAProxy process.
#
# HAProxy accepts no new connections, closes idle ones and answers its outstanding requests. After
# the stop signal it accepts no connection to its runtime socket either. So the door opens one
# before, and polls the number of clients on it.


_DRAIN_POLL_S = 0.05
_COUNT_S = 2.0
_PROMPT = b"\n> "
_ANSWER_BYTES_MAX = 64 << 20


async def soft_stop(
    process: HaproxyProcess, runtime_path: str, frontend: str, timeout_s: float
) -> int:
    """Stop HAProxy gracefully; return the number of clients left after `timeout_s`.

    The caller kills a process that is still alive.
    """
    left = 0
    writer: asyncio.StreamWriter | None = None
    try:
        # Count the clients even if `timeout_s` is 0: the caller reports how many are cut off.
        async with asyncio.timeout(_COUNT_S):
            reader, writer = await asyncio.open_unix_connection(
                runtime_path, limit=_ANSWER_BYTES_MAX
            )
            writer.write(b"prompt\n")
            await reader.readuntil(_PROMPT)
            left = await _clients(reader, writer, frontend)
        process.ask_to_end()
        async with asyncio.timeout(timeout_s):
            while left:
                await asyncio.sleep(_DRAIN_POLL_S)
                left = await _clients(reader, writer, frontend)
            # HAProxy waits for the end of this connection too.
            writer.close()
            await process.wait()
    except (OSError, asyncio.IncompleteReadError):
        # The process has exited. A TimeoutError is an OSError too; it leaves `left` at the last
        # count.
        pass
    finally:
        if writer is not None:
            writer.close()
    return left if process.alive else 0


async def _clients(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frontend: str
) -> int:
    writer.write(b"show stat typed\n")
    answer = await reader.readuntil(_PROMPT)
    return counter_value(parse_rows(answer, (frontend,)).get("FRONTEND", {}), "scur")
