"""A node that leads, and its fleet of real process trees; signs to wait for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from places import SUPPORT
from waiting import eventually_async

import tidegate
from tidegate.broker.node import Node
from tidegate.core.machines import MachineInfo, MachineState
from tidegate.core.runtime import NodeLimits
from tidegate.core.topology import Scaling
from tidegate.fleet.fleet import Fleet, FleetOptions
from tidegate.fleet.process import ProcessTree, process_identity
from tidegate.fleet.providers import MARK_VARIABLE, ProcessProvider
from tidegate.storage.postgres.store import PostgresStore

# Of machines and of who leads: nobody is taken for dead because the computer is busy. A test that
# kills a node ends its lease by itself. Nodes take over queues at each third of it.
LEASE_S = 20.0
# Between looks that ask the database or read all of /proc.
LOOK_S = 0.05


class FleetUnderTest:
    """A node that leads, and its fleet of process trees."""

    def __init__(self, url: str, folder: Path, boot_s: float = 0.0, **options: Any) -> None:
        self.url = url
        self.folder = folder
        self.store = PostgresStore(url)
        self.node = Node(PostgresStore(url), limits=NodeLimits(lease_s=LEASE_S))
        self.machines_folder = folder / "fleet"
        self.boot_s = boot_s
        self._providers: list[ProcessProvider] = []
        self.provider = self.new_provider()
        chosen = {"list_s": 0.1, "lost_s": 60.0, "backoff_s": 0.05, **options}
        self.fleet = Fleet(self.store, self.provider, FleetOptions(**chosen))
        self.epoch = 0

    def new_provider(
        self,
        url: str | None = None,
        halt_s: float = 20.0,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ProcessProvider:
        """As another process would have it."""
        made = ProcessProvider(
            folder or self.machines_folder,
            boot_s=self.boot_s,
            halt_s=halt_s,
            store_urls=[url or self.url],
            environment={
                "TIDEGATE_STORE__DATA": str(self.folder),
                "TIDEGATE_TELEMETRY__ENABLED": "false",
                "TIDEGATE_NODE__LEASE": f"{LEASE_S:g}s",
                "TIDEGATE_FLEET__DRAIN": "10s",
                "TIDEGATE_METRICS__ENABLED": "false",
                "JOBS_FOLDER": str(self.folder),
                "PYTHONPATH": f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}",
                **(environment or {}),
            },
        )
        self._providers.append(made)
        return made

    async def start(self) -> None:
        await self.node.start()
        epoch = await self.store.lead(self.node.member_id)
        assert epoch is not None
        self.epoch = epoch

    async def stop(self) -> None:
        await self.fleet.reset()
        for provider in self._providers:
            for machine in await provider.list():
                await provider.halt(machine.machine_id)
        await self.store.close()
        await self.node.stop()

    def tree(self, machine_id: int) -> ProcessTree:
        return ProcessTree(MARK_VARIABLE, f"{self.machines_folder.resolve()}/{machine_id}")

    def pids(self, machine_id: int, *words: str) -> list[int]:
        """Processes of a machine whose command line begins with these words of `tidegate`."""
        found = []
        for member in self.tree(machine_id).members():
            try:
                line = Path(f"/proc/{member.pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if (
                "tidegate" in line
                and tuple(line[line.index("tidegate") + 1 :][: len(words)]) == words
            ):
                found.append(member.pid)
        return found

    async def until_pids(
        self, machine_id: int, *words: str, are_so: Callable[[list[int]], bool] = bool
    ) -> list[int]:
        """Wait for processes of a machine; `are_so`: there is one at least."""
        found: list[int] = []

        def look() -> bool:
            nonlocal found
            found = self.pids(machine_id, *words)
            return are_so(found)

        await eventually_async(look, f"processes {words} of machine {machine_id}", pause_s=LOOK_S)
        return found

    async def until_gone(self, machine_id: int) -> None:
        """Wait until a machine has no process left."""
        tree = self.tree(machine_id)
        what = f"machine {machine_id} has no process"
        await eventually_async(lambda: not tree.members(), what, pause_s=LOOK_S)

    async def row(self, machine_id: int) -> MachineInfo | None:
        rows = await self.store.machines()
        return next((row for row in rows if row.machine_id == machine_id), None)

    async def until_state(
        self, machine_id: int, *states: MachineState | None
    ) -> MachineInfo | None:
        """Reconcile until it is so; None: the row is gone."""
        row: MachineInfo | None = None

        async def is_so() -> bool:
            nonlocal row
            await self.fleet.reconcile(self.epoch)
            row = await self.row(machine_id)
            return (None if row is None else row.state) in states

        await eventually_async(is_so, f"machine {machine_id} is one of {states}", pause_s=LOOK_S)
        return row

    async def until_detail(self, machine_id: int, words: str = "") -> MachineInfo:
        """Until the machine reports trouble, with these words."""

        async def told() -> MachineInfo | None:
            row = await self.row(machine_id)
            return row if row is not None and row.detail and words in row.detail else None

        what = f"machine {machine_id} reports {words or 'trouble'}"
        return await eventually_async(told, what, pause_s=LOOK_S)

    async def elastic(self, name: str, machine_id: int, **scaling: Any) -> int:
        """A queue that scales, with a replica on a machine."""
        queue = await self.store.create_queue(name, True)
        assert queue is not None
        assert await self.store.set_scaling(queue.queue_id, Scaling(**scaling))
        place = await self.store.add_replica(queue.queue_id, self.epoch, machine_id=machine_id)
        assert place is not None
        return queue.queue_id

    async def put_and_see_done(self, queue: str, *names: str) -> None:
        """Messages for jobs.py, until each was worked on."""
        async with tidegate.connect(self.node.address) as mq:
            for name in names:
                await mq.put(queue, name.encode())
            await eventually_async(
                lambda: all((self.folder / f"done-{name}").exists() for name in names),
                f"{names} are worked on",
            )

    async def depose(self) -> None:
        """Have another one lead."""
        await self.store.join("other", "tidegate://127.0.0.1:1", 60.0)
        await self.store.leave(self.node.member_id)
        heir = min(one.member_id for one in await self.store.members() if one.alive)
        assert await self.store.lead(heir) is not None

    async def booted(self, slots: int = 1) -> MachineInfo:
        row = await self.fleet.boot(slots, None, self.epoch)
        found = await self.until_state(row.machine_id, MachineState.WARM)
        assert found is not None
        return found


def kill(pid: int) -> None:
    assert process_identity(pid) is not None
    os.kill(pid, signal.SIGKILL)
