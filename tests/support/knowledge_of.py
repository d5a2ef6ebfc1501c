"""A knowledge folder with the rows that a test names, written as `learn` writes them.

The columns are those that the jobs promise: when a job changes its table, these tests notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.learn import JOBS
from tidegate.telemetry.models import (
    SCHEMA,
    JobRecord,
    LearningRun,
    ModelRegistry,
    ReadCounts,
    StoredModel,
)

NOON = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
EVENING = NOON + timedelta(hours=6)

Rows = Sequence[Mapping[str, Any]]


def columns_of(table: str) -> pa.Schema:
    """The columns of a table, as its job promises them."""
    promised = next(job.writes[table] for job in JOBS if table in job.writes)
    return to_arrow_schema(promised, timezone="UTC")


class KnowledgeOf:
    """Gathers tables and models, and writes one run of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables: dict[str, Rows] = {}
        self.models: dict[str, list[StoredModel]] = {}
        self.agreements: list[str] = []
        self.reading = {"queue_samples": ReadCounts(files=3, rows=21_600)}
        self.failures: dict[str, str] = {}

    def add(self, table: str, rows: Rows) -> KnowledgeOf:
        self.tables[table] = rows
        return self

    def add_model(self, kind: str, subject: str, **given: Any) -> KnowledgeOf:
        says: dict[str, Any] = {
            "accepted": True,
            "reason": "good enough",
            "parameters": {},
            "quality": {},
            "rows": 3600,
            "from_s": NOON.timestamp(),
            "to_s": EVENING.timestamp(),
        }
        self.models.setdefault(kind, []).append(StoredModel(subject=subject, **(says | given)))
        return self

    def table_file(self, table: str) -> Path:
        """The file of a table that has been written."""
        folder = ModelRegistry(self.folder).table_folder(table)
        assert folder is not None
        return folder / "part-00000.parquet"

    def write(self) -> Path:
        """One whole run; returns the folder."""
        knowledge = ModelRegistry(self.folder)
        name = knowledge.begin_run(EVENING)
        for table, rows in self.tables.items():
            schema = columns_of(table)
            folder = knowledge.run_folder(name) / table
            folder.mkdir()
            complete = [{column: row[column] for column in schema.names} for row in rows]
            pq.write_table(
                pa.Table.from_pylist(complete, schema=schema), folder / "part-00000.parquet"
            )
        for kind, models in self.models.items():
            knowledge.add_models(kind, name, EVENING, models)
        jobs = [
            JobRecord("everything", 1.5, {t: len(rows) for t, rows in self.tables.items()}),
            *(JobRecord(job, 0.1, failure=why) for job, why in self.failures.items()),
        ]
        knowledge.finish_run(
            LearningRun(
                schema=SCHEMA,
                run=name,
                learned_at=EVENING,
                since=NOON,
                until=EVENING,
                seconds=4.25,
                lake="lake",
                agreements=self.agreements,
                reading=self.reading,
                jobs=jobs,
            )
        )
        return self.folder
