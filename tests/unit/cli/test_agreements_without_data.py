"""An agreement that governs nothing is told of: its owner believes that it is watched."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.cli.learn import without_data


def agreement(name: str, governs: str) -> Agreement:
    return parse_agreement(
        f'name = "{name}"\n{governs}\n[metrics.throughput]\nbreach = 100\n', f"{name}.toml"
    )


def test_each_that_governs_no_recorded_queue_is_named(tmp_path: Path) -> None:
    (tmp_path / "service_levels").mkdir()
    levels = pa.table(
        {
            "agreement": ["orders", "typo", "web"],
            "from": pa.array([datetime.now(UTC), None, None], pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(levels, tmp_path / "service_levels" / "part-0.parquet")
    agreements = [
        agreement("orders", 'queue = "orders"'),
        agreement("typo", 'queue = "ordres.*"'),
        agreement("web", 'http = "shop"'),
    ]

    typo, web = without_data(tmp_path, agreements)

    assert typo.startswith("the agreement typo governs no queue that was recorded")
    assert "'ordres.*'" in typo
    assert web.startswith("the agreement web governs no HTTP service that was recorded")


def test_a_run_that_judged_nothing_says_nothing(tmp_path: Path) -> None:
    assert list(without_data(tmp_path, [agreement("orders", 'queue = "orders"')])) == []
