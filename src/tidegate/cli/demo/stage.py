"""The processes of the demo, in one temporary folder that is deleted at the end.

    <folder>/tidegate.toml                its own settings; those of the user have no effect
    <folder>/orders.toml, archive.toml    the agreements
    <folder>/data                         store, lake, models, and the fleet's records
    <folder>/histories                    the histories that clients record

Nodes, machines and workers are those of `tidegate up`. All end with this process, even if it is
killed. All ports are free ports of this computer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from tidegate.cli.demo import story
from tidegate.cli.demo.customers import Customers, Errand
from tidegate.cli.demo.workshop import FOLDER_VARIABLE, HISTORIES, SLOW
from tidegate.cli.house import House
from tidegate.cli.interruption import undisturbed
from tidegate.cli.settings.reader import ENVIRONMENT_PREFIX, load_settings
from tidegate.cli.settings.settings import Settings
from tidegate.client.connect import URL_VARIABLE
from tidegate.fleet.console_process import is_installed
from tidegate.fleet.parent import for_child
from tidegate.fleet.process_tree import ProcessTree
from tidegate.fleet.providers.process import MARK_VARIABLE

_END_S = 10.0


class Stage:
    """The running processes of the demo."""

    def __init__(self, folder: Path, log_file: IO[bytes]) -> None:
        self.folder = folder
        self.log_file = log_file
        self.settings = written_settings(folder)
        self._house = House(self.settings, self.data, log_file=log_file)
        self.customers: Customers | None = None
        self._workers: list[asyncio.subprocess.Process] = []

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def histories(self) -> Path:
        return self.folder / HISTORIES

    @property
    def url(self) -> str:
        return self._house.addresses[0]

    @property
    def store_urls(self) -> list[str]:
        return self._house.store_urls

    def open(self) -> None:
        """Start the store and a node, and return when they serve; must run in the main thread.

        The kernel ends a child process when the thread that started it ends.
        """
        self._house.start(1, 0, self.folder / "tidegate.toml", 0)

    def open_console(self) -> bool:
        """Start the console; return False if its packages are not installed."""
        if is_installed():
            self._house.start_console(0, self.folder / "tidegate.toml")
        return is_installed()

    def watch(self) -> str | None:
        """Restart processes that died by accident; return the console's address when it serves."""
        return self._house.watch()

    async def let_customers_in(self) -> None:
        errand = Errand(self.url, str(self.histories))
        self.customers = await Customers.start(errand, self.log_file)

    async def add_worker(self, app: str) -> None:
        """Start a worker process in addition to those of the fleet."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate", "worker", f"tidegate.cli.demo.workshop:{app}"),
            *("--config", str(self.folder / "tidegate.toml"), "--drain", "5s"),
            env={**os.environ, **for_child(), URL_VARIABLE: self.url},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self.log_file,
            stderr=self.log_file,
            start_new_session=True,
        )
        self._workers.append(process)

    def slow_down(self, replica: str | None) -> None:
        """Make the worker of a replica slow; None makes all workers fast again."""
        if replica is None:
            (self.folder / SLOW).unlink(missing_ok=True)
        else:
            (self.folder / SLOW).write_text(replica)

    def kill_machine(self, machine_id: int) -> int:
        """Kill all processes of a machine with SIGKILL at once, and return their number."""
        tree = ProcessTree(MARK_VARIABLE, f"{self.data.resolve() / 'fleet'}/{machine_id}")
        members = tree.members()
        tree.send(signal.SIGKILL)
        return len(members)

    async def dismiss(self) -> None:
        """Stop the producers, and the workers that are not in the fleet.

        Workers finish or return the messages they have begun.
        """
        if self.customers is not None:
            await self.customers.kill()
            self.customers = None
        for process in self._workers:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._workers:
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._workers.clear()

    def close(self) -> None:
        """Stop the store, nodes and machines, without interruption."""
        with undisturbed():
            self._house.stop()


def written_settings(folder: Path) -> Settings:
    """Write the settings and agreements of the demo, and return the settings."""
    (folder / HISTORIES).mkdir()
    (folder / f"{story.ORDERS}.toml").write_text(story.AGREEMENT)
    of_archive = folder / f"{story.ARCHIVE}.toml"
    of_archive.write_text(story.ARCHIVE_AGREEMENT)
    file = folder / "tidegate.toml"
    # The agreement of `archive` is evaluated although the queue does not scale.
    judged = f"[pipeline]\nagreements = [{msgspec.json.encode(str(of_archive)).decode()}]\n"
    file.write_text(f"{story.SETTINGS}\n{judged}")
    return load_settings(file, {})


@contextmanager
def temporary_stage() -> Iterator[Stage]:
    """Provide the demo in a temporary folder and environment, which end with the context."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    before = dict(os.environ)
    try:
        for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
            del os.environ[name]
        os.environ[FOLDER_VARIABLE] = str(folder)
        logging.basicConfig(filename=folder / "demo.log", level=logging.INFO, force=True)
        with (folder / "demo.log").open("ab") as log_file:
            yield Stage(folder, log_file)
    finally:
        with undisturbed():
            logging.basicConfig(handlers=[logging.NullHandler()], force=True)
            os.environ.clear()
            os.environ.update(before)
            shutil.rmtree(folder, ignore_errors=True)
