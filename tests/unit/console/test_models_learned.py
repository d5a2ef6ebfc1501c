"""Models as the console shows them: what was measured, and what the model says of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from people import PASSWORD, add_user
from serving_console import console_of

from tidegate.broker.node import Node
from tidegate.console.reports import learned_models
from tidegate.telemetry.models import SCHEMA, JobRecord, LearningRun, ModelRegistry, StoredModel


def _model(subject: str, now: datetime, parameters: dict[str, float]) -> StoredModel:
    return StoredModel(
        subject=subject,
        accepted=True,
        reason="fits",
        parameters=parameters,
        quality={},
        rows=30,
        from_s=now.timestamp(),
        to_s=now.timestamp(),
    )


def _run(run: str, now: datetime, jobs: list[JobRecord]) -> LearningRun:
    return LearningRun(
        schema=SCHEMA,
        run=run,
        learned_at=now,
        since=now,
        until=now,
        seconds=1.0,
        lake="lake",
        agreements=[],
        reading={},
        jobs=jobs,
    )


def test_the_curve_of_a_prefetch_ends_where_the_model_does(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    knowledge = ModelRegistry(tmp_path)
    run = knowledge.begin_run(now)
    table = knowledge.run_folder(run) / "prefetch_levels"
    table.mkdir()
    levels = [
        {"group": "orders/clerk", "prefetch": n, "arrival_per_s": 10.0 * min(n, 20)}
        for n in range(1, 31)
    ]
    pq.write_table(pa.Table.from_pylist(levels), table / "part-00000.parquet")
    known = {"a": 0.5, "b": 5.0, "prefetch_high": 20.0}
    knowledge.add_models("prefetch", run, now, [_model("orders/clerk", now, known)])
    jobs = [JobRecord("identification", 1.0, {"prefetch_levels": len(levels)})]
    knowledge.finish_run(_run(run, now, jobs))

    (shown,) = learned_models(tmp_path)

    assert len(shown.points) == 30
    assert all(y == pytest.approx(10.0 * x) for x, y in shown.curve)
    assert 19.0 < shown.curve[-1][0] <= 20.0


@pytest.mark.parametrize(
    ("pattern", "seen"),
    [
        ("team", []),
        ("team/*", ["team/secret", "team/orders/worker"]),
        ("team/orders", ["team/orders/worker"]),
        ("orders", ["orders/worker"]),
    ],
)
async def test_a_model_is_seen_by_who_may_see_its_queue_slashes_and_all(
    node: Node, tmp_path: Path, pattern: str, seen: list[str]
) -> None:
    now = datetime.now(UTC)
    knowledge = ModelRegistry(tmp_path)
    run = knowledge.begin_run(now)
    groups = [_model(subject, now, {}) for subject in ("team/orders/worker", "orders/worker")]
    knowledge.add_models("capacity", run, now, [_model("team/secret", now, {})])
    knowledge.add_models("prefetch", run, now, groups)
    knowledge.finish_run(_run(run, now, []))
    await add_user(node, "ann", read=pattern)

    async with console_of(node, knowledge=tmp_path) as console:
        console.http.auth = ("ann", PASSWORD)
        found = await console.json("/models")

    assert [one["subject"] for one in found] == seen
