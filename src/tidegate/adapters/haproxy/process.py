"""One HAProxy child process, from its start to its exit.

The child ends with this process, even if this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import Sequence

from tidegate.adapters.haproxy.program import haproxy_program
from tidegate.adapters.haproxy.runtime_socket import RuntimeSocket
from tidegate.core.errors import Unavailable
from tidegate.core.harmless import harmless

_READY_S = 10.0
_LOOK_S = 0.02
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
                await asyncio.sleep(_LOOK_S)
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
            text = harmless(line.decode(errors="replace").strip())
            if text:
                self._lines.append(text)
