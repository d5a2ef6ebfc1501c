"""Something learned and something reported, as `learn` and `report` leave it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.telemetry.models import (
    SCHEMA,
    JobRecord,
    LearningRun,
    ModelRegistry,
    ReadCounts,
    StoredModel,
)

REASON = "the prefetch took 2 values only: nothing can be learned from that"
# Would say so on the page, if it could.
SCRIPT = "<script>document.body.append('it runs')</script>"


def write_models(folder: Path) -> None:
    """One that is accepted, with its points, and one that is refused."""
    now = datetime.now(UTC)
    begun = now - timedelta(hours=1)
    span = {"from_s": begun.timestamp(), "to_s": now.timestamp()}
    knowledge = ModelRegistry(folder)
    run = knowledge.begin_run(now)
    law = {"rate_per_s": 120.0, "contention": 0.05, "coherency": 0.001}
    points = [
        {"queue": "orders", "clients": n, "throughput_per_s": 120.0 * n / (1.0 + 0.05 * (n - 1))}
        for n in range(1, 13)
    ]
    table = knowledge.run_folder(run) / "capacity"
    table.mkdir()
    pq.write_table(pa.Table.from_pylist(points), table / "part-00000.parquet")
    knowledge.add_models(
        "capacity",
        run,
        now,
        [
            StoredModel(
                subject="orders",
                accepted=True,
                reason="fits",
                parameters=law,
                quality={"r_squared": 0.98},
                rows=3600,
                **span,
            )
        ],
    )
    knowledge.add_models(
        "prefetch",
        run,
        now,
        [
            StoredModel(
                subject="payments",
                accepted=False,
                reason=REASON,
                parameters={},
                quality={},
                rows=40,
                **span,
            )
        ],
    )
    knowledge.finish_run(
        LearningRun(
            schema=SCHEMA,
            run=run,
            learned_at=now,
            since=begun,
            until=now,
            seconds=1.0,
            lake="lake",
            agreements=[],
            reading={"queue_samples": ReadCounts(files=1, rows=3640)},
            jobs=[JobRecord("everything", 1.0, {"capacity": len(points)})],
        )
    )


def write_result(folder: Path) -> None:
    folder.mkdir()
    (folder / "report.html").write_text(
        f"<!doctype html><title>An afternoon</title><h1>What was kept</h1>{SCRIPT}"
    )
