"""The code that a machine was sent: fetched when it is missing, there while somebody runs it.

    <data>/packages/machine-7/lock          held while machine 7 lives
    <data>/packages/machine-7/<digest>/     its files, all of them

A machine that was killed leaves its folder; whoever finds that nobody holds its lock removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from tidegate.core.errors import Unavailable
from tidegate.fleet.package import unpack
from tidegate.storage.data_folder import mark_as_data


class PackageSource(Protocol):
    """Whoever keeps code by its SHA-256."""

    async def package(self, digest: str) -> bytes | None: ...


class PackageCache:
    """The unpacked code of one machine."""

    def __init__(self, folder: Path, machine_id: int, source: PackageSource) -> None:
        self._all = folder.expanduser().resolve() / "packages"
        self._own = self._all / f"machine-{machine_id}"
        self._source = source
        self._fetching = asyncio.Lock()
        self._lock_fd: int | None = None

    async def folder_of(self, digest: str) -> Path:
        """Where the files are; Unavailable or InvalidValue, in words, when they cannot be had."""
        folder = self._own / digest
        # Two instances that start together fetch it once.
        async with self._fetching:
            if folder.is_dir():
                return folder
            content = await self._source.package(digest)
            if content is None:
                raise Unavailable(f"the store has no code {digest[:12]}…: deploy it again")
            try:
                self._take()
                await asyncio.to_thread(unpack, content, digest, folder)
            except OSError as failure:
                raise Unavailable(
                    f"the code {digest[:12]}… cannot be unpacked in {self._own}: {failure.strerror}"
                ) from None
        return folder

    def forget_all_but(self, digests: Collection[str]) -> None:
        """Remove what nobody runs."""
        if self._lock_fd is None:
            return
        for path in self._own.iterdir():
            if path.is_dir() and path.name not in digests and not path.name.startswith("."):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        if self._lock_fd is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = None

    def _take(self) -> None:
        """Our folder is ours; those of the dead are nobody's."""
        if self._lock_fd is not None:
            return
        mark_as_data(self._all.parent)
        self._own.mkdir(parents=True, exist_ok=True)
        self._lock_fd = _locked(self._own / "lock")
        if self._lock_fd is None:
            raise Unavailable(f"another machine uses {self._own}: give each its own store.data")
        for other in self._all.iterdir():
            if other == self._own:
                continue
            descriptor = _locked(other / "lock")
            if descriptor is not None:
                shutil.rmtree(other, ignore_errors=True)
                os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A lock that ends with us; None: somebody else has it."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None
