"""The audit log: changes made through the console, with user and time.

The log is a file with one JSON line per entry, which survives restarts. It also has entries that
the nodes' decisions lack: messages put, redriven or purged, queues deleted, and refused requests.

A full file is cut to its newer half. Consoles with the same folder share the file: a lock
serializes writes, and each console reads the entries of the others. Without a folder, or if the
file is unreadable, entries are kept in memory only.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from tidegate.console.model import Deed

log = logging.getLogger(__name__)

DEEDS_MAX = 10_000
_FILE = "deeds.jsonl"


class Deeds:
    """The audit log; the newest entry is last."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE
        self._deeds: deque[Deed] = deque(maxlen=DEEDS_MAX)
        # The file at the last read: its inode, the offset read up to, and the number of lines.
        self._inode = -1
        self._read_bytes = 0
        self._lines = 0
        if self._file is not None:
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._catch_up(self._file)
            except OSError as failure:
                log.warning("deeds are not kept: %s cannot be read: %s", self._file, failure)
                self._file = None

    def newest_first(self, count: int) -> list[Deed]:
        if self._file is not None:
            # Another console may have written to the same file.
            with contextlib.suppress(OSError):
                self._catch_up(self._file)
        return list(islice(reversed(self._deeds), count))

    def add(self, deed: Deed) -> None:
        """Write an entry to disk before returning; log it, also if it cannot be written."""
        log.info(
            "%s", deed.what, extra={"user": deed.user, "about": deed.service, "out": deed.outcome}
        )
        if self._file is None:
            self._deeds.append(deed)
            return
        try:
            with _alone(self._file):
                self._catch_up(self._file)
                if self._lines >= 2 * DEEDS_MAX:
                    self._cut(self._file)
                _append(self._file, [deed])
                self._catch_up(self._file)
        except OSError as failure:
            self._deeds.append(deed)
            log.error("a deed could not be written down: %s", failure)

    def _catch_up(self, file: Path) -> None:
        """Read the lines that were written since the last read."""
        try:
            about = file.stat()
        except FileNotFoundError:
            return
        if about.st_ino != self._inode or about.st_size < self._read_bytes:
            # The file was replaced when it was cut; it has all entries that are kept.
            self._inode, self._read_bytes, self._lines = about.st_ino, 0, 0
            self._deeds.clear()
        if about.st_size == self._read_bytes:
            return
        with file.open("rb") as lines:
            lines.seek(self._read_bytes)
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # an unfinished line: its writer is still at it, or was killed
                self._read_bytes += len(line)
                self._lines += 1
                try:
                    self._deeds.append(msgspec.json.decode(line, type=Deed))
                except msgspec.DecodeError:
                    # The writer of this line was killed.
                    continue

    def _cut(self, file: Path) -> None:
        """Replace the file by its newer half, atomically."""
        beside = file.with_suffix(".new")
        beside.unlink(missing_ok=True)
        _append(beside, self._deeds)
        beside.replace(file)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Lock the audit log; the lock file is separate because the log is replaced when it is cut."""
    with file.with_suffix(".lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _append(file: Path, deeds: Iterable[Deed]) -> None:
    with file.open("ab") as sink:
        # Start a new line if the last one is unfinished.
        if sink.tell() and not _ends_well(file):
            sink.write(b"\n")
        for deed in deeds:
            sink.write(msgspec.json.encode(deed) + b"\n")
        sink.flush()
        os.fsync(sink.fileno())


def _ends_well(file: Path) -> bool:
    with file.open("rb") as source:
        source.seek(-1, os.SEEK_END)
        return source.read(1) == b"\n"
