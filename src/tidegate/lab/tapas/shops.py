"""Instances of the bookshop as processes that can be slowed, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidegate.lab.peers.server import (
    ServerFailed,
    answers,
    free_loopback_ports,
    running,
    temporary_folder,
)
from tidegate.lab.tapas.bookshop import PACE_PATH, TARGET, WELL_PATH, ShopSetting

__all__ = ["Shop", "shops_running"]

# Instances that start at the same time, because each uses a core while it starts.
_STARTING_MAX = 4


class Shop:
    """A running instance of the bookshop on a loopback port."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.port = port
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def pace(self, times: float) -> None:
        """Multiply the service time of the instance by `times` from now on."""
        if not answers(self.port, _get(f"{PACE_PATH}{times:g}"), b"200 OK"):
            raise ServerFailed(
                f"{self.name} of the bookshop does not answer: it has no pace to change"
            )

    def kill(self) -> None:
        # Without a wait: until the process is reaped at the end, its id cannot be reused.
        self._process.kill()

    def hang(self) -> None:
        """Stop the process: it keeps its connections, accepts new ones, and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)


@contextlib.contextmanager
def shops_running(setting: ShopSetting, count: int) -> Iterator[list[Shop]]:
    """Run `count` instances until the block ends; all of them answer when it begins."""
    with temporary_folder("bookshop") as folder, contextlib.ExitStack() as stack:
        starting = [
            _shop_running(f"i{number}", port, setting, folder)
            for number, port in enumerate(free_loopback_ports(count), 1)
        ]
        yield _all_entered(starting, stack)


def _all_entered(
    starting: Sequence[contextlib.AbstractContextManager[Shop]], stack: contextlib.ExitStack
) -> list[Shop]:
    """Start the instances in parallel, because each start waits for an answer."""
    with ThreadPoolExecutor(max_workers=_STARTING_MAX) as threads:
        entering = [threads.submit(one.__enter__) for one in starting]
    for one, entered in zip(starting, entering, strict=True):
        if entered.exception() is None:
            stack.push(one)
    return [entered.result() for entered in entering]


@contextlib.contextmanager
def _shop_running(name: str, port: int, setting: ShopSetting, folder: Path) -> Iterator[Shop]:
    own_folder = folder / name
    own_folder.mkdir()
    command = [sys.executable, "-m", "uvicorn", TARGET, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--loop", "uvloop", "--http", "httptools"]
    command += ["--no-access-log", "--log-level", "warning"]
    # The database is in the temporary folder, so that it is deleted even after a kill.
    environment = {**os.environ, **setting.environment(), "TMPDIR": str(own_folder)}
    with running(
        command,
        folder=own_folder,
        environment=environment,
        is_ready=lambda: answers(port, _get(WELL_PATH), b"200 OK"),
    ) as process:
        shop = Shop(name, port, process)
        try:
            yield shop
        finally:
            # Kill, because a stopped process does not handle SIGTERM.
            shop.kill()


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n".encode()
