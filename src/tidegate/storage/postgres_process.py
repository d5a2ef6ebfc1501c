"""A PostgreSQL process that is a child of this process and ends with it.

The kernel asks it to shut down when its parent dies (PR_SET_PDEATHSIG), even by kill -9. That
signal is bound to the *thread* that forked. One thread therefore forks the server and then waits
for its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import IO

from tidegate.storage.embedded_failure import EmbeddedPostgresFailed
from tidegate.storage.postgres_account import PostgresAccount

STOP_FAST_S_MAX = 15.0
STOP_IMMEDIATE_S_MAX = 5.0
PR_SET_PDEATHSIG = 1


class PostgresProcess:
    """A child process that ends with this one, forked and awaited by a thread of its own."""

    def __init__(self, command: list[str], account: PostgresAccount, log_file: IO[bytes]) -> None:
        self.exit_code: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._failure: BaseException | None = None
        self._forked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(command, account, log_file), name="postgres", daemon=True
        )
        self._thread.start()
        self._forked.wait()
        if self._failure is not None:
            raise EmbeddedPostgresFailed(f"cannot run {command[0]}: {self._failure}")

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the process to end; return whether it has."""
        return self._ended.wait(timeout_s)

    def _live(self, command: list[str], account: PostgresAccount, log_file: IO[bytes]) -> None:
        ours = account.is_ours
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd="/",
                env=_clean_environment(),
                user=None if ours else account.user_id,
                group=None if ours else account.group_id,
                extra_groups=None if ours else [],
                umask=0o077,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except BaseException as error:
            self._failure = error
            self._forked.set()
            return
        self._forked.set()
        self.exit_code = self._popen.wait()
        self._ended.set()


def _die_with_parent() -> Callable[[], None]:
    # Loaded before the fork: between fork and exec hardly any operation is safe.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        # SIGINT is PostgreSQL's fast shutdown. Popen has changed the user before this call; a
        # change after it would clear the setting.
        prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _clean_environment() -> dict[str, str]:
    # PGDATA, PGPORT and similar variables of the caller concern other servers.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    return environment | {"LC_ALL": "C"}


def end_process(pid: int, wait: Callable[[float | None], bool]) -> None:
    """Stop a server: fast shutdown, then immediate shutdown, then kill.

    An immediate shutdown leaves recovery to the next start.
    """
    steps = (
        (signal.SIGINT, STOP_FAST_S_MAX),
        (signal.SIGQUIT, STOP_IMMEDIATE_S_MAX),
        (signal.SIGKILL, None),
    )
    for number, patience_s in steps:
        with contextlib.suppress(ProcessLookupError):
            if not wait(0):
                os.kill(pid, number)
        if wait(patience_s):
            return
