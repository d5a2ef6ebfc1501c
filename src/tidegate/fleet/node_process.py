"""A node in its own process: started, awaited, and restarted on the same port."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tidegate.client.address import SCHEME, SCHEME_TLS
from tidegate.core.errors import Unavailable
from tidegate.fleet.announced_process import AnnouncedProcess
from tidegate.fleet.store_environment import with_stores

log = logging.getLogger(__name__)

_STOP_S = 15.0


class NodeProcess:
    """A `tidegate node` process, and its addresses while it serves."""

    def __init__(
        self,
        store_urls: Sequence[str],
        port: int,
        config: Path | None,
        log_file: IO[bytes] | None = None,
        metrics_port: int | None = None,
        lake: str | None = None,
        machine_id: int | None = None,
        knowledge: str | None = None,
        data: str | None = None,
        # Use a free port if the port is taken. Set only if the user did not choose the port.
        is_derived: bool = False,
    ) -> None:
        self._store_urls = store_urls
        self._lake = lake
        self._knowledge = knowledge
        self._data = data
        self._port = port
        self._is_derived = is_derived
        self._metrics_port = metrics_port
        self._config = config
        self._machine_id = machine_id
        self._child = AnnouncedProcess("a node", (SCHEME, SCHEME_TLS), log_file)
        self._started_at = 0.0
        self.address = ""
        self.metrics_address = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def start(self) -> None:
        """Start the node; call it from the main thread, since the child ends with its thread."""
        command = [sys.executable, "-m", "tidegate", "node", "--port", str(self._port)]
        if self._is_derived and not self.address:
            command += ["--or-free"]
        if self._metrics_port is not None:
            command += ["--metrics-port", str(self._metrics_port)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        if self._machine_id is not None:
            command += ["--machine", str(self._machine_id)]
        if self._machine_id is not None or self.address:
            # The cluster was started before: declaring queues again would restore deleted ones.
            command += ["--no-declare"]
        environment = with_stores(os.environ, self._store_urls)
        if self._lake is not None:
            environment["TIDEGATE_TELEMETRY__LAKE"] = self._lake
        if self._data is not None:
            environment["TIDEGATE_STORE__DATA"] = self._data
        if self._knowledge is not None:
            environment["TIDEGATE_PIPELINE__KNOWLEDGE"] = self._knowledge
        # Also for a failed start, so that it is not retried at once.
        self._started_at = time.monotonic()
        self._child.start(command, environment)

    def wait_until_ready(self) -> None:
        """Wait until the node serves; raise `Unavailable` with its error if it does not."""
        line = self._child.line()
        self.address, _, self.metrics_address = line.partition(" ")
        # Keep the port, so that clients find the node after a restart.
        self._port = int(self.address.rpartition(":")[2])
        if self.metrics_address:
            self._metrics_port = int(self.metrics_address.rpartition(":")[2])

    @property
    def has_died(self) -> bool:
        return self._child.has_died

    def ensure_running(self) -> None:
        """Restart the node if it has died, once a second at most; log a failure."""
        if not self.has_died or time.monotonic() - self._started_at < 1.0:
            return
        self._child.tell_of_death(self.address)
        try:
            self.start()
            self.wait_until_ready()
        except Unavailable as failure:
            log.error("%s", failure)

    def terminate(self) -> None:
        self._child.terminate()

    def wait(self) -> None:
        self._child.wait(_STOP_S)
