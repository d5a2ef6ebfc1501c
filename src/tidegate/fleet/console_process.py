"""The console in its own process: started, awaited, and restarted on the same port."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tidegate.core.errors import Unavailable
from tidegate.fleet.announced_process import AnnouncedProcess
from tidegate.fleet.backoff import Backoff
from tidegate.fleet.store_environment import with_stores

log = logging.getLogger(__name__)

_STOP_S = 10.0
_AGAIN_S = (0.2, 10.0)
# After serving for this many seconds, a death is not caused by the start.
_SETTLED_S = 30.0
_SCHEMES = ("http://", "https://")
HOW_TO_GET_IT = "pip install 'tidegate[console]'"


def is_installed() -> bool:
    """Return whether the packages that the console needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("litestar", "uvicorn"))


class ConsoleProcess:
    """A `tidegate console` process, and its address while it serves."""

    def __init__(
        self,
        nodes: Sequence[str],
        store_urls: Sequence[str],
        *,
        host: str,
        port: int,
        # Use a free port if the port is taken. Set only if the user did not choose the port.
        is_derived: bool = False,
        config: Path | None = None,
        log_file: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._nodes = nodes
        self._store_urls = store_urls
        self._host = host
        self._port = port
        self._is_derived = is_derived
        self._config = config
        self._environment = dict(environment or {})
        self._child = AnnouncedProcess("the console", _SCHEMES, log_file)
        self._backoff = Backoff(*_AGAIN_S)
        self._serves_since: float | None = None
        self.address = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def has_died(self) -> bool:
        return self._child.has_died

    def start(self) -> None:
        """Start the console; if there is no room for a process now, `watch` tries again.

        Call it from the main thread, since the child ends with its thread.
        """
        command = [sys.executable, "-m", "tidegate", "console"]
        command += ["--host", self._host, "--port", str(self._port)]
        if self._is_derived and not self.address:
            command += ["--or-free"]
        if self._config is not None:
            command += ["--config", str(self._config)]
        environment = {**with_stores(os.environ, self._store_urls), **self._environment}
        environment["TIDEGATE_URL"] = _joined(self._nodes)
        try:
            self._child.start(command, environment)
        except Unavailable as failure:
            self._note_failure(failure)

    def wait_until_ready(self) -> None:
        """Wait until the console listens; raise `Unavailable` with its error if it does not."""
        self.address = self._child.line()
        # Keep the port, so that browsers find the console after a restart.
        self._port = int(self.address.rpartition(":")[2])

    def watch(self) -> str | None:
        """Restart the console if it has died; return its address when it has just begun to serve.

        Never waits, because the caller has nodes to watch.
        """
        if self._child.is_unheard:
            if not self._child.has_spoken:
                return None
            try:
                self.wait_until_ready()
            except Unavailable as failure:
                self._note_failure(failure)
                return None
            self._serves_since = time.monotonic()
            return self.address
        if self.has_died:
            self._note_death()
        if self.has_died and self._backoff.is_due(time.monotonic()):
            if self.pid is not None:
                self._child.tell_of_death(self.address)
            self.start()
        return None

    def _note_failure(self, failure: Unavailable) -> None:
        self._backoff.failed(time.monotonic())
        log.error("no console: %s", failure)

    def _note_death(self) -> None:
        """Record the end of a console that served; soon after its start it counts as a failure."""
        if self._serves_since is None:
            return
        now = time.monotonic()
        if now - self._serves_since >= _SETTLED_S:
            self._backoff.succeeded()
        self._backoff.failed(now)
        self._serves_since = None

    def terminate(self) -> None:
        self._child.terminate()

    def wait(self) -> None:
        self._child.wait(_STOP_S)


def _joined(nodes: Sequence[str]) -> str:
    """Join node URLs to one URL."""
    first, *others = nodes
    return ",".join([first, *(one.partition("://")[2] for one in others)])
