"""The results of each batch, stored exactly once.

    <folder>/<query>/batch=000000012/compliance.parquet, anomalies.parquet, carried.json

A batch is written to a hidden folder and renamed into place, so that it is complete or absent. The
result of a batch follows from its rows and the state that the previous batch stored. A batch that
Spark runs again after a kill would therefore give the same result; if it is stored, it is kept.

Old batches are merged into one folder whose name gives the range of merged batches. A reader that
sees a merged batch and its parts uses the merged batch only, so that no row counts twice.
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
# When a query has this many batches, all but the newest are merged.
MERGED_FROM = 64
_KEPT_APART = 8
_READS_MAX = 10


class Batches:
    """The stored results of one query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def clear_unfinished(self) -> None:
        """Remove the hidden folders that a killed writer left.

        Only the process that holds the folder's lock may call this.
        """
        for leftover in self.folder.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def has(self, number: int) -> bool:
        """Return whether a batch has been stored."""
        return any(first <= number <= last for first, last in _present(self.folder))

    def carried_before(self, number: int) -> bytes | None:
        """Return the state of the last stored batch before `number`, or `None` without one."""
        earlier = [one for one in _present(self.folder) if one[1] < number]
        return (self.folder / _name(*max(earlier)) / CARRIED).read_bytes() if earlier else None

    def store(self, number: int, tables: Mapping[str, pa.Table], carried: bytes) -> None:
        """Store the tables and the state of a batch, then merge old batches if there are many."""
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
    """Return all rows of a table, over all queries of a folder; `None` if there are none yet."""
    for _ in range(_READS_MAX):
        # A merge may remove files between listing and reading: list again.
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
    """Return the ranges of batches, in order, without those that a merged batch contains."""
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
