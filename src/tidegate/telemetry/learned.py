"""Access to the newest tables and models of `learn`, without Spark.

A table that is missing, damaged or of another version counts as absent. The reason is recorded and
shown in the report; the other tables are shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.core.errors import Notice
from tidegate.core.runtime import crash_point
from tidegate.telemetry.models import LearningRun, ModelFile, ModelRegistry, StoredModel

Row = dict[str, Any]

_UTC = pa.timestamp("us", tz="UTC")


class NothingLearned(Notice):
    """The folder holds no run of `learn`."""

    name = "NOTHING_LEARNED"


class LearnedModels:
    """The newest run in a folder, and the problems found while reading it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.complaints: list[str] = []
        self.knowledge = ModelRegistry(folder, self._complain)
        run = self.knowledge.run()
        if run is None:
            why = "".join(f" ({complaint})" for complaint in self.complaints)
            raise NothingLearned(
                f"nothing has been learned yet in {folder}{why}: run `tidegate learn` first"
            )
        self.run: LearningRun = run

    def _complain(self, sentence: str) -> None:
        if sentence not in self.complaints:
            self.complaints.append(sentence)

    def table(
        self,
        name: str,
        columns: Sequence[str],
        only: tuple[str, Collection[str]] | None = None,
    ) -> pa.Table | None:
        """Return columns of a table, or `None` if the table is absent.

        `only` restricts the rows: (column, allowed values).
        """
        folder = self.knowledge.table_folder(name)
        if folder is None:
            return None
        parts = [
            part
            for file in sorted(folder.glob("*.parquet"))
            if not file.name.startswith(("_", "."))
            and (part := self._part(name, file, columns, only)) is not None
        ]
        return pa.concat_tables(parts, promote_options="permissive") if parts else None

    def rows(
        self,
        name: str,
        columns: Sequence[str],
        only: tuple[str, Collection[str]] | None = None,
        order: Sequence[str] = (),
    ) -> list[Row]:
        """Return columns of a table as rows, sorted by the columns in `order`.

        Without `order` the rows come in the order in which they were stored.
        """
        table = self.table(name, columns, only)
        if table is None:
            return []
        if order:
            table = table.sort_by([(column, "ascending") for column in order])
        found: list[Row] = table.to_pylist()
        return found

    def models(self, kind: str) -> dict[str, StoredModel]:
        """Return the newest models of a kind by subject, accepted and refused ones."""
        version = self.knowledge.newest_version(kind)
        file = self.knowledge.model_file(kind, version) if version else None
        return {model.subject: model for model in file.models} if file else {}

    def model_files(self) -> Iterator[ModelFile]:
        """Yield the newest file of every kind of model."""
        folder = self.folder / "models"
        kinds = (
            sorted(each.name for each in folder.iterdir() if each.is_dir())
            if folder.is_dir()
            else []
        )
        for kind in kinds:
            version = self.knowledge.newest_version(kind)
            file = self.knowledge.model_file(kind, version) if version else None
            if file is not None:
                yield file

    def _part(
        self,
        name: str,
        file: Path,
        columns: Sequence[str],
        only: tuple[str, Collection[str]] | None,
    ) -> pa.Table | None:
        try:
            present = set(pq.read_schema(file).names)
            absent = [column for column in columns if column not in present]
            if absent:
                self._complain(
                    f"the table {name} has no column {absent[0]}: another version has learned it; "
                    "run `tidegate learn` again"
                )
                return None
            chosen = None if only is None else [(only[0], "in", sorted(only[1]))]
            table = pq.read_table(file, columns=list(columns), filters=chosen, partitioning=None)
        except (pa.ArrowException, OSError) as error:
            reason = (str(error).strip().splitlines() or ["it is broken"])[0]
            self._complain(
                f"{file.name} of the table {name} cannot be read and was left out: {reason}"
            )
            return None
        return _plain(table)


def _plain(table: pa.Table) -> pa.Table:
    """Convert times to UTC and dictionary-encoded text to plain text."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type != _UTC:
            column = pc.cast(table.column(index), pa.timestamp("us", field.type.tz), safe=False)
            column = pc.cast(column, _UTC) if field.type.tz else pc.assume_timezone(column, "UTC")
            table = table.set_column(index, field.name, column)
        elif pa.types.is_dictionary(field.type):
            column = pc.cast(table.column(index), field.type.value_type)
            table = table.set_column(index, field.name, column)
    return table


def grouped(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    """Group rows by a column; each group keeps the order of the rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


# The results of each batch, stored exactly once.
#
#     <folder>/<query>/batch=000000012/compliance.parquet, anomalies.parquet, carried.json
#
# A batch is written to a hidden folder and renamed into place, so that it is complete or absent.
# The result of a batch follows from its rows and the state that the previous batch stored. A batch
# that Spark runs again after a kill would therefore give the same result; if it is stored, it is
# kept.
#
# Old batches are merged into one folder whose name gives the range of merged batches. A reader that
# sees a merged batch and its parts uses the merged batch only, so that no row counts twice.


_BATCH = re.compile(r"batch=(\d{9})(?:-(\d{9}))?")
CARRIED = "carried.json"
# When a query has this many batches, all but the newest are merged.
MERGED_FROM = 64
_KEPT_APART = 8
_READS_MAX = 10


class QueryResults:
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
