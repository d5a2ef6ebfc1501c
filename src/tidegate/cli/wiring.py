"""The store and nodes of one computer, which `up` starts, watches and restarts.

Each node is a separate process (`tidegate node`), and so is the console.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tidegate.cli.settings.console import CONSOLE_PORT_OFFSET
from tidegate.cli.settings.settings import Settings
from tidegate.core.errors import TidegateError
from tidegate.fleet.console_process import HOW_TO_GET_IT, ConsoleProcess, is_installed
from tidegate.fleet.node_process import NodeProcess
from tidegate.fleet.parent import become_keeper

if TYPE_CHECKING:
    from tidegate.fleet.providers.process import ProcessProvider
    from tidegate.storage.embedded import EmbeddedPostgres

log = logging.getLogger(__name__)

# A machine that led meanwhile may have booted another one, so stopping is repeated.
_ROUNDS = 3


class House:
    """A store, the nodes on it, and the console, as child processes of this one."""

    def __init__(
        self,
        settings: Settings,
        data: Path,
        store_port: int | None = None,
        log_file: IO[bytes] | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._store_port = store_port
        self._log_file = log_file
        self._embedded: EmbeddedPostgres | None = None
        self._nodes: list[NodeProcess] = []
        self._machines: ProcessProvider | None = None
        self._console: ConsoleProcess | None = None
        # Set while the store runs.
        self.store_urls: list[str] = []

    @property
    def _lake(self) -> str:
        """The location for recording, in the data folder rather than the nodes' working folder."""
        return self._settings.telemetry.lake or str(self._data.expanduser().resolve() / "lake")

    @property
    def _knowledge(self) -> str:
        """The folder of learned models, in the data folder for the same reason."""
        chosen = self._settings.pipeline.knowledge
        return chosen or str(self._data.expanduser().resolve() / "knowledge")

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self._nodes]

    @property
    def metrics_addresses(self) -> list[str]:
        return [node.metrics_address for node in self._nodes if node.metrics_address]

    @property
    def console_address(self) -> str:
        return "" if self._console is None else self._console.address

    @property
    def how_to_join(self) -> str | None:
        """A shell command that starts a further node on this machine; None without a store port.

        The command reads the password from a file and does not contain it.
        """
        if self._embedded is None or self._store_port is None:
            return None
        password = self._data.expanduser().resolve() / "password"
        url = f"postgresql://tidegate:$(cat {password})@127.0.0.1:{self._store_port}/tidegate"
        # Use the environment, because other users of the machine can read command lines.
        return f'TIDEGATE_STORE__URL="{url}" tidegate node --port 0'

    def start(
        self,
        nodes: int,
        first_port: int,
        config: Path | None,
        first_metrics_port: int | None = None,
        *,
        # Set if the user did not choose the ports: a node then falls back to a free port.
        is_derived: bool = False,
    ) -> None:
        """Start the store and the nodes, and return when all nodes serve."""
        urls = self._settings.store.all_urls
        # Machines that these nodes boot as processes end with this process.
        become_keeper()
        if not urls:
            from tidegate.storage.embedded import EmbeddedPostgres

            self._embedded = EmbeddedPostgres(self._data, port=self._store_port)
            urls = [self._embedded.start()]
        self.store_urls = urls
        self._machines = self._machines_here(urls, config)
        for index in range(nodes):
            port = first_port + index if first_port else 0
            metrics_port = first_metrics_port + index if first_metrics_port else first_metrics_port
            self._nodes.append(
                NodeProcess(
                    urls,
                    port,
                    config,
                    self._log_file,
                    metrics_port,
                    self._lake,
                    knowledge=self._knowledge,
                    data=str(self._data.expanduser().resolve()),
                    is_derived=is_derived,
                )
            )
        for node in self._nodes:
            node.start()
        for node in self._nodes:
            node.wait_until_ready()

    def start_console(self, first_port: int, config: Path | None) -> None:
        """Start the console of these nodes; `watch` returns its address when it serves.

        A console that cannot start does not stop the nodes.
        """
        if not is_installed():
            print(f"no console: {HOW_TO_GET_IT}", file=sys.stderr)
            return
        chosen = self._settings.console
        derived = first_port + CONSOLE_PORT_OFFSET if first_port else 0
        port = chosen.port if chosen.port is not None else derived if derived < 2**16 else 0
        process = ConsoleProcess(
            self.addresses,
            self.store_urls,
            host=chosen.host,
            port=port,
            is_derived=chosen.port is None,
            config=config,
            log_file=self._log_file,
            environment={
                "TIDEGATE_STORE__DATA": str(self._data.expanduser().resolve()),
                "TIDEGATE_PIPELINE__KNOWLEDGE": self._knowledge,
            },
        )
        process.start()
        self._console = process

    def watch(self) -> str | None:
        """Restart processes that died; return the console's address when it starts to serve."""
        try:
            if self._embedded is not None and self._embedded.ensure_running():
                log.error("PostgreSQL had died and was started again")
        except TidegateError as failure:
            # PostgreSQL died again while it recovered. The next call tries again.
            log.error("PostgreSQL did not come back yet: %s", failure)
            return None
        for node in self._nodes:
            node.ensure_running()
        return None if self._console is None else self._console.watch()

    def _machines_here(self, urls: list[str], config: Path | None) -> ProcessProvider | None:
        """Return the provider of machines on this computer; None if the machines run elsewhere."""
        if self._settings.fleet.provider != "process":
            return None
        from tidegate.cli.fleet_wiring import process_provider

        return process_provider(self._settings.with_data(self._data.expanduser()), urls, config)

    def stop(self) -> None:
        if self._console is not None:
            self._console.terminate()
        # Stop the nodes before the machines: the leader is usually one of these nodes, and it would
        # boot new machines for those that stop.
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait()
        if self._console is not None:
            self._console.wait()
        self._stop_machines()
        if self._embedded is not None:
            self._embedded.stop()

    def _stop_machines(self) -> None:
        if self._machines is None:
            return
        for _ in range(_ROUNDS):
            try:
                if not asyncio.run(self._machines.stop_all()):
                    return
            except TidegateError as failure:
                log.error("machines were left behind: %s", failure)
