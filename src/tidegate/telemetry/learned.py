"""Access to the newest tables and models of `learn`, without Spark.

A table that is missing, damaged or of another version counts as absent. The reason is recorded and
shown in the report; the other tables are shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.core.errors import Notice
from tidegate.telemetry.knowledge import Knowledge, Model, ModelFile, Run

Row = dict[str, Any]

_UTC = pa.timestamp("us", tz="UTC")


class NothingLearned(Notice):
    """The folder holds no run of `learn`."""

    name = "NOTHING_LEARNED"


class Learned:
    """The newest run in a folder, and the problems found while reading it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.complaints: list[str] = []
        self.knowledge = Knowledge(folder, self._complain)
        run = self.knowledge.run()
        if run is None:
            why = "".join(f" ({complaint})" for complaint in self.complaints)
            raise NothingLearned(
                f"nothing has been learned yet in {folder}{why}: run `tidegate learn` first"
            )
        self.run: Run = run

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

    def models(self, kind: str) -> dict[str, Model]:
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
