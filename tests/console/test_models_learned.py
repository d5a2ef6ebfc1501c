"""Models as the console shows them: what was measured, and what the model says of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.console.models_learned import models_learned
from tidegate.telemetry.knowledge import SCHEMA, JobRecord, Knowledge, Model, Run


def test_the_curve_of_a_prefetch_ends_where_the_model_does(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    knowledge = Knowledge(tmp_path)
    run = knowledge.begin_run(now)
    table = knowledge.run_folder(run) / "prefetch_levels"
    table.mkdir()
    levels = [
        {"group": "orders/clerk", "prefetch": n, "arrival_per_s": 10.0 * min(n, 20)}
        for n in range(1, 31)
    ]
    pq.write_table(pa.Table.from_pylist(levels), table / "part-00000.parquet")
    known = {"a": 0.5, "b": 5.0, "prefetch_high": 20.0}
    model = Model(
        subject="orders/clerk",
        accepted=True,
        reason="fits",
        parameters=known,
        quality={},
        rows=30,
        from_s=now.timestamp(),
        to_s=now.timestamp(),
    )
    knowledge.add_models("prefetch", run, now, [model])
    knowledge.finish_run(
        Run(
            schema=SCHEMA,
            run=run,
            learned_at=now,
            since=now,
            until=now,
            seconds=1.0,
            lake="lake",
            agreements=[],
            reading={},
            jobs=[JobRecord("identification", 1.0, {"prefetch_levels": len(levels)})],
        )
    )

    (shown,) = models_learned(tmp_path)

    assert len(shown.points) == 30
    assert all(y == pytest.approx(10.0 * x) for x, y in shown.curve)
    assert 19.0 < shown.curve[-1][0] <= 20.0
