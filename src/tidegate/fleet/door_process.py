"""A door in its own process: started, awaited, and restarted on the same port."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tidegate.core.errors import Unavailable
from tidegate.core.hosting import Engine
from tidegate.fleet.announced_process import AnnouncedProcess
from tidegate.fleet.backoff import Backoff
from tidegate.fleet.store_environment import with_stores

log = logging.getLogger(__name__)

_STOP_S = 20.0
_AGAIN_S = (0.2, 5.0)
SCHEME = "http://"


class DoorProcess:
    """A `tidegate door` process, and its address while it serves."""

    def __init__(
        self,
        store_urls: Sequence[str],
        service: str,
        *,
        host: str,
        port: int,
        engine: Engine | None = None,
        # Networks that are trusted to say who the client is.
        trusted: Sequence[str] = (),
        config: Path | None = None,
        log_file: IO[bytes] | None = None,
        drain_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._store_urls = store_urls
        self._service = service
        self._host = host
        self._port = port
        self._engine = engine
        self._trusted = trusted
        self._config = config
        self._drain_s = drain_s
        # Added to our own environment.
        self._environment = dict(environment or {})
        self._child = AnnouncedProcess("a door", (SCHEME,), log_file)
        self._backoff = Backoff(*_AGAIN_S)
        self.address = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def has_died(self) -> bool:
        return self._child.has_died

    def start(self) -> None:
        """Start the door; call it from the main thread, since the child ends with its thread."""
        command = [sys.executable, "-m", "tidegate", "door", self._service]
        command += ["--host", self._host, "--port", str(self._port)]
        command += ["--drain", f"{self._drain_s:g}s"]
        if self._engine is not None:
            command += ["--engine", self._engine.value]
        for network in self._trusted:
            command += ["--trust", network]
        if self._config is not None:
            command += ["--config", str(self._config)]
        environment = {
            **with_stores(os.environ, self._store_urls),
            **self._environment,
        }
        self._child.start(command, environment)

    def wait_until_ready(self) -> None:
        """Wait until the door listens; raise `Unavailable` with its error if it does not."""
        self.address = self._child.line()
        # Keep the port, so that clients find the door after a restart.
        self._port = int(self.address.rpartition(":")[2])

    def ensure_running(self) -> bool:
        """Restart the door if it has died; return whether it was restarted."""
        now = time.monotonic()
        if not self.has_died or not self._backoff.is_due(now):
            return False
        self._child.tell_of_death(self.address)
        try:
            self.start()
            self.wait_until_ready()
        except Unavailable as failure:
            self._backoff.failed(time.monotonic())
            log.error("%s", failure)
            return False
        self._backoff.succeeded()
        return True

    def terminate(self) -> None:
        self._child.terminate()

    def wait(self) -> None:
        self._child.wait(self._drain_s + _STOP_S)
