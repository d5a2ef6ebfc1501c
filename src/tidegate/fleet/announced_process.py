"""A child that says through a pipe that it serves, or else why it does not (ready_pipe.py).

Nodes, doors and consoles are such: started, heard, ended here; what each is started with, where it
is then found and when it is started again is its owner's.
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

# Between two looks at whether it works.
_LOOK_S = 1.0
# For who has said why it does not serve, to end as it ends.
_END_S = 5.0
# How our commands end when what they were told cannot be meant (cli/exit_codes.py).
_WRONGLY_ASKED = 2


class StartRefused(Unavailable):
    """It cannot use what it was told: nothing but other words helps."""


class AnnouncedProcess:
    """One process at a time, and where it will be heard."""

    def __init__(self, what: str, schemes: tuple[str, ...], log_file: IO[bytes] | None) -> None:
        # For people: "a node".
        self._what = what
        # Of the address that its word begins with.
        self._schemes = schemes
        # Where its log lines go; None is our stderr.
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        # Where its word comes from; None: it was heard, or has not been started.
        self._ready_fd: int | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def has_died(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def is_unheard(self) -> bool:
        """Whether it was started, and its word has not been taken yet."""
        return self._ready_fd is not None

    @property
    def has_spoken(self) -> bool:
        """Whether its word can be had without waiting, or none will come."""
        assert self._ready_fd is not None
        readable, _, _ = select.select([self._ready_fd], [], [], 0.0)
        return bool(readable)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Begin; Unavailable when the computer has no room for it.

        From the main thread, since the child is to end with whoever started it.
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
                # A group of its own: Ctrl-C is for us, and we tell our children in order.
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                # What users' code prints below it is no word of ours either.
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
        """Its word, once, which begins with an address; Unavailable with what it says instead.

        StartRefused if that is about what it was told. It is waited for while it works.
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
        """Until it has ended, by force if it takes longer than it is given."""
        if self._process is None:
            return
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            log.error("%s did not stop and is killed", self._what, extra={"pid": self.pid})
            self._process.kill()
            self._process.wait()
