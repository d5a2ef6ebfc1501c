"""The bookshop under `tidegate host`, started with the command line as a user would.

A thread counts the instances in the store, four times a second. Paid instances are all that have a
slot, also spare and draining ones; serving instances take requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.core.hosting import Engine, Instance, InstanceState
from tidegate.lab.peers.server import (
    ServerFailed,
    free_loopback_ports,
    running,
    temporary_folder,
)
from tidegate.lab.tapas.bookshop import TARGET, WELL_PATH, ShopSetting
from tidegate.storage.embedded import running_url
from tidegate.storage.postgres import PostgresStore

SERVICE = "shop"
_LOOK_S = 0.25
_READY_TIMEOUT_S = 120.0
_ADDRESS = re.compile(rb"^http://127\.0\.0\.1:(\d+)\s*$", re.MULTILINE)


class HostedPlan(msgspec.Struct, frozen=True):
    """The options of `tidegate host`."""

    shop: ShopSetting
    agreement: str
    spares: int = 0
    engine: Engine = Engine.GATEWAY
    balancing: str = "better-of-two"
    sticky: bool = False


class Crew(msgspec.Struct, frozen=True, array_like=True):
    """The number of instances at one time of the monotonic clock."""

    at: float
    paid: int
    serving: int


class HostedShop:
    """A hosted bookshop: its door, and the counts of its instances over time."""

    def __init__(self, port: int, data: Path) -> None:
        self.port = port
        self.crews: list[Crew] = []
        self._data = data
        self._over = threading.Event()
        self._watch = threading.Thread(target=lambda: asyncio.run(self._look()), daemon=True)

    def watch(self) -> None:
        self._watch.start()

    def wait_serving(self, instances: int) -> None:
        """Wait until `instances` instances serve; raise `ServerFailed` after a timeout."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not self.crews or self.crews[-1].serving < instances:
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{instances} instance(s) of the bookshop do not serve after "
                    f"{_READY_TIMEOUT_S:g} s"
                )
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        self._over.set()
        self._watch.join()

    async def _look(self) -> None:
        url = running_url(self._data)
        assert url is not None, "the store is there before the door is"
        store = PostgresStore(url)
        await store.open()
        try:
            while not self._over.is_set():
                crew = await store.instances(SERVICE)
                self.crews.append(_counted(crew))
                await asyncio.sleep(_LOOK_S)
        finally:
            await store.close()


def _counted(instances: list[Instance]) -> Crew:
    paid = [
        one
        for one in instances
        if one.machine_id is not None and one.state is not InstanceState.FAILED
    ]
    serving = [one for one in paid if one.state is InstanceState.READY and not one.is_spare]
    return Crew(time.monotonic(), len(paid), len(serving))


@contextlib.contextmanager
def hosted(plan: HostedPlan) -> Iterator[HostedShop]:
    """Run `tidegate host` until the block ends; the block begins when it prints its address."""
    (port,) = free_loopback_ports(1)
    with temporary_folder("hosted") as folder:
        # If this process is root, PostgreSQL runs under another account, which must reach the
        # folder.
        folder.chmod(0o755)
        file = folder / "shop.toml"
        file.write_text(plan.agreement)
        command = [sys.executable, "-m", "tidegate", "host", TARGET, "--agreement", str(file)]
        command += ["--port", str(port), "--data", str(folder / "data")]
        command += ["--concurrency", str(plan.shop.concurrency), "--spares", str(plan.spares)]
        command += ["--engine", plan.engine, "--balancing", plan.balancing]
        command += ["--health-path", WELL_PATH]
        if plan.sticky:
            command.append("--sticky")
        scratch = folder / "scratch"
        scratch.mkdir()
        # The databases are in the temporary folder, so that they are deleted even after a kill.
        for name, value in {**plan.shop.environment(), "TMPDIR": str(scratch)}.items():
            command += ["--env", f"{name}={value}"]
        output = folder / f"{Path(sys.executable).name}.out"

        def is_ready() -> bool:
            return output.exists() and _ADDRESS.search(output.read_bytes()) is not None

        with running(
            command,
            folder=folder,
            is_ready=is_ready,
            environment=_environment(),
            ready_timeout_s=_READY_TIMEOUT_S,
        ):
            shop = HostedShop(port, folder / "data")
            shop.watch()
            try:
                yield shop
            finally:
                shop.stop()


def _environment() -> dict[str, str]:
    """Return the environment without settings of another Tidegate."""
    return {name: text for name, text in os.environ.items() if not name.startswith("TIDEGATE_")}
