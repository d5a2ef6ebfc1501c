"""A supervised child process that announces through a pipe that it serves, or why it does not.

Theory of operation
-------------------

Nodes, doors and consoles are started in the same way:

1. The parent opens a pipe and starts the child with the pipe's number in its environment
   (ready_pipe.py).
2. The child writes one line: its addresses when it serves, or an error. Then it closes the pipe.
3. The parent reads this line with `line`, which waits _START_S seconds at most.

`SupervisedProcess` starts, hears and ends one child at a time. `NodeProcess`, `DoorProcess` and
`ConsoleProcess` build the command and decide when to restart. Workers and instances run users'
code, and use `ChildProcess`, which also keeps their last output.

Every child gets its parent's pid and ends with it, however the parent ends (parent.py). The kernel
ties the child to the thread that started it, so `start` must be called from the main thread.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO

from tidegate.core.errors import Unavailable
from tidegate.fleet.parent import for_child
from tidegate.fleet.ready_pipe import READY_VARIABLE
from tidegate.fleet.start_patience import StartPatience, processor_s

log = logging.getLogger(__name__)

# Seconds between two checks whether the child works.
_LOOK_S = 1.0
# Seconds in which a child that reported an error must end.
_END_S = 5.0
# Exit code of our commands for unusable arguments or settings (cli/exit_codes.py).
_WRONGLY_ASKED = 2


class StartRefused(Unavailable):
    """The child cannot use its arguments or settings; a restart does not help."""


class AnnouncedProcess:
    """One child process at a time, with its announcement."""

    def __init__(self, what: str, schemes: tuple[str, ...], log_file: IO[bytes] | None) -> None:
        # For people: "a node".
        self._what = what
        # Schemes of the address that the announcement begins with.
        self._schemes = schemes
        # Where its log goes; None means our stderr.
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        # Read end of the pipe; None if the line was read, or before the first start.
        self._ready_fd: int | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def has_died(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def is_unheard(self) -> bool:
        """Whether it was started and its line has not been read yet."""
        return self._ready_fd is not None

    @property
    def has_spoken(self) -> bool:
        """Whether its line can be read without waiting, or will not come."""
        assert self._ready_fd is not None
        readable, _, _ = select.select([self._ready_fd], [], [], 0.0)
        return bool(readable)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the child; raise `Unavailable` if the computer has no room for it.

        Call it from the main thread, since the child ends with the thread that started it.
        """
        try:
            ready_fd, child_fd = os.pipe()
        except OSError as failure:
            raise self._not_started(failure) from None
        try:
            self._process = subprocess.Popen(
                command,
                env={**environment, **for_child(), READY_VARIABLE: str(child_fd)},
                pass_fds=(child_fd,),
                # A session of its own: Ctrl-C goes to the parent, which ends its children in order.
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                # Output of users' code must not mix with the parent's output either.
                stdout=self._log_file,
                stderr=self._log_file,
            )
        except OSError as failure:
            os.close(ready_fd)
            raise self._not_started(failure) from None
        finally:
            os.close(child_fd)
        self._ready_fd = ready_fd

    def _not_started(self, failure: OSError) -> Unavailable:
        return Unavailable(f"{self._what} cannot be started: {failure.strerror}")

    def line(self) -> str:
        """Return the announced line; call it once after each start.

        Wait for it as long as the child works. Raises `Unavailable` with the child's error, and
        `StartRefused` if its arguments or settings are unusable.
        """
        assert self._process is not None
        assert self._ready_fd is not None
        ready_fd, self._ready_fd = self._ready_fd, None
        with os.fdopen(ready_fd, "rb") as ready:
            has_spoken = self._speaks(ready)
            line = ready.readline().decode().strip() if has_spoken else ""
        if not line.startswith(self._schemes):
            code = self._code_at_end(_END_S if has_spoken else 0.0)
            if line and code == _WRONGLY_ASKED:
                raise StartRefused(line)
            if not has_spoken:
                raise Unavailable(f"{self._what} did not get anywhere as it started, and was ended")
            where = "what it printed" if self._log_file is None else self._log_file.name
            raise Unavailable(
                line or f"{self._what} did not start (exit code {code}): {where} says why"
            )
        return line

    def _speaks(self, ready: IO[bytes]) -> bool:
        """Whether there is a word, or the end of the pipe; False: it does not get that far."""
        assert self._process is not None
        patience = StartPatience(time.monotonic())
        while True:
            readable, _, _ = select.select([ready], [], [], _LOOK_S)
            if readable:
                return True
            if patience.is_over(time.monotonic(), processor_s(self._process.pid)):
                return False

    def _code_at_end(self, within_s: float) -> int:
        assert self._process is not None
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def tell_of_death(self, address: str) -> None:
        assert self._process is not None
        log.error(
            "%s died and is started again",
            self._what,
            extra={"address": address, "code": self._process.returncode},
        )

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, within_s: float) -> None:
        """Wait until the child has ended; kill it after `within_s` seconds."""
        if self._process is None:
            return
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            log.error("%s did not stop and is killed", self._what, extra={"pid": self.pid})
            self._process.kill()
            self._process.wait()
