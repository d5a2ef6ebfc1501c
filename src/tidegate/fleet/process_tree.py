"""Everything that runs for one machine on this computer, found by a mark and ended as a whole.

Strategy: every process of a machine carries its mark in the environment, which children inherit,
however often they fork, change their session or lose their parent. So the tree is found again
by whoever knows the mark, after any of them was killed; and nobody else is ever hit, since it is
the process itself that says whose it is: the mark is read through a handle on the process (pidfd)
that stays with it, and a recycled pid has none.
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
# How long the kernel may take to end what was killed.
_KILLED_S = 10.0


class ProcessTree:
    """The living processes whose environment has `variable=value`."""

    def __init__(self, variable: str, value: str) -> None:
        self.environment = {variable: value}
        self._mark = f"{variable}={value}".encode()

    def members(self) -> list[ProcessIdentity]:
        """Who lives, the oldest first."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            pid = int(entry.name)
            if self._is_marked(pid) and (identity := identity_of(pid)) is not None:
                found.append(identity)
        return sorted(found, key=lambda one: (one.started, one.pid))

    def send(self, number: signal.Signals, only: ProcessIdentity | None = None) -> None:
        """Signal all of them, or one if it is among them."""
        for member in self.members() if only is None else [only]:
            with self._handle(member.pid) as handle:
                if handle is not None and identity_of(member.pid) == member:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(handle, number)

    async def end(self, grace_s: float, first: ProcessIdentity | None = None) -> bool:
        """Ask, wait, then kill; False: even then one of them is still there.

        Whoever is `first` is asked alone while it lives: it ends the others in good order.
        """
        if first is not None and first.is_alive:
            self.send(signal.SIGTERM, first)
        else:
            self.send(signal.SIGTERM)
        if await self._gone(grace_s):
            return True
        deadline = time.monotonic() + _KILLED_S
        # Again and again: one that is being killed may just have had a child.
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
            # Gone, or another user's.
            return False
        return self._mark in environment.split(b"\0")

    @contextlib.contextmanager
    def _handle(self, pid: int) -> Iterator[int | None]:
        """A handle on the marked process of that pid; None: it is gone, or another one."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            yield None
            return
        try:
            yield handle if self._is_marked(pid) else None
        finally:
            os.close(handle)
