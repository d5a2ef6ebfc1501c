"""What people have done here, with who and when: lines of JSON in a file, which outlives a restart.

Beside it the node keeps what changes a loop among its decisions (law `person`); this also has what
no loop knows: messages put, redriven, purged, queues deleted, and what was refused. The file is cut
to its newer half when it is full. Two consoles of the same data write one after the other, and each
shows what both have written. Without a folder it is kept in memory only.
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
    """Newest last."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE
        self._deeds: deque[Deed] = deque(maxlen=DEEDS_MAX)
        # Of the file as it was read last: which one it is, up to where, and how many lines.
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
            # Another console of the same data may have written.
            with contextlib.suppress(OSError):
                self._catch_up(self._file)
        return list(islice(reversed(self._deeds), count))

    def add(self, deed: Deed) -> None:
        """On disk when this returns; one that cannot be written is in the log at least."""
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
        """Read what was written since."""
        try:
            about = file.stat()
        except FileNotFoundError:
            return
        if about.st_ino != self._inode or about.st_size < self._read_bytes:
            # Another file, that was cut: it has all that is still kept.
            self._inode, self._read_bytes, self._lines = about.st_ino, 0, 0
            self._deeds.clear()
        if about.st_size == self._read_bytes:
            return
        with file.open("rb") as lines:
            lines.seek(self._read_bytes)
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # somebody is about to write the rest of it, or was killed
                self._read_bytes += len(line)
                self._lines += 1
                try:
                    self._deeds.append(msgspec.json.decode(line, type=Deed))
                except msgspec.DecodeError:
                    # A line that was cut by a kill.
                    continue

    def _cut(self, file: Path) -> None:
        """Whole or not at all."""
        beside = file.with_suffix(".new")
        beside.unlink(missing_ok=True)
        _append(beside, self._deeds)
        beside.replace(file)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Of all who write to this file; beside it, since it is replaced when it is cut."""
    with file.with_suffix(".lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _append(file: Path, deeds: Iterable[Deed]) -> None:
    with file.open("ab") as sink:
        # After a line that was cut, ours begins on one of its own.
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
