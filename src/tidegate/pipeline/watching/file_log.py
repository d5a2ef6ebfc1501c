"""The log of the files that a stream has taken from the lake; each entry is the input of one batch.

    <folder>/000000007.json      the files of batch 7, and the files left out before it
    <folder>/seen.json           a summary of all entries up to one that was finished long ago

An entry is written before Spark learns about it, and it keeps naming the same rows. A batch that
runs again after a kill therefore reads the same rows. Spark's offset is the number of the entry.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec

from tidegate.pipeline.watching.admission import LakeFile, LeftOut

_KEPT_ENTRIES = 100
# File ids are forgotten when their rows are this much older than the newest. If such a file
# appears again, its rows are dropped as late.
_REMEMBERED_S = 2 * 86400.0


class Entry(msgspec.Struct, frozen=True):
    """The input of one batch, and the files that were left out on the way."""

    files: list[LakeFile]
    left_out: list[LeftOut]


class Counts(msgspec.Struct):
    """How many files and rows were taken and left out so far."""

    files: int = 0
    rows: int = 0
    files_left_out: dict[str, int] = {}
    rows_left_out: dict[str, int] = {}


class _Seen(msgspec.Struct):
    """The summary of finished entries."""

    through: int = 0
    paths: set[str] = set()
    # File id → time of the file's last row.
    ids: dict[str, float] = {}
    # The time of the newest row so far.
    newest_s: float | None = None
    counts: Counts = msgspec.field(default_factory=Counts)


class FileLog:
    """The log of one stream; one process writes to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        seen = folder / "seen.json"
        self._seen = (
            msgspec.json.decode(seen.read_bytes(), type=_Seen) if seen.exists() else _Seen()
        )
        self._next = self._seen.through + 1
        # The summary plus the entries that still exist.
        self.paths = set(self._seen.paths)
        self.ids = dict(self._seen.ids)
        self.newest_s = self._seen.newest_s
        while (entry := self.entry(self._next)) is not None:
            self._note(entry)

    @property
    def last(self) -> int:
        """The number of the newest entry."""
        return self._next - 1

    def entry(self, number: int) -> Entry | None:
        """Return an entry, or `None` if it is not written yet or only part of the summary."""
        file = self._folder / f"{number:09d}.json"
        return msgspec.json.decode(file.read_bytes(), type=Entry) if file.exists() else None

    def append(self, entry: Entry) -> int:
        """Write the next entry and return its number."""
        number = self._next
        self.rewrite(number, entry)
        self._note(entry)
        return number

    def rewrite(self, number: int, entry: Entry) -> None:
        """Write an entry, replacing the file of that number atomically."""
        _write(self._folder / f"{number:09d}.json", msgspec.json.encode(entry))

    def forget(self, done_through: int, present: Collection[str]) -> None:
        """Move entries before `done_through` to the summary, once there are 100 of them.

        The paths of files that no longer exist in the lake (`present`) and the ids of old files are
        dropped.
        """
        through = done_through - 1
        if through - self._seen.through < _KEPT_ENTRIES:
            return
        seen = self._seen
        for number in range(seen.through + 1, through + 1):
            entry = self.entry(number)
            assert entry is not None, f"entry {number} is missing"
            _count(seen.counts, entry)
            seen.paths |= _paths(entry)
            seen.ids |= _ids(entry)
            seen.newest_s = _newest_s(seen.newest_s, entry)
        seen.paths &= set(present)
        oldest_s = max(seen.ids.values(), default=0.0) - _REMEMBERED_S
        seen.ids = {file_id: last_s for file_id, last_s in seen.ids.items() if last_s >= oldest_s}
        first, seen.through = seen.through + 1, through
        _write(self._folder / "seen.json", msgspec.json.encode(seen))
        for number in range(first, through + 1):
            (self._folder / f"{number:09d}.json").unlink(missing_ok=True)

    def counts(self, through: int) -> Counts:
        """Return the totals of all entries up to `through`."""
        total = msgspec.convert(msgspec.to_builtins(self._seen.counts), Counts)
        for number in range(self._seen.through + 1, through + 1):
            if (entry := self.entry(number)) is not None:
                _count(total, entry)
        return total

    def _note(self, entry: Entry) -> None:
        self.paths |= _paths(entry)
        self.ids |= _ids(entry)
        self.newest_s = _newest_s(self.newest_s, entry)
        self._next += 1


def _paths(entry: Entry) -> set[str]:
    return {one.path for one in entry.files} | {one.path for one in entry.left_out}


def _ids(entry: Entry) -> dict[str, float]:
    """Return the ids of files and of the files they replace: either may appear again as a copy."""
    return {
        file_id: file.last_s for file in entry.files for file_id in (file.file_id, *file.replaces)
    }


def _newest_s(before_s: float | None, entry: Entry) -> float | None:
    times_s = [file.last_s for file in entry.files if file.rows]
    return max(times_s if before_s is None else [before_s, *times_s], default=None)


def _count(counts: Counts, entry: Entry) -> None:
    counts.files += len(entry.files)
    counts.rows += sum(file.rows for file in entry.files)
    files_left_out = Counter(counts.files_left_out)
    files_left_out.update(one.reason for one in entry.left_out)
    rows_left_out = Counter(counts.rows_left_out)
    for file in entry.files:
        rows_left_out.update(file.rows_left_out)
    counts.files_left_out = dict(files_left_out)
    counts.rows_left_out = dict(rows_left_out)


def _write(file: Path, content: bytes) -> None:
    """Replace a file atomically, after its content has reached the disk."""
    hidden = file.with_name(f".{file.name}")
    with hidden.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    hidden.replace(file)
