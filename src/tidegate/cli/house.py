"""A store and the nodes on it: what `up` holds, and starts again when it dies.

Each node is a process of its own (`tidegate node`); so is the console.
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

# Another machine may have led meanwhile, and have booted yet another.
_ROUNDS = 3


class House:
    """A store and the nodes on it."""

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
        # Of the store, while it runs.
        self.store_urls: list[str] = []

    @property
    def _lake(self) -> str:
        """Where the nodes record: with the data that they are told of, and not in their folder."""
        return self._settings.telemetry.lake or str(self._data.expanduser().resolve() / "lake")

    @property
    def _knowledge(self) -> str:
        """Where the nodes read what was learned; there, too."""
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
        """A command for other nodes of this machine; the password is read, never shown."""
        if self._embedded is None or self._store_port is None:
            return None
        password = self._data.expanduser().resolve() / "password"
        url = f"postgresql://tidegate:$(cat {password})@127.0.0.1:{self._store_port}/tidegate"
        # By the environment: a command line is read by everybody on the machine.
        return f'TIDEGATE_STORE__URL="{url}" tidegate node --port 0'

    def start(
        self,
        nodes: int,
        first_port: int,
        config: Path | None,
        first_metrics_port: int | None = None,
        *,
        # Nobody asked for these ports: nodes that do not get theirs take free ones.
        is_derived: bool = False,
    ) -> None:
        """Start everything; everything serves when this returns."""
        urls = self._settings.store.all_urls
        # Machines that a node of ours boots are ours too.
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
        """Begin with the console of these nodes; `watch` says when it is there.

        One that cannot be is no reason not to serve.
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
        """Start again what has died; the console's address when it has just come to serve."""
        try:
            if self._embedded is not None and self._embedded.ensure_running():
                log.error("PostgreSQL had died and was started again")
        except TidegateError as failure:
            # It died again while it recovered. We are here to try again, not to give up.
            log.error("PostgreSQL did not come back yet: %s", failure)
            return None
        for node in self._nodes:
            node.ensure_running()
        return None if self._console is None else self._console.watch()

    def _machines_here(self, urls: list[str], config: Path | None) -> ProcessProvider | None:
        """Machines that are processes of this computer; others live on without us."""
        if self._settings.fleet.provider != "process":
            return None
        from tidegate.cli.fleet_wiring import process_provider

        return process_provider(self._settings.with_data(self._data.expanduser()), urls, config)

    def stop(self) -> None:
        if self._console is not None:
            self._console.terminate()
        # Ours first: one of them leads as a rule, and would have new machines for those that go.
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
