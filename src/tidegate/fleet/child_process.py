"""A process of a machine that runs users' code: what it said last is kept at hand.

It ends with whoever started it (`fleet/parent.py`), says one line through a pipe when it has got
somewhere (`fleet/ready_pipe.py`), and is asked to end before it is made to.

We wait for the process, and never for the end of what it says: whatever it has started may hold its
pipes for longer than it lives.
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
# Of its last words, in a report.
_TOLD_MAX = 500
# Log lines of one that is well (cli/logs.py): they say nothing of why it ended.
_ALL_WELL = re.compile(r'time=\S+ level=(debug|info) |\{"time":"[^"]*","level":"(debug|info)"')
# How long after its end its last lines may take to come through.
_REST_S = 0.2
# Between two looks at whether a process has ended whose pipes somebody else holds.
_LOOK_S = 0.05
_STDERR_FD = 2


async def exit_code_of(process: asyncio.subprocess.Process) -> int:
    """As soon as there is one: asyncio's own loop has `wait` wait for the ends of pipes, too."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait({waiting}, timeout=_LOOK_S)
        return process.returncode
    finally:
        waiting.cancel()


class ChildProcess:
    """One process that a machine keeps."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self._command = command
        self._environment = environment
        # Where it runs; None: where we do.
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reading: asyncio.Task[None] | None = None
        self._ready_fd: int | None = None
        self._word: str | None = None
        self.started_at = 0.0
        # When it was asked to end, by the loop's clock; None: it is to go on.
        self.asked_at: float | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None: it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Begin; OSError when the computer has no room for it."""
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
                # Ctrl-C is for us, and we tell our children in order.
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
        """What it said of its start; "": it will say nothing; None: nothing yet."""
        if self._ready_fd is not None:
            with contextlib.suppress(BlockingIOError):
                # Its word, or the end of the pipe: there is nothing more to wait for.
                self._word = os.read(self._ready_fd, _WORD_BYTES_MAX).decode().strip()
                self._hear_no_more()
        return self._word

    def _hear_no_more(self) -> None:
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    def ask_to_end(self) -> None:
        """Have it return what it has not begun and finish what it has."""
        self.asked_at = asyncio.get_running_loop().time()
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.exit_code is None:
                self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.exit_code is None:
                self._process.kill()

    async def wait(self) -> None:
        """Until it has ended and its last line is here."""
        if self._process is not None:
            await exit_code_of(self._process)
        self._hear_no_more()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_REST_S)
            self._reading.cancel()
        if self._process is not None:
            # Else its pipe stays ours for as long as somebody holds its other end.
            self._process._transport.close()  # type: ignore[attr-defined]

    async def ends_within(self, seconds: float) -> bool:
        """Wait so long for its end, or less."""
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                await exit_code_of(self._process)
        except TimeoutError:
            return False
        return True

    @property
    def last_words(self) -> str:
        """Its own error if it gave one, else its last line that is not about being well."""
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
        """Its log lines are ours; the last ones are kept."""
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                # Longer than the bound: passed over.
                continue
            if not line:
                return
            # On a full disk, or to nobody, it is not passed on. It is read all the same: a child
            # whose pipe is full would stand still. Unbuffered: a buffer keeps what it cannot write.
            with contextlib.suppress(OSError):
                os.write(_STDERR_FD, line)
            text = harmless(line.decode(errors="replace").strip())
            if text and not _ALL_WELL.match(text):
                self._lines.append(text)
