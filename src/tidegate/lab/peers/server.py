"""A server started for one measurement, and gone after it.

Strategy: every server lives in a temporary folder of its own and listens on free loopback ports
only, so an installed service is neither used nor disturbed. It runs in its own session: Ctrl-C
reaches us first, and we stop what we started by its own process group, politely and then not.
Readiness is asked of the server itself, never slept for.
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
# Its own: experiments that are to be repeatable set the seed of everybody's.
_DICE = random.Random()


class ServerMissing(RuntimeError):
    """The server is not installed; the sentence names the Debian package that brings it."""

    def __init__(self, program: str, debian_package: str) -> None:
        super().__init__(f"{program} is not installed: apt-get install {debian_package}")
        self.debian_package = debian_package


class ServerFailed(RuntimeError):
    """The server did not start, or died; the sentence carries the end of its log."""


class Server(Protocol):
    """What a contender needs to know about a running server."""

    @property
    def port(self) -> int:
        """The loopback port that clients connect to."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the figures has to know about this server's set-up."""
        ...


def find_program(names: Sequence[str], debian_package: str) -> str:
    """The first of these programs that exists, or ServerMissing."""
    # Debian keeps servers in sbin, which is not on the path of an ordinary user.
    search_path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    for name in names:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return found
    raise ServerMissing(names[0], debian_package)


def free_loopback_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different because all are held until the last is found.

    They are below those that the kernel gives to outgoing connections: a server that boots for
    seconds would often find that one of these has been taken meanwhile.
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
    """A folder that is removed whatever happens in it."""
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
    """Run the command until the block ends; the block begins when the server answers."""
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
    """End the process and whatever it left behind, in its session or out of it."""
    spawned = _spawned_by(process)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    # The session is ours alone (start_new_session), so its group holds only what we started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)
    for leftover in spawned:
        # psutil compares start times, so a reused process id is never mistaken for ours.
        with contextlib.suppress(psutil.NoSuchProcess):
            leftover.kill()
    psutil.wait_procs(spawned, STOP_TIMEOUT_S)


def _spawned_by(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def answers(port: int, question: bytes, expected: bytes) -> bool:
    """Whether the server on this loopback port answers the question as expected."""
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
