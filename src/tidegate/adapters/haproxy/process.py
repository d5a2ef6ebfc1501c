"""A HAProxy that we have started: a child of ours that ends with us, however we end."""

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
    """One process, from its start to its end."""

    def __init__(self, configuration_path: str, runtime: RuntimeSocket) -> None:
        self._configuration_path = configuration_path
        self._runtime = runtime
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reading: asyncio.Task[None] | None = None
        # Until then it starts, and whoever starts it waits for it.
        self.has_answered = False

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, inherited_fds: Sequence[int]) -> None:
        """Until it answers on its runtime socket; Unavailable with its own words if it does not."""
        command = [haproxy_program(), "-db", "-f", self._configuration_path]
        # The kernel ends it when we are killed: else it would keep our port, with nobody in charge.
        pdeathsig = shutil.which("setpriv")
        if pdeathsig is not None:
            command = [pdeathsig, "--pdeathsig", "KILL", *command]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # Its configuration is all that it needs to know of us.
                env={"PATH": os.environ.get("PATH", os.defpath)},
                pass_fds=inherited_fds,
                # Ctrl-C is for us, and we tell it in order.
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
        """Take nothing new, answer what is there."""
        self._signal(signal.SIGUSR1)

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.alive:
                self._process.send_signal(number)

    async def wait(self) -> None:
        """Until it has ended, and its last line is here."""
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    @property
    def last_words(self) -> str:
        """What it said of itself as an alert, else its last line."""
        alerts = [line for line in self._lines if line.startswith("[ALERT]")]
        return (alerts or list(self._lines) or ["it said nothing"])[0][:_TOLD_MAX]

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
                # Longer than the bound: passed over.
                continue
            if not line:
                return
            text = harmless(line.decode(errors="replace").strip())
            if text:
                self._lines.append(text)
