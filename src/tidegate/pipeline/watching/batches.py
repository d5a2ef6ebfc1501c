"""What each batch found, stored once.

    <folder>/<query>/batch=000000012/compliance.parquet, anomalies.parquet, carried.json

A batch is written beside its place and renamed into it, so that it is there whole or not at all.
Its result follows from its rows and from what the batch before carried over; one that is run again
after a kill would find the same, so if it is there it is left alone.

Old batches are merged into one, which names those it stands for; a reader that sees both takes the
merged one, so no row is ever seen twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.core.crash import crash_point

_BATCH = re.compile(r"batch=(\d{9})(?:-(\d{9}))?")
CARRIED = "carried.json"
# When so many have gathered, all but the newest become one.
MERGED_FROM = 64
_KEPT_APART = 8
_READS_MAX = 10


class Batches:
    """The results of one query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def clear_unfinished(self) -> None:
        """Remove what a killed writer left behind; for the one that writes now."""
        for leftover in self.folder.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def has(self, number: int) -> bool:
        """Whether a batch has been stored."""
        return any(first <= number <= last for first, last in _present(self.folder))

    def carried_before(self, number: int) -> bytes | None:
        """What the last stored batch before one has carried over."""
        earlier = [one for one in _present(self.folder) if one[1] < number]
        return (self.folder / _name(*max(earlier)) / CARRIED).read_bytes() if earlier else None

    def store(self, number: int, tables: Mapping[str, pa.Table], carried: bytes) -> None:
        """Put a batch in its place."""
        self._put((number, number), tables, carried)
        crash_point("after-watch-batch")
        if len(_present(self.folder)) >= MERGED_FROM:
            self._merge(_present(self.folder)[:-_KEPT_APART])

    def _put(self, span: tuple[int, int], tables: Mapping[str, pa.Table], carried: bytes) -> None:
        hidden = self.folder / f".{_name(*span)}"
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir()
        for name, table in tables.items():
            if table.num_rows:
                pq.write_table(table, hidden / f"{name}.parquet", compression="zstd")
        (hidden / CARRIED).write_bytes(carried)
        for file in hidden.iterdir():
            _sync(file)
        crash_point("before-watch-batch")
        hidden.rename(self.folder / _name(*span))
        _sync(self.folder)

    def _merge(self, spans: list[tuple[int, int]]) -> None:
        whole = (spans[0][0], spans[-1][1])
        files = [file for span in spans for file in (self.folder / _name(*span)).glob("*.parquet")]
        tables = {
            name: pa.concat_tables([pq.read_table(one) for one in files if one.stem == name])
            for name in {file.stem for file in files}
        }
        self._put(whole, tables, (self.folder / _name(*spans[-1]) / CARRIED).read_bytes())
        for span in spans:
            shutil.rmtree(self.folder / _name(*span), ignore_errors=True)


def read_table(folder: Path, table: str) -> pa.Table | None:
    """All that the queries below a folder have found for a table; None if nothing yet."""
    for _ in range(_READS_MAX):
        # Batches that were merged meanwhile are looked up again.
        with contextlib.suppress(FileNotFoundError):
            return _read_table(folder, table)
    return _read_table(folder, table)


def _read_table(folder: Path, table: str) -> pa.Table | None:
    found = [
        pq.read_table(file, partitioning=None)
        for query in sorted(folder.glob("*/"))
        for span in _present(query)
        if (file := query / _name(*span) / f"{table}.parquet").exists()
    ]
    return pa.concat_tables(found) if found else None


def _present(folder: Path) -> list[tuple[int, int]]:
    """The batches that count, in order: none of which another one stands for."""
    matches = [_BATCH.fullmatch(each.name) for each in folder.iterdir()]
    spans = sorted((int(m[1]), int(m[2] or m[1])) for m in matches if m)
    return [
        (first, last)
        for first, last in spans
        if not any(
            (first, last) != other and other[0] <= first and last <= other[1] for other in spans
        )
    ]


def _name(first: int, last: int) -> str:
    return f"batch={first:09d}" if first == last else f"batch={first:09d}-{last:09d}"


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
