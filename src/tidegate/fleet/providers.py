"""Provider `process`: a machine is a tree of processes on this computer.

    <folder>/7.json       the order, written before the machine runs: slots, host, time of boot
    <folder>/7.words      why it ended, if one of our errors ended it
    <folder>/lock         held while a machine is booted, because two leaders may boot at once

Nothing important is kept in memory. After a kill, the folder and the marks of the processes
(`ProcessTree`) show what runs. With `boot_s` a machine waits this many seconds before it begins,
which simulates the boot time of a cloud.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tidegate.core.errors import Unavailable
from tidegate.core.fleet import Machine
from tidegate.fleet.parent import ProcessIdentity, identity_of
from tidegate.fleet.process_tree import ProcessTree
from tidegate.fleet.store_environment import with_stores

MARK_VARIABLE = "TIDEGATE_MACHINE_MARK"
LAST_WORDS_VARIABLE = "TIDEGATE_LAST_WORDS"
RUNNING = ("booting", "running")
_LOCK_S = 10.0
_LOOK_S = 0.02
_WORDS_MAX = 2000


class _Order(msgspec.Struct, kw_only=True):
    """A machine that was ordered."""

    machine_id: int
    slots: int
    host: str | None = None
    # Seconds since 1970 when its boot ends.
    booted_at: float = 0.0
    # Pid and start time of its supervisor; None if the leader died before it could write them.
    process: tuple[int, int] | None = None
    # Ended together with `tidegate up`, and not by a failure.
    stopped: bool = False


class ProcessProvider:
    """Machines that are trees of processes."""

    name = "process"

    def __init__(
        self,
        folder: Path,
        *,
        boot_s: float = 0.0,
        halt_s: float = 45.0,
        store_urls: Sequence[str],
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder.expanduser().resolve()
        self._boot_s = boot_s
        # Seconds that a machine may take to end before it is killed.
        self._halt_s = halt_s
        self._store_urls = store_urls
        self._environment = dict(environment or {})
        self._arguments = arguments
        # Children of this process, which must be waited for, or they stay as zombies.
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._folder.mkdir(parents=True, exist_ok=True)

    async def boot(self, machine_id: int, slots: int, host: str | None) -> Machine:
        async with self._locked():
            order = self._read(machine_id)
            if order is not None and (found := await self._seen(order)).state in RUNNING:
                return found
            await self._end(machine_id, order)
            order = _Order(
                machine_id=machine_id, slots=slots, host=host, booted_at=time.time() + self._boot_s
            )
            self._words(machine_id).unlink(missing_ok=True)
            # Write the order first, so that a running machine can always be found again.
            self._write(order)
            try:
                order.process = self._start(order)
                self._write(order)
            except Unavailable:
                # Leave no partial machine behind.
                await self._end(machine_id, None)
                self._path(machine_id).unlink(missing_ok=True)
                raise
        return await self._seen(order)

    async def halt(self, machine_id: int) -> None:
        await self._end(machine_id, self._read(machine_id))
        for path in (self._words(machine_id), self._path(machine_id)):
            path.unlink(missing_ok=True)

    async def list(self) -> list[Machine]:
        numbers = sorted(int(one.stem) for one in self._folder.glob("*.json") if one.stem.isdigit())
        orders = [order for number in numbers if (order := self._read(number)) is not None]
        return [await self._seen(order) for order in orders]

    async def stop_all(self) -> int:
        """End all machines in good order, as `tidegate up` does; return how many ran."""
        found = [self._read(one.machine_id) for one in await self.list() if one.state in RUNNING]
        orders = [order for order in found if order is not None]
        await asyncio.gather(*(self._stop(order) for order in orders))
        return len(orders)

    async def _stop(self, order: _Order) -> None:
        await self._end(order.machine_id, order)
        order.stopped = True
        self._write(order)

    async def close(self) -> None:
        """Forget the machines; they keep running."""
        self._children.clear()

    async def _seen(self, order: _Order) -> Machine:
        """Return the machine of an order in its current state."""
        if (child := self._children.get(order.machine_id)) is not None:
            child.poll()
        running = await asyncio.to_thread(self._supervisor, order) is not None
        if running:
            state = "booting" if time.time() < order.booted_at else "running"
        else:
            state = "stopped" if order.stopped else "halted"
        return Machine(
            machine_id=order.machine_id,
            host=order.host,
            state=state,
            detail="" if running else self._last_words(order.machine_id),
        )

    def _supervisor(self, order: _Order) -> ProcessIdentity | None:
        if order.process is not None:
            identity = ProcessIdentity(*order.process)
            return identity if identity.is_alive else None
        # The oldest process of the tree has started the others.
        members = self._tree(order.machine_id).members()
        return members[0] if members else None

    async def _end(self, machine_id: int, order: _Order | None) -> None:
        supervisor = None if order is None else self._supervisor(order)
        child = self._children.get(machine_id)
        ended = await self._tree(machine_id).end(self._halt_s, first=supervisor)
        if child is not None:
            child.poll()
            self._children.pop(machine_id, None)
        if not ended:
            raise Unavailable(f"machine {machine_id} has processes that SIGKILL does not end")

    def _start(self, order: _Order) -> tuple[int, int]:
        command = [sys.executable, "-m", "tidegate", "machine", "--id", str(order.machine_id)]
        command += ["--slots", str(order.slots), *self._arguments]
        if self._boot_s:
            command += ["--boot-s", f"{self._boot_s:g}"]
        environment = {
            **with_stores(os.environ, self._store_urls),
            **self._environment,
            **self._tree(order.machine_id).environment,
            LAST_WORDS_VARIABLE: str(self._words(order.machine_id)),
        }
        try:
            # A session of its own: the machine outlives us, and our Ctrl-C must not reach it.
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as failure:
            raise Unavailable(f"machine {order.machine_id} cannot be started: {failure}") from None
        self._children[order.machine_id] = child
        identity = identity_of(child.pid)
        return (child.pid, 0) if identity is None else (identity.pid, identity.started)

    # The folder of orders

    def _tree(self, machine_id: int) -> ProcessTree:
        return ProcessTree(MARK_VARIABLE, f"{self._folder}/{machine_id}")

    def _path(self, machine_id: int) -> Path:
        return self._folder / f"{machine_id}.json"

    def _words(self, machine_id: int) -> Path:
        return self._folder / f"{machine_id}.words"

    def _last_words(self, machine_id: int) -> str:
        try:
            return self._words(machine_id).read_text(errors="replace")[:_WORDS_MAX].strip()
        except OSError:
            return "it ended without a word"

    def _read(self, machine_id: int) -> _Order | None:
        try:
            return msgspec.json.decode(self._path(machine_id).read_bytes(), type=_Order)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as failure:
            raise Unavailable(f"{self._path(machine_id)} cannot be read: {failure}") from None

    def _write(self, order: _Order) -> None:
        path = self._path(order.machine_id)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(msgspec.json.encode(order))
            draft.replace(path)
        except OSError as failure:
            draft.unlink(missing_ok=True)
            raise Unavailable(f"{path} cannot be written: {failure}") from None

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        deadline = time.monotonic() + _LOCK_S
        path = self._folder / "lock"
        try:
            file = path.open("wb")
        except OSError as failure:
            raise Unavailable(f"{path} cannot be written: {failure}") from None
        with file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise Unavailable(f"{path} is held by another leader") from None
                    await asyncio.sleep(_LOOK_S)
            yield
