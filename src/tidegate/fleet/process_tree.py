"""All processes of one machine on this computer, found by a mark and ended together.

Each process of a machine has the mark in its environment. Children inherit it, however often they
fork, change their session or lose their parent. Any process that knows the mark can therefore find
the whole tree again, even after parts of it were killed.

No other process is ever signalled. The mark is read from the process itself through a handle
(pidfd), and a process that reuses a pid does not have the mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tidegate.fleet.parent import ProcessIdentity, identity_of

_LOOK_S = 0.02
# Seconds that the kernel may take to end killed processes.
_KILLED_S = 10.0


class ProcessTree:
    """The living processes whose environment contains `variable=value`."""

    def __init__(self, variable: str, value: str) -> None:
        self.environment = {variable: value}
        self._mark = f"{variable}={value}".encode()

    def members(self) -> list[ProcessIdentity]:
        """Return the processes, the oldest first, without this one."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            pid = int(entry.name)
            if self._is_marked(pid) and (identity := identity_of(pid)) is not None:
                found.append(identity)
        return sorted(found, key=lambda one: (one.started, one.pid))

    def send(self, number: signal.Signals, only: ProcessIdentity | None = None) -> None:
        """Send a signal to all of them, or to `only` if it belongs to them."""
        for member in self.members() if only is None else [only]:
            with self._handle(member.pid) as handle:
                if handle is not None and identity_of(member.pid) == member:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(handle, number)

    async def end(self, grace_s: float, first: ProcessIdentity | None = None) -> bool:
        """Send SIGTERM, wait, then kill; return False if a process is left even then.

        If `first` is alive, only it gets the SIGTERM, because it ends the others in good order.
        """
        if first is not None and first.is_alive:
            self.send(signal.SIGTERM, first)
        else:
            self.send(signal.SIGTERM)
        if await self._gone(grace_s):
            return True
        deadline = time.monotonic() + _KILLED_S
        # Repeat: a process that is being killed may just have started a child.
        while time.monotonic() < deadline:
            self.send(signal.SIGKILL)
            if await self._gone(_LOOK_S):
                return True
        return False

    async def _gone(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while self.members():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def _is_marked(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            # The process is gone, or belongs to another user.
            return False
        return self._mark in environment.split(b"\0")

    @contextlib.contextmanager
    def _handle(self, pid: int) -> Iterator[int | None]:
        """Open a handle on the process if it has the mark; else None."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            yield None
            return
        try:
            yield handle if self._is_marked(pid) else None
        finally:
            os.close(handle)
