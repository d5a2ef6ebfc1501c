"""Servers that run for one measurement.

Every server has its own temporary folder and listens on free loopback ports, so that an installed
service is neither used nor disturbed. It runs in its own session: Ctrl-C reaches only this process,
which ends the server's process group, first with SIGTERM and then with SIGKILL. A server is ready
when it answers a request; no fixed time is waited.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
ASK_AGAIN_S = 0.02
LOG_TAIL_BYTES = 2000
_PORT_FIRST, _PORT_LAST = 20_000, 30_000
# A generator of its own, because repeatable experiments seed the global one.
_DICE = random.Random()


class ServerMissing(RuntimeError):
    """The server is not installed; the message names its Debian package."""

    def __init__(self, program: str, debian_package: str) -> None:
        super().__init__(f"{program} is not installed: apt-get install {debian_package}")
        self.debian_package = debian_package


class ServerFailed(RuntimeError):
    """The server did not start; the message has the end of its log."""


class Server(Protocol):
    """A running server, as a contender uses it."""

    @property
    def port(self) -> int:
        """The loopback port that clients connect to."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks on the server's setup that the report must contain."""
        ...


def find_program(names: Sequence[str], debian_package: str) -> str:
    """Return the path of the first program that exists, or raise `ServerMissing`."""
    # Debian installs servers in sbin, which is not in the search path of an ordinary user.
    search_path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    for name in names:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return found
    raise ServerMissing(names[0], debian_package)


def free_loopback_ports(count: int) -> list[int]:
    """Return different free loopback ports.

    They are below the ports that the kernel assigns to outgoing connections. An outgoing
    connection could take a port while a server still starts for seconds.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            candidate = held.enter_context(socket.socket())
            port = _DICE.randrange(_PORT_FIRST, _PORT_LAST)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        return ports


@contextlib.contextmanager
def temporary_folder(label: str) -> Iterator[Path]:
    """Yield a temporary folder and remove it when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-bench-{label}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    folder: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends; the block begins when `is_ready` returns True.

    `ServerFailed` means that the command ended, or was not ready within `ready_timeout_s`.
    """
    log_path = folder / f"{Path(command[0]).name}.out"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, is_ready, log_path, ready_timeout_s)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all its descendants, in its session or outside of it."""
    spawned = _spawned_by(process)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    # The process has its own session (start_new_session), so its group has no other processes.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)
    for leftover in spawned:
        # psutil compares start times, so that it never kills another process with a reused id.
        with contextlib.suppress(psutil.NoSuchProcess):
            leftover.kill()
    psutil.wait_procs(spawned, STOP_TIMEOUT_S)


def _spawned_by(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def answers(port: int, question: bytes, expected: bytes) -> bool:
    """Return whether the server on a loopback port answers `question` with `expected` in it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            if question:
                connection.sendall(question)
            return expected in connection.recv(4096)
    except OSError:
        return False


def _wait_until_ready(
    process: subprocess.Popen[bytes],
    is_ready: Callable[[], bool],
    log_path: Path,
    ready_timeout_s: float,
) -> None:
    deadline = time.monotonic() + ready_timeout_s
    while not is_ready():
        if process.poll() is not None:
            raise ServerFailed(f"{log_path.stem} ended while starting:\n{_tail(log_path)}")
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"{log_path.stem} was not ready after {ready_timeout_s:.0f} s:\n{_tail(log_path)}"
            )
        time.sleep(ASK_AGAIN_S)


def _tail(log_path: Path) -> str:
    return log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
