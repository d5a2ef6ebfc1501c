"""A child process that runs users' code, with its last lines of output.

It ends with its parent (fleet/parent.py) and announces its start by one line through a pipe
(fleet/ready_pipe.py). It is asked to end before it is killed.

We wait for the process and never for the end of its output: processes that it started may hold its
pipes open for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.core.harmless import harmless
from tidegate.fleet.parent import for_child
from tidegate.fleet.ready_pipe import READY_VARIABLE
from tidegate.fleet.store_environment import without_stores

MACHINE_VARIABLE = "TIDEGATE_MACHINE"
_LINES_KEPT = 20
_LINE_BYTES_MAX = 1 << 16
_WORD_BYTES_MAX = 1 << 10
# Characters of its last output in a report.
_TOLD_MAX = 500
# Log lines at level debug or info (cli/logs.py): they do not explain an end.
_ALL_WELL = re.compile(r'time=\S+ level=(debug|info) |\{"time":"[^"]*","level":"(debug|info)"')
# Seconds after the end in which the last lines may still arrive.
_REST_S = 0.2
# Seconds between two checks for the end of a process whose pipes others hold open.
_LOOK_S = 0.05
_STDERR_FD = 2


async def exit_code_of(process: asyncio.subprocess.Process) -> int:
    """Return the exit code as soon as the process ends.

    asyncio's `wait` also waits for the end of its pipes, which others may hold open.
    """
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait({waiting}, timeout=_LOOK_S)
        return process.returncode
    finally:
        waiting.cancel()


class ChildProcess:
    """One process that a machine supervises."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self._command = command
        self._environment = environment
        # Working directory; None means ours.
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reading: asyncio.Task[None] | None = None
        self._ready_fd: int | None = None
        self._word: str | None = None
        self.started_at = 0.0
        # When it was asked to end, by the loop's clock; None if it was not.
        self.asked_at: float | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start the process; raise `OSError` if the computer has no room for it."""
        self._ready_fd, child_fd = os.pipe()
        os.set_blocking(self._ready_fd, False)
        environment = without_stores(os.environ) | dict(self._environment) | for_child()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment | {READY_VARIABLE: str(child_fd)},
                cwd=self._folder,
                pass_fds=(child_fd,),
                limit=_LINE_BYTES_MAX,
                # Ctrl-C goes to the parent, which ends its children in order.
                start_new_session=True,
            )
        except OSError:
            self._hear_no_more()
            raise
        finally:
            os.close(child_fd)
        self.started_at = asyncio.get_running_loop().time()
        assert self._process.stderr is not None
        self._reading = asyncio.create_task(self._read(self._process.stderr))

    @property
    def word(self) -> str | None:
        """Its announcement; "" if none will come, None if none has come yet."""
        if self._ready_fd is not None:
            with contextlib.suppress(BlockingIOError):
                # The line has come, or the pipe was closed: there is nothing more to read.
                self._word = os.read(self._ready_fd, _WORD_BYTES_MAX).decode().strip()
                self._hear_no_more()
        return self._word

    def _hear_no_more(self) -> None:
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    def ask_to_end(self) -> None:
        """Ask it to finish the work it has begun and return the rest."""
        self.asked_at = asyncio.get_running_loop().time()
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.exit_code is None:
                self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.exit_code is None:
                self._process.kill()

    async def wait(self) -> None:
        """Wait until it has ended and its last lines have been read."""
        if self._process is not None:
            await exit_code_of(self._process)
        self._hear_no_more()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_REST_S)
            self._reading.cancel()
        if self._process is not None:
            # Otherwise the pipe stays open as long as another process holds its other end.
            self._process._transport.close()  # type: ignore[attr-defined]

    async def ends_within(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether it has ended."""
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                await exit_code_of(self._process)
        except TimeoutError:
            return False
        return True

    @property
    def last_words(self) -> str:
        """Its last error if it reported one, else the last line that is not about normal work."""
        errors = [line for line in self._lines if line.startswith("tidegate: ")]
        if errors:
            return errors[-1].removeprefix("tidegate: ")[:_TOLD_MAX]
        return self._lines[-1][:_TOLD_MAX] if self._lines else "it said nothing"

    @property
    def how_it_ended(self) -> str:
        code = self.exit_code
        if code is None or code >= 0:
            return f"ended with code {code}: {self.last_words}"
        how = f"was ended by signal {-code}"
        with contextlib.suppress(ValueError):
            how += f" ({signal.Signals(-code).name})"
        return f"{how}: {self.last_words}" if self._lines else how

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Copy its output to our stderr, and keep the last lines."""
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                # A line longer than the limit is skipped.
                continue
            if not line:
                return
            # Ignore a full disk or a closed stderr, and keep reading: a child blocks on a full
            # pipe. Write without a buffer, which would keep what it cannot write.
            with contextlib.suppress(OSError):
                os.write(_STDERR_FD, line)
            text = harmless(line.decode(errors="replace").strip())
            if text and not _ALL_WELL.match(text):
                self._lines.append(text)
