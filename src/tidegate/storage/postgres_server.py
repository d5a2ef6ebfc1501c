"""The lock on a data folder: one process at a time, visible to all others.

The process keeps a flock on the file `holder` in the folder and writes there what it is. The kernel
releases the lock when the process ends, even by a kill, so there are no stale locks. The contents
of the file are valid only while it is locked.

The file also marks a folder as a data folder of Tidegate, under any name. Programs that store data
there without locking it create the mark too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.secrecy import without_secrets

_MARK = "holder"


def mark_as_data(folder: Path) -> None:
    """Create the folder and its mark; raises OSError if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch(0o600)


def is_data_folder(folder: Path) -> bool:
    """Return whether a folder is a data folder of Tidegate."""
    return (folder / _MARK).is_file()


class Holder(msgspec.Struct, frozen=True):
    """The process that has locked a data folder."""

    pid: int
    command: str
    since: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return the entry for this process."""
        try:
            words = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            command = b" ".join(words).decode(errors="replace")
        except OSError:
            command = "?"
        now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        return cls(pid=os.getpid(), command=without_secrets(command), since=now)


class DataFolderHeld(TidegateError):
    """Another process has locked the data folder; stop it or name another folder."""

    name: ClassVar[str] = "DATA_FOLDER_HELD"

    def __init__(self, folder: Path, holder: Holder | None) -> None:
        self.folder = folder
        self.holder = holder
        who = (
            f"process {holder.pid} ({holder.command}) since {holder.since}"
            if holder is not None
            else "another process, which has not yet said which it is"
        )
        super().__init__(f"{folder} is held by {who}. Stop it, or name another data folder.")


class DataFolderUnusable(TidegateError):
    """The data folder cannot be created or written by this user."""

    name: ClassVar[str] = "DATA_FOLDER_UNUSABLE"

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(
            f"{folder} cannot be the data folder: {error.strerror}. "
            "Run as the user who owns it, or name another data folder."
        )


class DataFolder:
    """A data folder and this process's lock on it."""

    def __init__(self, path: Path) -> None:
        # Absolute and without links, as in PostgreSQL's files and in /proc.
        self.path = path.expanduser().resolve()
        self._lock_fd: int | None = None

    def hold(self) -> None:
        """Lock the folder for this process, creating it if needed.

        Raises `DataFolderHeld` if another process has locked it, and `DataFolderUnusable` if it
        cannot be created.
        """
        if self._lock_fd is not None:
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderUnusable(self.path, error) from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            raise DataFolderHeld(self.path, self._read_holder()) from None
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, msgspec.json.encode(Holder.this_process()) + b"\n", 0)
        self._lock_fd = lock_fd

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @property
    def _lock_path(self) -> Path:
        return self.path / _MARK

    def _read_holder(self) -> Holder | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._lock_path.read_bytes(), type=Holder)
        return None


def opener_0600(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as an `opener` for `open`."""
    return os.open(path, flags, 0o600)
