"""The packages of a machine: fetched when missing, kept while an instance uses them.

    <data>/packages/lock                    held while a machine starts, ends or cleans up
    <data>/packages/machine-7/lock          held while machine 7 lives
    <data>/packages/machine-7/<digest>/     the unpacked files, always complete

A killed machine leaves its folder. Another machine removes the folder when it finds that its lock
is free. The next machine of the same number empties it too, because code that ran there may have
changed files.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Protocol

from tidegate.core.errors import Unavailable
from tidegate.fleet.package import unpack
from tidegate.storage.data_folder import mark_as_data


class PackageSource(Protocol):
    """Stores packages by their SHA-256."""

    async def package(self, digest: str) -> bytes | None: ...


class PackageCache:
    """The unpacked packages of one machine."""

    def __init__(self, folder: Path, machine_id: int, source: PackageSource) -> None:
        self._all = folder.expanduser().resolve() / "packages"
        self._own = self._all / f"machine-{machine_id}"
        self._source = source
        self._fetching = asyncio.Lock()
        self._lock_fd: int | None = None

    async def folder_of(self, digest: str) -> Path:
        """Return the folder of a package, fetching it if it is missing.

        Raises `Unavailable` or `InvalidValue` with the reason if it cannot be had.
        """
        folder = self._own / digest
        # Fetch once if two instances start at the same time.
        async with self._fetching:
            if self._lock_fd is None:
                await self._on_disk(digest, self._take)
            if not folder.is_dir():
                content = await self._source.package(digest)
                if content is None:
                    raise Unavailable(f"the store has no code {digest[:12]}…: deploy it again")
                await self._on_disk(digest, unpack, content, digest, folder)
        return folder

    async def _on_disk(self, digest: str, do: Callable[..., None], *given: object) -> None:
        try:
            await asyncio.to_thread(do, *given)
        except OSError as failure:
            raise Unavailable(
                f"the code {digest[:12]}… cannot be unpacked in {self._own}: {failure.strerror}"
            ) from None

    def forget_all_but(self, digests: Collection[str]) -> None:
        """Remove packages that are not in use."""
        if self._lock_fd is None:
            return
        for path in self._own.iterdir():
            if path.is_dir() and path.name not in digests and not path.name.startswith("."):
                # A folder that cannot be renamed stays complete.
                with contextlib.suppress(OSError):
                    _remove(path)

    def close(self) -> None:
        if self._lock_fd is not None:
            # If the whole folder was removed, there is no lock to take.
            with contextlib.suppress(OSError), self._alone():
                shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = None

    def _take(self) -> None:
        """Lock and empty this machine's folder, and remove those of dead machines."""
        mark_as_data(self._all.parent)
        self._all.mkdir(exist_ok=True)
        with self._alone():
            if self._lock_fd is not None:
                return
            self._own.mkdir(exist_ok=True)
            self._lock_fd = _locked(self._own / "lock")
            if self._lock_fd is None:
                raise Unavailable(f"another machine uses {self._own}: give each its own store.data")
            for left in self._own.iterdir():
                if left.is_dir():
                    _remove(left)
            for other in self._all.iterdir():
                if other != self._own and other.is_dir():
                    _clear_up(other)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the common lock, so that no other machine removes a folder being created."""
        with (self._all / "lock").open("ab") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield


def _remove(code: Path) -> None:
    """Remove a folder in two steps, so that it is never found incomplete."""
    away = code.with_name(f".removed-{uuid.uuid4().hex}")
    code.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _clear_up(folder: Path) -> None:
    lock_fd = _locked(folder / "lock")
    if lock_fd is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock_fd)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock while open; None if it is already held."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None
